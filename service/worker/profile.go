package worker

import (
	"regexp"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/pecan-ml/pecan/native/tf"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
)

// maxProfiled bounds the nodes that are matched: a profile is no reason to spend seconds on a graph.
const maxProfiled = 512

// step is one dataset operation of a stream's graph.
type step struct {
	name, op string
	inputs   []*step
}

// profiler reads what each step of an iterator's graph did from tf.data's own model of the running iterator. The model is a
// tree of the same shape as the graph's, but for steps that leave no node (options), nodes that TensorFlow puts in
// (a prefetch at the root) and steps it runs in parallel on its own; the iterators that a flat_map or interleave opens
// hang below its node, and their time counts as its own.
type profiler struct {
	root *step

	mu sync.Mutex
	// seen is the last time of each model node that belongs to a step and is still there, gone the times of those
	// that are not: an interleave opens and closes an iterator per file.
	seen map[int64]nodeTime
	gone map[*step]int64
	last []*pecanv1.NodeMetrics
}

type nodeTime struct {
	of *step
	ns int64
}

// newProfiler reads the tree of a serialised stream graph; nil when it has none.
func newProfiler(serialised []byte) *profiler {
	output, err := outputNode(serialised)
	if err != nil {
		return nil
	}
	nodes := map[string]graphNode{}
	_ = eachNode(serialised, func(n graphNode) bool {
		if strings.Contains(n.op, "Dataset") {
			nodes[n.name] = n
		}
		return true
	})
	if len(nodes) > maxProfiled {
		return nil
	}
	root := treeOf(nodes, output, map[string]*step{})
	if root == nil {
		return nil
	}
	return &profiler{root: root, seen: map[int64]nodeTime{}, gone: map[*step]int64{}}
}

func treeOf(nodes map[string]graphNode, name string, made map[string]*step) *step {
	n, ok := nodes[name]
	if !ok {
		return nil
	}
	if s := made[name]; s != nil {
		return s
	}
	s := &step{name: n.name, op: n.op}
	made[name] = s
	for _, input := range n.inputs {
		if below := treeOf(nodes, nodeOf(input), made); below != nil {
			s.inputs = append(s.inputs, below)
		}
	}
	return s
}

// read brings the figures up to date from a running iterator, and tells how many bytes the steps that work ahead hold in
// buffers of their own.
func (p *profiler) read(it *tf.Iterator) (buffered int64) {
	raw, err := it.Model()
	model := new(tensorflow.ModelProto)
	if err == nil {
		err = proto.Unmarshal(raw, model)
	}
	if err != nil || len(model.GetNodes()) > 16*maxProfiled {
		return 0
	}
	p.take(model)
	return bufferedBytes(model)
}

func (p *profiler) take(model *tensorflow.ModelProto) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := matcher{model: model.GetNodes(), best: map[pair]match{}}
	assigned := map[int64]*step{}
	m.assign(p.root, model.GetOutput(), assigned)
	p.account(model, assigned)
	p.last = p.figures(model, assigned)
}

// bufferedBytes is what prefetching and parallel steps hold. What a shuffle holds is the user's own choice.
func bufferedBytes(model *tensorflow.ModelProto) int64 {
	sum := int64(0)
	for _, node := range model.GetNodes() {
		switch node.GetNodeClass() {
		case tensorflow.NodeClass_ASYNC_KNOWN_RATIO, tensorflow.NodeClass_ASYNC_UNKNOWN_RATIO, tensorflow.NodeClass_ASYNC_INTERLEAVE_MANY:
			// What lies in the buffer, and one more of the kind that is being made.
			held, count := max(0, node.GetBufferedBytes()), max(1, node.GetBufferedElements())
			sum += held + held/count
		}
	}
	return sum
}

// account adds up the time of every model node below an assigned one, up to the next assigned one.
func (p *profiler) account(model *tensorflow.ModelProto, assigned map[int64]*step) {
	now := map[int64]nodeTime{}
	var walk func(id int64, owner *step)
	walk = func(id int64, owner *step) {
		node := model.GetNodes()[id]
		if _, visited := now[id]; visited || node == nil {
			return
		}
		if s := assigned[id]; s != nil {
			owner = s
		}
		if owner != nil {
			now[id] = nodeTime{owner, max(0, node.GetProcessingTime())}
		}
		for _, input := range node.GetInputs() {
			walk(input, owner)
		}
	}
	walk(model.GetOutput(), nil)
	for id, before := range p.seen {
		if _, still := now[id]; !still {
			p.gone[before.of] += before.ns
		}
	}
	p.seen = now
}

