package profile

import (
	"math"
	"strings"
	"sync"

	"github.com/pecan-ml/pecan/service/graph/rewrite"

	"github.com/pecan-ml/pecan/native/tf"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/worker/dataset"
	"google.golang.org/protobuf/proto"
)

// maxProfiled bounds the nodes that are matched, so that no profile takes seconds.
const maxProfiled = 512

// step is one dataset operation of a stream's graph.
type step struct {
	name, op string
	inputs   []*step
	// bytes is the size of an element if the graph states it, else 0.
	bytes uint64
}

// Profiler finds out what each step of an iterator's graph did. Elements and bytes come from the graph's meters,
// if it has some (see rewrite.MeteredNode). Otherwise they come from tf.data's model of the running iterator,
// which also has the times.
//
// The model is a tree with almost the shape of the graph. Options leave no node, TensorFlow adds nodes, and it
// runs some steps in parallel by itself. The iterators that a flat_map or interleave opens are upstream of its node,
// and their time counts as its own.
type Profiler struct {
	root *step
	// steps are all steps, each after its inputs.
	steps []*step
	// ops are the ops of the registered graph, by node.
	ops map[string]string
	// meters is the name under which the graph counts; empty without meters. metered are the nodes that it
	// counts.
	meters  string
	metered map[string]bool
	// batch is the batch whose short last element is held back for the closing stream; nil if there is none.
	// That element is subtracted from it and from the steps after it, because it counts where it is batched
	// again.
	batch *step
	// Relay: the elements of PecanPull are those of a step that the graph before this one counts.
	Relay bool

	mu sync.Mutex
	// seen is the last reading of each live model node that belongs to a step. gone is the sum of the nodes that
	// have disappeared: an interleave opens and closes an iterator per file, and a repeat opens all its upstream
	// steps again.
	seen      map[int64]reading
	gone      map[*step]Counts
	counted   map[string]Counts
	remainder Counts
	last      []*pecanv1.NodeMetrics
}

// Counts is what a node did.
type Counts struct {
	ns            int64
	Elements      uint64
	consumed, Out uint64
}

// Add adds more to t.
func (c *Counts) Add(more Counts) {
	c.ns += more.ns
	c.Elements += more.Elements
	c.consumed += more.consumed
	c.Out += more.Out
}

// reading is what a model node did for a step.
type reading struct {
	of *step
	Counts
}

// New reads the tree of a serialised stream graph; it returns nil if there is none. meters is the name that the
// graph was written with. ops are the ops of the registered graph.
func New(serialised []byte, meters string, ops map[string]string) *Profiler {
	output, err := dataset.OutputNode(serialised)
	if err != nil {
		return nil
	}
	p := &Profiler{ops: ops, metered: map[string]bool{}, seen: map[int64]reading{}, gone: map[*step]Counts{}}
	nodes := map[string]dataset.Node{}
	_ = dataset.EachNode(serialised, func(n dataset.Node) bool {
		if strings.Contains(n.Op, "Dataset") {
			nodes[n.Name] = n
		}
		if counted := rewrite.MeteredNode(n.Name); counted != "" {
			p.metered[counted], p.meters = true, meters
		}
		return true
	})
	if len(nodes) > maxProfiled {
		return nil
	}
	if p.root = p.treeOf(nodes, output, map[string]*step{}); p.root == nil {
		return nil
	}
	return p
}

func (p *Profiler) treeOf(nodes map[string]dataset.Node, name string, made map[string]*step) *step {
	n, ok := nodes[name]
	if !ok {
		return nil
	}
	if s := made[name]; s != nil {
		return s
	}
	s := &step{name: n.Name, op: n.Op}
	if rewrite.OneForOne(n.Op) {
		s.bytes = n.ElementBytes()
	}
	made[name] = s
	for _, input := range n.Inputs {
		if upstream := p.treeOf(nodes, dataset.NodeOf(input), made); upstream != nil {
			s.inputs = append(s.inputs, upstream)
		}
	}
	p.steps = append(p.steps, s)
	return s
}

