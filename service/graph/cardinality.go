package graph

import (
	"math"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
)

// The two cardinalities that are no count, with tf.data's numbers.
const (
	infinite = int64(-1)
	unknown  = int64(-2)
)

// planner answers questions about the steps of one graph and remembers the answers.
type planner struct {
	g     *Graph
	cards map[*step]int64
	ends  map[*step]bool
	costs map[*step]int
	steps map[*tf.NodeDef]*functionFacts
	funcs map[string]*functionFacts
	// keyed are the steps, by name, that draw by the number of the element.
	keyed map[string]bool
	// How variables are used, and what was needed to find out.
	flows     map[string]*flow
	uses      map[argument]use
	valueUses map[argument]bool
	visits    int
	// kept is the step at which the graph is divided for a cache, "" when it is not.
	kept string
}

func newPlanner(g *Graph) *planner {
	return &planner{
		g: g, cards: map[*step]int64{}, ends: map[*step]bool{}, costs: map[*step]int{},
		steps: map[*tf.NodeDef]*functionFacts{}, funcs: map[string]*functionFacts{},
		flows: map[string]*flow{}, uses: map[argument]use{}, valueUses: map[argument]bool{},
	}
}

// cardinality counts the elements of a step as tf.data does, without running anything.
func (p *planner) cardinality(s *step) int64 {
	if n, ok := p.cards[s]; ok {
		return n
	}
	n := p.count(s)
	p.cards[s] = n
	return n
}

func (p *planner) count(s *step) int64 {
	switch s.rule.kind {
	case source:
		return p.countSource(s.node)
	case oneToOne, pass, shuffled, cached:
		return p.cardinality(s.in[0])
	case asserted:
		if n, ok := p.g.inputInt(s.node, "cardinality"); ok {
			return n
		}
	case zipped:
		return p.countZip(s)
	case concatenated:
		return p.countConcatenate(s)
	case repeated:
		return p.countRepeat(s)
	case batched:
		return p.countBatch(s)
	case windowed:
		return p.countWindow(s)
	case position:
		return p.countPosition(s)
	case perElement:
		if s.node.GetOp() == "UnbatchDataset" {
			return p.countUnbatch(s)
		}
	case directed:
		return p.countDirected(s)
	case stuck:
		if s.node.GetOp() == "ScanDataset" && p.g.attr(s.node, "preserve_cardinality").GetB() {
			return p.cardinality(s.in[0])
		}
	}
	return unknown
}

func (p *planner) countSource(n *tf.NodeDef) int64 {
	switch n.GetOp() {
	case "RangeDataset":
		start, ok1 := p.g.inputInt(n, "start")
		stop, ok2 := p.g.inputInt(n, "stop")
		step, ok3 := p.g.inputInt(n, "step")
		switch {
		case !ok1 || !ok2 || !ok3 || step == 0:
			return unknown
		case step > 0 && stop == math.MaxInt64:
			// tf.data's word for "no end"; enumerate() counts so.
			return infinite
		}
		return rangeCount(start, stop, step)
	case "TensorSliceDataset":
		if len(n.GetInput()) == 0 {
			return unknown
		}
		name, _, _ := splitInput(n.GetInput()[0])
		if dims := constTensor(p.g.nodes[name]).GetTensorShape().GetDim(); len(dims) > 0 {
			return dims[0].GetSize()
		}
	case "TensorDataset":
		return 1
	case "RandomDataset", "RandomDatasetV2", "ExperimentalRandomDataset":
		return infinite
	}
	return unknown
}

func rangeCount(start, stop, step int64) int64 {
	if (step > 0 && start >= stop) || (step < 0 && start <= stop) {
		return 0
	}
	// Unsigned arithmetic: the distance may exceed the largest signed number.
	distance, stride := uint64(stop)-uint64(start), uint64(step)
	if step < 0 {
		distance, stride = uint64(start)-uint64(stop), -uint64(step)
	}
	n := (distance-1)/stride + 1
	if n > math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(n)
}

func (p *planner) countZip(s *step) int64 {
	least := infinite
	for _, in := range s.in {
		n := p.cardinality(in)
		if n == unknown {
			return unknown
		}
		if n != infinite && (least == infinite || n < least) {
			least = n
		}
	}
	return least
}

func (p *planner) countConcatenate(s *step) int64 {
	a, b := p.cardinality(s.in[0]), p.cardinality(s.in[1])
	switch {
	case a == infinite || b == infinite:
		return infinite
	case a == unknown || b == unknown || a > math.MaxInt64-b:
		return unknown
	}
	return a + b
}

func (p *planner) countRepeat(s *step) int64 {
	times, ok := p.g.inputInt(s.node, "count")
	n := p.cardinality(s.in[0])
	switch {
	case !ok:
		return unknown
	case times == 0 || n == 0:
		return 0
	case times < 0 || n == infinite:
		return infinite
	case n == unknown || n > math.MaxInt64/times:
		return unknown
	}
	return n * times
}

