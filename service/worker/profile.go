package worker

import (
	"math"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/pecan-ml/pecan/native/tf"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph/rewrite"
)

// maxProfiled bounds the nodes that are matched: a profile is no reason to spend seconds on a graph.
const maxProfiled = 512

// step is one dataset operation of a stream's graph.
type step struct {
	name, op string
	inputs   []*step
	// bytes is the size of an element where the graph says it, else 0.
	bytes uint64
}

// profiler finds out what each step of an iterator's graph did. Elements and bytes come from the graph's meters where it
// has some (rewrite.MeteredNode says why), and else from tf.data's own model of the running iterator, which has the times too.
// The model is a tree of the same shape as the graph's, but for steps that leave no node (options), nodes that TensorFlow
// puts in and steps it runs in parallel on its own; the iterators that a flat_map or interleave opens hang below its node,
// and their time counts as its own.
type profiler struct {
	root *step
	// steps are all of them, inputs before those who read them.
	steps []*step
	// ops are the ops of the registered graph, by node.
	ops map[string]string
	// meters is the name under which the graph counts, "" when it has no meters; metered are the names it counts for.
	meters  string
	metered map[string]bool
	// keeper is the batch whose short last element is held back for the closing stream; nil when there is none. What
	// passes it and the steps above it is taken off again: it counts where it is batched anew.
	keeper *step
	// relay: what PecanPull gives are the elements of a step, which the graph before this one counts.
	relay bool

	mu sync.Mutex
	// seen is the last reading of each model node that belongs to a step and is still there, gone the sum of those that
	// are not: an interleave opens and closes an iterator per file, a repeat opens all below it anew.
	seen    map[int64]reading
	gone    map[*step]tally
	counted map[string]tally
	kept    tally
	last    []*pecanv1.NodeMetrics
}

// tally is what a node did.
type tally struct {
	ns            int64
	elements      uint64
	consumed, out uint64
}

func (t *tally) add(more tally) {
	t.ns += more.ns
	t.elements += more.elements
	t.consumed += more.consumed
	t.out += more.out
}

// reading is what a model node did for a step.
type reading struct {
	of *step
	tally
}