// KeepsRemainder tells the profiler that short batches are held back after the graph.
func (p *Profiler) KeepsRemainder() {
	for s := p.root; s != nil; s = s.inputs[0] {
		if strings.Contains(s.op, "Batch") {
			p.batch = s
			return
		}
		if len(s.inputs) == 0 {
			return
		}
	}
}

// Read updates the metrics from a running iterator. It returns how many bytes the steps that read ahead hold in
// their own buffers. kept counts the elements that were held back so far.
func (p *Profiler) Read(it *tf.Iterator, kept Counts) (buffered int64) {
	raw, err := it.Model()
	model := new(tensorflow.ModelProto)
	if err == nil {
		err = proto.Unmarshal(raw, model)
	}
	if err != nil || len(model.GetNodes()) > 16*maxProfiled {
		model = new(tensorflow.ModelProto)
	}
	counted := p.readMeters(it)
	p.mu.Lock()
	defer p.mu.Unlock()
	if counted != nil {
		p.counted = counted
	}
	p.remainder = kept
	m := matcher{model: model.GetNodes(), best: map[pair]match{}}
	assigned := map[int64]*step{}
	m.assign(p.root, model.GetOutput(), assigned)
	p.assignReadings(model, assigned)
	p.last = p.nodeMetrics()
	return bufferedBytes(model)
}

// bufferedBytes is what prefetching and parallel steps hold, or will hold when the window stops growing. A
// window that fills takes elements as fast as the buffers fill, so these buffers fill after it. The buffer of a
// shuffle is the user's own choice and does not count.
func bufferedBytes(model *tensorflow.ModelProto) int64 {
	sum := int64(0)
	for _, node := range model.GetNodes() {
		switch node.GetNodeClass() {
		case tensorflow.NodeClass_ASYNC_KNOWN_RATIO, tensorflow.NodeClass_ASYNC_UNKNOWN_RATIO, tensorflow.NodeClass_ASYNC_INTERLEAVE_MANY:
			held, room := float64(max(0, node.GetBufferedBytes())), 0.0
			each := held / float64(max(1, node.GetBufferedElements()))
			if made := node.GetNumElements(); made > 0 {
				each = max(each, float64(max(0, node.GetBytesProduced()))/float64(made))
			}
			for _, parameter := range node.GetParameters() {
				if name := parameter.GetName(); name == "buffer_size" || name == "parallelism" {
					room = max(room, parameter.GetStateValue())
				}
			}
			// One more element is being produced.
			sum += int64(min(max(held, room*each)+each, math.MaxInt64>>16))
		}
	}
	return sum
}

// assignReadings reads every model node upstream of an assigned one, up to the next assigned one, for that step.
func (p *Profiler) assignReadings(model *tensorflow.ModelProto, assigned map[int64]*step) {
	now := map[int64]reading{}
	var walk func(id int64, owner *step)
	walk = func(id int64, owner *step) {
		node := model.GetNodes()[id]
		if _, visited := now[id]; visited || node == nil {
			return
		}
		r := reading{of: owner, Counts: Counts{ns: max(0, node.GetProcessingTime())}}
		if s := assigned[id]; s != nil {
			r.of, r.Elements = s, uint64(max(0, node.GetNumElements()))
			r.consumed, r.Out = uint64(max(0, node.GetBytesConsumed())), uint64(max(0, node.GetBytesProduced()))
		}
		if r.of != nil {
			now[id] = r
		}
		for _, input := range node.GetInputs() {
			walk(input, r.of)
		}
	}
	walk(model.GetOutput(), nil)
	for id, before := range p.seen {
		if _, still := now[id]; !still {
			sum := p.gone[before.of]
			sum.Add(before.Counts)
			p.gone[before.of] = sum
		}
	}
	p.seen = now
}