func (p *planner) countBatch(s *step) int64 {
	n := p.cardinality(s.in[0])
	size, ok := p.g.inputInt(s.node, "batch_size")
	switch {
	case n < 0:
		return n
	case !ok || size < 1:
		return unknown
	}
	if p.drops(s.node) {
		return n / size
	}
	return n/size + boolInt(n%size > 0)
}

func boolInt(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// drops tells whether a grouping op leaves out a short last group.
func (p *planner) drops(n *tf.NodeDef) bool {
	v, ok := p.g.inputInt(n, "drop_remainder")
	return ok && v != 0
}

func (p *planner) countWindow(s *step) int64 {
	n := p.cardinality(s.in[0])
	size, ok1 := p.g.inputInt(s.node, "size")
	shift, ok2 := p.g.inputInt(s.node, "shift")
	stride, ok3 := p.g.inputInt(s.node, "stride")
	switch {
	case n < 0:
		return n
	case !ok1 || !ok2 || !ok3 || size < 1 || shift < 1 || stride < 1:
		return unknown
	}
	if !p.drops(s.node) {
		return n/shift + boolInt(n%shift > 0)
	}
	if size-1 > (math.MaxInt64-1)/stride {
		return 0
	}
	span := (size-1)*stride + 1
	if n < span {
		return 0
	}
	return (n-span)/shift + 1
}

func (p *planner) countPosition(s *step) int64 {
	n := p.cardinality(s.in[0])
	switch s.node.GetOp() {
	case "TakeDataset":
		return p.countTake(s, n)
	case "SkipDataset":
		k, ok := p.g.inputInt(s.node, "count")
		switch {
		case !ok:
			return unknown
		case k < 0:
			return 0
		case n < 0:
			return n
		}
		return max(0, n-k)
	case "ShardDataset":
		shards, ok1 := p.g.inputInt(s.node, "num_shards")
		index, ok2 := p.g.inputInt(s.node, "index")
		switch {
		case n < 0:
			return n
		case !ok1 || !ok2 || shards < 1:
			return unknown
		}
		return n/shards + boolInt(index < n%shards)
	}
	return unknown
}

func (p *planner) countTake(s *step, n int64) int64 {
	k, ok := p.g.inputInt(s.node, "count")
	switch {
	case !ok || n == unknown:
		return unknown
	case k < 0:
		return n
	case n == infinite:
		return k
	}
	return min(n, k)
}

func (p *planner) countUnbatch(s *step) int64 {
	n := p.cardinality(s.in[0])
	if n < 0 {
		return n
	}
	for _, shape := range p.g.outputShapes(s.in[0].like) {
		if dims := shape.GetDim(); len(dims) > 0 && dims[0].GetSize() > 0 && n <= math.MaxInt64/dims[0].GetSize() {
			return n * dims[0].GetSize()
		}
	}
	return unknown
}

// countDirected knows only what tf.data's rule promises whatever the selector does.
func (p *planner) countDirected(s *step) int64 {
	for _, in := range s.in {
		if p.cardinality(in) != infinite {
			return unknown
		}
	}
	return infinite
}

// endless tells whether a step may give elements for ever; it sees through filters, where counting cannot.
func (p *planner) endless(s *step) bool {
	if known, ok := p.ends[s]; ok {
		return known
	}
	p.ends[s] = p.mayNotEnd(s)
	return p.ends[s]
}

func (p *planner) mayNotEnd(s *step) bool {
	if n := p.cardinality(s); n != unknown {
		return n == infinite || n > 1<<60
	}
	switch s.rule.kind {
	case source:
		return false
	case position:
		k, ok := p.g.inputInt(s.node, "count")
		if s.node.GetOp() == "TakeDataset" && ok && k >= 0 {
			return false
		}
		return p.endless(s.in[0])
	case zipped:
		for _, in := range s.in {
			if !p.endless(in) {
				return false
			}
		}
		return true
	case concatenated:
		return p.endless(s.in[0]) || p.endless(s.in[1])
	case repeated:
		k, ok := p.g.inputInt(s.node, "count")
		return !ok || k < 0 || p.endless(s.in[0])
	case directed:
		if p.g.attr(s.node, "stop_on_empty_dataset").GetB() {
			return p.allEndless(s.in)
		}
		return p.endless(s.in[0]) && p.anyEndless(s.in[1:])
	case perElement:
		return p.endless(s.in[0]) || p.facts(s).endless
	case stuck:
		if s.node.GetOp() == "TakeWhileDataset" || s.node.GetOp() == "GroupByReducerDataset" {
			return false
		}
	}
	return p.anyEndless(s.in)
}

func (p *planner) anyEndless(steps []*step) bool {
	for _, s := range steps {
		if p.endless(s) {
			return true
		}
	}
	return false
}

func (p *planner) allEndless(steps []*step) bool {
	for _, s := range steps {
		if !p.endless(s) {
			return false
		}
	}
	return true
}
