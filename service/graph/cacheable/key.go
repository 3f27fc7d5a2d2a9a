package cacheable

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/analysis"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// ordersBy are the inputs of a step that only orders which say how it does that.
var ordersBy = []string{
	"buffer_size", "seed", "seed2", "seed_generator", "cycle_length", "block_length", "buffer_output_elements", "prefetch_input_elements", "num_parallel_calls",
}

// Hasher hashes the steps of a graph without how those order that only order in the streams of a plan.
type Hasher struct {
	*graph.Hasher
	g *graph.Graph
	// mixed is set if the parts of the source are samples of a list that is shuffled.
	mixed bool
}

// NewHasher returns a Hasher for the steps of a graph.
func NewHasher(g *graph.Graph, plan *pecanv1.Plan) *Hasher {
	free, mixed := map[string][]string{}, false
	for _, name := range plan.GetCut().GetOrdering() {
		free[name] = ordersBy
		mixed = mixed || g.RuleOf(g.Node(name)).Kind == ops.Shuffled
	}
	for _, name := range plan.GetCut().GetLateShuffles() {
		free[name] = ordersBy
	}
	return &Hasher{graph.NewHasherWithout(g, free), g, mixed}
}

// Key hashes everything that decides which elements pass a cached step in a part of the source. The contents of the source
// files and the job's seed are exceptions. Graphs that are equal up to that step have the same key, whatever follows it.
// Steps that only order have the same key in any order that they give. If steps draw from seeds, the key covers what the seeds
// depend on.
func Key(h *Hasher, plan *pecanv1.Plan, step *pecanv1.CachePlan, cached *graph.Step) string {
	sum := sha256.New()
	graph.WriteHashPart(sum, []byte("pecan cache 2"))
	graph.WriteHashPart(sum, h.Node(step.GetNode()))
	if step.GetSeeded() {
		// Streams give the elements in an order that follows from the seeds of steps that only order, too.
		graph.WriteHashPart(sum, graph.NewHasher(h.g).Node(step.GetNode()))
		h.writeDraws(sum, plan, cached)
	}
	number := func(n int64) { graph.WriteHashPart(sum, binary.BigEndian.AppendUint64(nil, uint64(n))) }
	byParts := step.GetParts() > 0
	if number(int64(step.GetParts())); !byParts {
		number(int64(plan.GetNumStreams()))
	}
	number(int64(plan.GetCut().GetKind()))
	number(plan.GetCut().GetBlock())
	for _, edge := range plan.GetCut().GetEdges() {
		graph.WriteHashPart(sum, h.Node(edge))
	}
	order := int64(0)
	switch {
	case analysis.IsDeterministic(plan.GetMode()):
		order = 2
	case analysis.NeedsRepeatableOrder(plan.GetMode()):
		order = 1
	}
	number(order)
	packed := int64(0)
	if step.GetPacked() {
		packed = 1
	}
	number(packed)
	if plan.GetCut().GetWholeFiles() {
		graph.WriteHashPart(sum, []byte("whole files"))
	}
	if group := plan.GetGroup(); group > 0 && !byParts {
		number(int64(group))
	}
	if h.mixed {
		graph.WriteHashPart(sum, []byte("mixed"))
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// writeDraws hashes what the values that steps draw depend on, apart from the job's seed: the mode, which steps draw by the
// index of an element, and the names of the steps and of the nodes in their functions. A graph lists the source first, so what
// follows a step does not change its name.
func (h *Hasher) writeDraws(sum hash.Hash, plan *pecanv1.Plan, cached *graph.Step) {
	graph.WriteHashPart(sum, []byte(plan.GetMode().String()))
	written := map[string]bool{}
	var writeFunctions func(n *tf.NodeDef)
	writeFunctions = func(n *tf.NodeDef) {
		for _, name := range nodedef.CalledFunctions(n) {
			if written[name] {
				continue
			}
			written[name] = true
			for _, inner := range h.g.Function(name).GetNodeDef() {
				graph.WriteHashPart(sum, []byte(inner.GetName()))
				writeFunctions(inner)
			}
		}
	}
	cached.Walk(func(s *graph.Step) {
		name, keyed := s.Node.GetName(), byte(0)
		if slices.Contains(plan.GetKeyed(), name) {
			keyed = 1
		}
		graph.WriteHashPart(sum, append([]byte(name), 0, keyed))
		writeFunctions(s.Node)
	})
}