// newProfiler reads the tree of a serialised stream graph; nil when it has none. meters is the name that the graph was
// written with, ops are those of the registered graph.
func newProfiler(serialised []byte, meters string, ops map[string]string) *profiler {
	output, err := outputNode(serialised)
	if err != nil {
		return nil
	}
	p := &profiler{ops: ops, metered: map[string]bool{}, seen: map[int64]reading{}, gone: map[*step]tally{}}
	nodes := map[string]graphNode{}
	_ = eachNode(serialised, func(n graphNode) bool {
		if strings.Contains(n.op, "Dataset") {
			nodes[n.name] = n
		}
		if counted := rewrite.MeteredNode(n.name); counted != "" {
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

func (p *profiler) treeOf(nodes map[string]graphNode, name string, made map[string]*step) *step {
	n, ok := nodes[name]
	if !ok {
		return nil
	}
	if s := made[name]; s != nil {
		return s
	}
	s := &step{name: n.name, op: n.op}
	if rewrite.OneForOne(n.op) {
		s.bytes = n.elementBytes()
	}
	made[name] = s
	for _, input := range n.inputs {
		if below := p.treeOf(nodes, nodeOf(input), made); below != nil {
			s.inputs = append(s.inputs, below)
		}
	}
	p.steps = append(p.steps, s)
	return s
}

// keepsBack says that short batches are held back behind the graph.
func (p *profiler) keepsBack() {
	for s := p.root; s != nil; s = s.inputs[0] {
		if strings.Contains(s.op, "Batch") {
			p.keeper = s
			return
		}
		if len(s.inputs) == 0 {
			return
		}
	}
}

// read brings the figures up to date from a running iterator, and tells how many bytes the steps that work ahead hold in
// buffers of their own. kept is what was held back of its elements so far.
func (p *profiler) read(it *tf.Iterator, kept tally) (buffered int64) {
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
	p.kept = kept
	m := matcher{model: model.GetNodes(), best: map[pair]match{}}
	assigned := map[int64]*step{}
	m.assign(p.root, model.GetOutput(), assigned)
	p.account(model, assigned)
	p.last = p.figures()
	return bufferedBytes(model)
}

// bufferedBytes is what prefetching and parallel steps hold, or will hold once the window rests: a window that fills takes
// from the buffers as fast as they fill, and what it would fill itself with before them is theirs a moment later. What a
// shuffle holds is the user's own choice.
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
			// And one more that is being made.
			sum += int64(min(max(held, room*each)+each, math.MaxInt64>>16))
		}
	}
	return sum
}

// account takes a reading of every model node below an assigned one, up to the next assigned one.
func (p *profiler) account(model *tensorflow.ModelProto, assigned map[int64]*step) {
	now := map[int64]reading{}
	var walk func(id int64, owner *step)
	walk = func(id int64, owner *step) {
		node := model.GetNodes()[id]
		if _, visited := now[id]; visited || node == nil {
			return
		}
		r := reading{of: owner, tally: tally{ns: max(0, node.GetProcessingTime())}}
		if s := assigned[id]; s != nil {
			r.of, r.elements = s, uint64(max(0, node.GetNumElements()))
			r.consumed, r.out = uint64(max(0, node.GetBytesConsumed())), uint64(max(0, node.GetBytesProduced()))
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
			sum.add(before.tally)
			p.gone[before.of] = sum
		}
	}
	p.seen = now
}

// tallies are what the steps did. A step's time is what was read of it, and for what it did after its last reading, before
// the model forgot it, the time per element that was read.
func (p *profiler) tallies() map[*step]tally {
	sums := map[*step]tally{}
	for s, gone := range p.gone {
		sums[s] = gone
	}
	for _, r := range p.seen {
		sum := sums[r.of]
		sum.add(r.tally)
		sums[r.of] = sum
	}
	for _, s := range p.steps {
		if !p.metered[s.name] {
			continue
		}
		sum, counted := sums[s], p.counted[s.name]
		if sum.elements > 0 && counted.elements > sum.elements {
			sum.ns = int64(float64(sum.ns) * float64(counted.elements) / float64(sum.elements))
		}
		sum.elements, sum.out = counted.elements, counted.out
		sums[s] = sum
	}
	p.derive(sums)
	for s := p.root; p.keeper != nil; s = s.inputs[0] {
		sum := sums[s]
		sum.elements -= min(sum.elements, p.kept.elements)
		sum.out -= min(sum.out, p.kept.out)
		sums[s] = sum
		if s == p.keeper {
			break
		}
	}
	return sums
}

// derive counts what the model forgot of steps that give an element for each that they get, by what the step below them gave in
// all: whoever drops an iterator here has had everything of it. Bytes and time are those of the elements that were read.
func (p *profiler) derive(sums map[*step]tally) {
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
			if sum.elements > 0 && from.elements > sum.elements {
				more := float64(from.elements) / float64(sum.elements)
				sum.ns, sum.out = int64(float64(sum.ns)*more), uint64(float64(sum.out)*more)
			}
			if sum.elements == 0 {
				sum.out = from.elements * s.bytes
			}
			sum.elements = from.elements
			sums[s] = sum
		}
	}
}

// given is how many bytes came from a step to the one that reads it.
func (p *profiler) given(s *step, sums map[*step]tally) uint64 {
	original := rewrite.OriginalNode(s.name)
	if s.op == "OptionsDataset" {
		original = ""
	}
	inBlocks := original != s.name && len(s.inputs) == 1 && s.inputs[0].name == original && p.metered[original] && !strings.HasSuffix(s.name, "/shard")
	if original != "" && !inBlocks || s.name == rewrite.PullNode && p.relay {
		return sums[s].out
	}
	sum := uint64(0)
	for _, input := range s.inputs {
		sum += p.given(input, sums)
	}
	return sum
}

// figures sums up per node of the registered graph. What Pecan put in counts as time of the node it stands for.
func (p *profiler) figures() []*pecanv1.NodeMetrics {
	sums := p.tallies()
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
		metrics.Elements, metrics.BytesOut = sum.elements, sum.out
		for _, input := range s.inputs {
			metrics.BytesIn += p.given(input, sums)
		}
		if len(s.inputs) == 0 {
			metrics.BytesIn = sum.consumed
		}
	}
	return out
}

func (p *profiler) metrics() []*pecanv1.NodeMetrics {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last
}