// figures sums up per node of the registered graph. What Pecan put in counts as time of the node it stands for.
func (p *profiler) figures(model *tensorflow.ModelProto, assigned map[int64]*step) []*pecanv1.NodeMetrics {
	ns := map[*step]int64{}
	for s, gone := range p.gone {
		ns[s] += gone
	}
	for _, t := range p.seen {
		ns[t.of] += t.ns
	}
	byName := map[string]*pecanv1.NodeMetrics{}
	var out []*pecanv1.NodeMetrics
	of := func(s *step) *pecanv1.NodeMetrics {
		name := graph.OriginalNode(s.name)
		if name == "" {
			return nil
		}
		if byName[name] == nil {
			byName[name] = &pecanv1.NodeMetrics{Node: name}
			out = append(out, byName[name])
		}
		return byName[name]
	}
	for s, t := range ns {
		if metrics := of(s); metrics != nil {
			metrics.SelfCpuS += float64(t) / 1e9
		}
	}
	for id, s := range assigned {
		node, metrics := model.GetNodes()[id], of(s)
		if metrics == nil || graph.OriginalNode(s.name) != s.name {
			continue
		}
		metrics.Op = s.op
		metrics.Elements = uint64(max(0, node.GetNumElements()))
		metrics.BytesIn = uint64(max(0, node.GetBytesConsumed()))
		metrics.BytesOut = uint64(max(0, node.GetBytesProduced()))
	}
	return out
}

func (p *profiler) metrics() []*pecanv1.NodeMetrics {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last
}

// matcher finds the largest set of steps and model nodes that belong together, parents above parents.
type matcher struct {
	model map[int64]*tensorflow.ModelProto_Node
	best  map[pair]match
}

type pair struct {
	s  *step
	id int64
}

// match is what is best for a pair of subtrees: how many nodes are matched, and how to go on.
type match struct {
	count int
	same  bool
	// next are the pairs that follow.
	next []pair
}

func (m *matcher) find(s *step, id int64) match {
	node := m.model[id]
	if s == nil || node == nil {
		return match{}
	}
	key := pair{s, id}
	if known, ok := m.best[key]; ok {
		return known
	}
	// Set before going deeper, so that a cycle in a broken model ends.
	m.best[key] = match{}
	var best match
	if kindOf(s.op) == kindOf(node.GetName()) {
		best = match{count: 1, same: true}
		for i, below := range s.inputs {
			if i < len(node.GetInputs()) {
				next := pair{below, node.GetInputs()[i]}
				best.count += m.find(next.s, next.id).count
				best.next = append(best.next, next)
			}
		}
	}
	for _, below := range s.inputs {
		if c := m.find(below, id).count; c > best.count {
			best = match{count: c, next: []pair{{below, id}}}
		}
	}
	for _, input := range node.GetInputs() {
		if c := m.find(s, input).count; c > best.count {
			best = match{count: c, next: []pair{{s, input}}}
		}
	}
	m.best[key] = best
	return best
}

func (m *matcher) assign(s *step, id int64, to map[int64]*step) {
	found := m.find(s, id)
	if found.same {
		to[id] = s
	}
	for _, next := range found.next {
		m.assign(next.s, next.id, to)
	}
}

var versionSuffix = regexp.MustCompile(`V[0-9]+$`)

// kindOf makes the name of an op ("ParallelMapDatasetV2") and of its node in the model ("ParallelMapV2", or "ParallelMapV2(id:7)")
// equal, and those of an op and its parallel form, which TensorFlow may take instead.
func kindOf(name string) string {
	name, _, _ = strings.Cut(name, "(")
	name = strings.Replace(name, "Dataset", "", 1)
	name = versionSuffix.ReplaceAllString(name, "")
	return strings.TrimPrefix(strings.TrimPrefix(name, "Legacy"), "Parallel")
}
