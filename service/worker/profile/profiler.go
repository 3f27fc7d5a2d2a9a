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
	// inside is the last step of the dataset that the step's function returns; nil if it is not measured. caller is the step in
	// whose function the step is; nil outside of functions.
	inside, caller *step
}

// Tree is the tree of steps of a stream's graph. Nobody changes it, so the streams of a pooled graph share it.
type Tree struct {
	root *step
	// steps are all steps, each after its inputs.
	steps []*step
	// metered are the nodes that the graph counts.
	metered map[string]bool
	// kept are the steps without a meter that the model keeps while the dataset is open, from the root on. All but the
	// last of them return one element for each input.
	kept []*step
}

// Profiler finds out what each step of an iterator's graph did. Elements and bytes come from the graph's meters,
// if it has some (see rewrite.MeteredNode). Otherwise they come from tf.data's model of the running iterator,
// which also has the times.
//
// The model is a tree with almost the shape of the graph. Options leave no node, TensorFlow adds nodes, and it
// runs some steps in parallel by itself. The iterators that a flat_map or interleave opens are upstream of its node. They
// belong to the steps of its function, and their time counts as its own too.
type Profiler struct {
	*Tree
	// nodes describes the nodes of the registered graph.
	nodes rewrite.Nodes
	// meters is the name under which the graph counts; empty without meters.
	meters string
	// batch is the batch whose short last element is kept back for the closing stream; nil if there is none. The counts of
	// batch and of the steps after it do not include that element, because the element counts where it is batched again.
	batch *step
	// Relay is set if PecanPull has the elements of a step that the graph before this one counts.
	Relay bool
	// nested is set if the steps run in a dataset that the first flat_map of the iterator opens.
	nested bool

	mu sync.Mutex
	// before is what the meters counted before this run. usual is what the steps did in earlier runs.
	before map[string]Counts
	usual  map[string]Counts
	// seen is the last reading of each live model node that belongs to a step. gone is the sum of the nodes that have
	// disappeared. An interleave opens and closes an iterator per file, and a repeat opens all its upstream steps again.
	seen      map[int64]reading
	gone      map[*step]Counts
	counted   map[string]Counts
	remainder Counts
	last      []*pecanv1.NodeMetrics
	// ended is set if the dataset of a pooled iterator is over, so the model has no step of it. The dataset gave given
	// elements, and failed elements failed.
	ended         bool
	given, failed uint64
}

// Counts are the time, the elements and the bytes of a node.
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

// reading has the counts of one node of a model, and the step to which they belong.
type reading struct {
	of *step
	Counts
}

// New returns the profiler of a serialised stream graph; nil if there is none. meters is the name that the graph was written
// with. nodes describes the registered graph.
func New(serialised []byte, meters string, nodes rewrite.Nodes) *Profiler {
	return NewTree(serialised).Profiler(meters, nodes)
}

// NewTree reads the tree of a serialised stream graph; it returns nil if there is none.
func NewTree(serialised []byte) *Tree {
	output, err := dataset.OutputNode(serialised)
	if err != nil {
		return nil
	}
	t := &Tree{metered: map[string]bool{}}
	nodes := map[string]dataset.Node{}
	_ = dataset.EachNode(serialised, func(n dataset.Node) bool {
		if isDataset(n.Op) {
			nodes[n.Name] = n
		}
		if counted := rewrite.MeteredNode(n.Name); counted != "" {
			t.metered[counted] = true
		}
		return true
	})
	if len(nodes) > maxProfiled {
		return nil
	}
	if t.root = t.add(nodes, output, map[string]*step{}); t.root == nil {
		return nil
	}
	inside := 0
	for _, s := range t.steps {
		if callsDatasets(s.op) && rewrite.OriginalNode(s.name) == s.name {
			s.inside = insideOf(serialised, nodes[s.name].CalledFunction(), s.name, &inside)
			s.inside.setCaller(s)
		}
	}
	for s := t.root; ; s = s.inputs[0] {
		if !t.metered[s.name] {
			t.kept = append(t.kept, s)
		}
		if !rewrite.KeepsInput(s.op) || len(s.inputs) == 0 {
			return t
		}
	}
}

func isDataset(op string) bool { return strings.Contains(op, "Dataset") }

// setCaller sets the step in whose function a step, and all steps upstream of it, are.
func (s *step) setCaller(caller *step) {
	if s == nil {
		return
	}
	s.caller = caller
	s.inside.setCaller(s)
	for _, input := range s.inputs {
		input.setCaller(caller)
	}
}

// Profiler returns a profiler of the tree's graph. meters is the name that the graph was written with. nodes describes the
// registered graph.
func (t *Tree) Profiler(meters string, nodes rewrite.Nodes) *Profiler {
	if t == nil {
		return nil
	}
	if len(t.metered) == 0 {
		meters = ""
	}
	return &Profiler{Tree: t, meters: meters, nodes: nodes, seen: map[int64]reading{}, gone: map[*step]Counts{}}
}

// add adds a node after its inputs.
func (t *Tree) add(nodes map[string]dataset.Node, name string, made map[string]*step) *step {
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
		if upstream := t.add(nodes, dataset.NodeOf(input), made); upstream != nil {
			s.inputs = append(s.inputs, upstream)
		}
	}
	t.steps = append(t.steps, s)
	return s
}

// KeepsRemainder tells the profiler that short batches are kept back after the graph.
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
// their own buffers. kept counts the elements that were kept back so far.
func (p *Profiler) Read(it *tf.Iterator, kept Counts) (buffered int64) {
	model := new(tensorflow.ModelProto)
	var err error
	// After the end of a pooled stream, the model has no node of it.
	ended := p.nested && it.Idle()
	if !ended {
		var raw []byte
		if raw, err = it.Model(); err == nil {
			err = proto.Unmarshal(raw, model)
		}
	}
	if err != nil || len(model.GetNodes()) > 16*maxProfiled {
		model = new(tensorflow.ModelProto)
	}
	counted := p.readMeters(it)
	p.mu.Lock()
	defer p.mu.Unlock()
	if counted != nil {
		p.counted = p.sinceBefore(counted)
	}
	p.remainder, p.ended = kept, ended
	p.given, p.failed = it.Given()
	m := matcher{model: model.GetNodes(), best: map[pair]match{}}
	assigned := map[int64]*step{}
	top := model.GetOutput()
	if p.nested {
		top = nestedIn(model, top)
	}
	m.assign(p.root, top, assigned)
	p.assignReadings(model, top, assigned)
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
func (p *Profiler) assignReadings(model *tensorflow.ModelProto, top int64, assigned map[int64]*step) {
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
	walk(top, nil)
	for id, before := range p.seen {
		if _, still := now[id]; !still {
			sum := p.gone[before.of]
			sum.Add(before.Counts)
			p.gone[before.of] = sum
		}
	}
	p.seen = now
}