// stepCounts is what the steps did. The model forgets nodes, so a step's time is scaled: the elements after its
// last reading count with the time per element of that reading.
func (p *Profiler) stepCounts() map[*step]Counts {
	sums := map[*step]Counts{}
	for s, gone := range p.gone {
		sums[s] = gone
	}
	for _, r := range p.seen {
		sum := sums[r.of]
		sum.Add(r.Counts)
		sums[r.of] = sum
	}
	for _, s := range p.steps {
		if !p.metered[s.name] {
			continue
		}
		sum, counted := sums[s], p.counted[s.name]
		if sum.Elements > 0 && counted.Elements > sum.Elements {
			sum.ns = int64(float64(sum.ns) * float64(counted.Elements) / float64(sum.Elements))
		}
		sum.Elements, sum.Out = counted.Elements, counted.Out
		sums[s] = sum
	}
	p.derive(sums)
	for s := p.root; p.batch != nil; s = s.inputs[0] {
		sum := sums[s]
		sum.Elements -= min(sum.Elements, p.remainder.Elements)
		sum.Out -= min(sum.Out, p.remainder.Out)
		sums[s] = sum
		if s == p.batch {
			break
		}
	}
	return sums
}

// derive completes the counts of one-for-one steps whose nodes the model forgot. Such a step gave as many
// elements as its input, because an iterator is dropped only after all its elements were taken. Bytes and time
// are scaled from the elements that were read.
func (p *Profiler) derive(sums map[*step]Counts) {
	live, known := map[*step]bool{}, map[*step]bool{}
	for _, r := range p.seen {
		live[r.of] = true
	}
	for _, s := range p.steps {
		switch {
		case p.metered[s.name]:
			known[s] = true
		case len(s.inputs) == 0 || !known[s.inputs[0]] || live[s] && s.op != "OptionsDataset":
		case rewrite.OneForOne(s.op):
			known[s] = true
			sum, from := sums[s], sums[s.inputs[0]]
			if sum.Elements > 0 && from.Elements > sum.Elements {
				more := float64(from.Elements) / float64(sum.Elements)
				sum.ns, sum.Out = int64(float64(sum.ns)*more), uint64(float64(sum.Out)*more)
			}
			if sum.Elements == 0 {
				sum.Out = from.Elements * s.bytes
			}
			sum.Elements = from.Elements
			sums[s] = sum
		}
	}
}

// bytesGiven is how many bytes a step gave to the step that reads it.
func (p *Profiler) bytesGiven(s *step, sums map[*step]Counts) uint64 {
	original := rewrite.OriginalNode(s.name)
	if s.op == "OptionsDataset" {
		original = ""
	}
	inBlocks := original != s.name && len(s.inputs) == 1 && s.inputs[0].name == original && p.metered[original] && !strings.HasSuffix(s.name, "/shard")
	if original != "" && !inBlocks || s.name == rewrite.PullNode && p.Relay {
		return sums[s].Out
	}
	sum := uint64(0)
	for _, input := range s.inputs {
		sum += p.bytesGiven(input, sums)
	}
	return sum
}

// nodeMetrics sums the counts per node of the registered graph. Steps that Pecan added count as time of the node
// they stand for.
func (p *Profiler) nodeMetrics() []*pecanv1.NodeMetrics {
	sums := p.stepCounts()
	byName := map[string]*pecanv1.NodeMetrics{}
	var out []*pecanv1.NodeMetrics
	for _, s := range p.steps {
		name := rewrite.OriginalNode(s.name)
		if name == "" || s.op == "OptionsDataset" {
			continue
		}
		metrics := byName[name]
		if metrics == nil {
			metrics = &pecanv1.NodeMetrics{Node: name, Op: p.ops[name]}
			byName[name] = metrics
			out = append(out, metrics)
		}
		sum := sums[s]
		metrics.SelfCpuS += float64(sum.ns) / 1e9
		if name != s.name {
			continue
		}
		if metrics.Op == "" {
			metrics.Op = s.op
		}
		metrics.Elements, metrics.BytesOut = sum.Elements, sum.Out
		for _, input := range s.inputs {
			metrics.BytesIn += p.bytesGiven(input, sums)
		}
		if len(s.inputs) == 0 {
			metrics.BytesIn = sum.consumed
		}
	}
	return out
}

// Metrics returns the metrics of the last Read.
func (p *Profiler) Metrics() []*pecanv1.NodeMetrics {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last
}
