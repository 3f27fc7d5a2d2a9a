package graph

import (
	"strings"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
)

// kind is how a dataset op behaves when the source below it is divided.
type kind int

const (
	// stuck: what it gives depends on the elements before, so the cut is above it.
	stuck kind = iota
	// source: reads no other dataset.
	source
	// oneToOne: element p of the output is made of element p of the input.
	oneToOne
	// pass: gives its input unchanged (prefetch, options).
	pass
	// perElement: each input element gives zero or more outputs (filter, flat_map, interleave, unbatch).
	perElement
	// shuffled: the same elements in another order.
	shuffled
	zipped
	concatenated
	repeated
	// batched: groups consecutive elements.
	batched
	// rebatched: groups rows again, whatever the batches below were.
	rebatched
	windowed
	// position: take, skip, shard.
	position
	cached
	// asserted: assert_cardinality.
	asserted
	// directed: picks its inputs by a selector.
	directed
)

// rule is one line of the table in docs/design: how an op behaves, and what it costs to run it in every stream.
type rule struct {
	kind kind
	// cost of reading from a source: 0 for what is computed from an index, 2 for records of files.
	cost int
	// mixes: the order of outputs depends on several inputs at once (interleave).
	mixes bool
}

var rules = map[string]rule{
	"RangeDataset": {kind: source}, "TensorSliceDataset": {kind: source}, "TensorDataset": {kind: source},
	"SparseTensorSliceDataset": {kind: source}, "RandomDataset": {kind: source}, "RandomDatasetV2": {kind: source},
	"ListDataset":     {kind: source},
	"TFRecordDataset": {kind: source, cost: 2}, "TFRecordDatasetV2": {kind: source, cost: 2},
	"TextLineDataset": {kind: source, cost: 2}, "FixedLengthRecordDataset": {kind: source, cost: 2},
	"FixedLengthRecordDatasetV2": {kind: source, cost: 2}, "CSVDataset": {kind: source, cost: 2},
	"CSVDatasetV2": {kind: source, cost: 2}, "SqlDataset": {kind: source, cost: 2}, "LMDBDataset": {kind: source, cost: 2},
	"MatchingFilesDataset": {kind: source, cost: 2}, "LoadDataset": {kind: source, cost: 3},

	"MapDataset": {kind: oneToOne}, "ParallelMapDataset": {kind: oneToOne}, "ParallelMapDatasetV2": {kind: oneToOne},
	"ParseExampleDataset": {kind: oneToOne}, "ParseExampleDatasetV2": {kind: oneToOne},

	"PrefetchDataset": {kind: pass}, "OptionsDataset": {kind: pass}, "ModelDataset": {kind: pass},
	"OptimizeDataset": {kind: pass}, "OptimizeDatasetV2": {kind: pass}, "FinalizeDataset": {kind: pass},
	"MaxIntraOpParallelismDataset": {kind: pass}, "PrivateThreadPoolDataset": {kind: pass},
	"LatencyStatsDataset": {kind: pass}, "BytesProducedStatsDataset": {kind: pass}, "SleepDataset": {kind: pass},

	"FilterDataset": {kind: perElement}, "ParallelFilterDataset": {kind: perElement},
	"FlatMapDataset": {kind: perElement}, "UnbatchDataset": {kind: perElement}, "IgnoreErrorsDataset": {kind: perElement},
	"SamplingDataset":   {kind: perElement},
	"InterleaveDataset": {kind: perElement, mixes: true}, "ParallelInterleaveDataset": {kind: perElement, mixes: true},
	"ParallelInterleaveDatasetV2":       {kind: perElement, mixes: true},
	"ParallelInterleaveDatasetV3":       {kind: perElement, mixes: true},
	"ParallelInterleaveDatasetV4":       {kind: perElement, mixes: true},
	"LegacyParallelInterleaveDatasetV2": {kind: perElement, mixes: true},

	"ShuffleDataset": {kind: shuffled}, "ShuffleDatasetV2": {kind: shuffled}, "ShuffleDatasetV3": {kind: shuffled},
	"SnapshotDatasetV2": {kind: shuffled},

	"ZipDataset": {kind: zipped}, "ConcatenateDataset": {kind: concatenated}, "RepeatDataset": {kind: repeated},
	"DirectedInterleaveDataset": {kind: directed},

	"BatchDataset": {kind: batched}, "BatchDatasetV2": {kind: batched}, "ParallelBatchDataset": {kind: batched},
	"PaddedBatchDataset": {kind: batched}, "PaddedBatchDatasetV2": {kind: batched}, "MapAndBatchDataset": {kind: batched},
	"DenseToSparseBatchDataset": {kind: batched}, "RebatchDatasetV2": {kind: rebatched}, "WindowDataset": {kind: windowed},

	"TakeDataset": {kind: position}, "SkipDataset": {kind: position}, "ShardDataset": {kind: position},
	"CacheDataset": {kind: cached}, "CacheDatasetV2": {kind: cached}, "AssertCardinalityDataset": {kind: asserted},
}

// ruleOf gives the rule of a node. What the table does not know, or what this node's attributes make special, is bound.
func (g *Graph) ruleOf(n *tf.NodeDef) rule {
	r, ok := rules[strings.TrimPrefix(n.GetOp(), "Experimental")]
	if !ok {
		return rule{kind: stuck}
	}
	if r.kind == oneToOne && attrDef(g.ops.byName[n.GetOp()], "preserve_cardinality") != nil && !g.attr(n, "preserve_cardinality").GetB() {
		return rule{kind: stuck}
	}
	return r
}

// step is one dataset of the pipeline, seen as a node of a tree whose root is the result. Steps are rewired while a
// plan is sought; the nodes below them stay as they were parsed.
type step struct {
	node *tf.NodeDef
	rule rule
	// in are the datasets it reads, inAt where they stand among the node's inputs.
	in   []*step
	inAt []int
	// captured are datasets that its functions use.
	captured []*step
	// like gives the components of the output; a step that sank below others takes those of its new input.
	like *tf.NodeDef
}

var datasetArgs = wordSet(`input_dataset input_datasets another_dataset selector_input_dataset data_input_datasets inputs`)

// tree builds the steps of the graph. Without a tree (a dataset node with two users) ok is false.
func (g *Graph) tree() (root *step, ok bool) {
	users := map[string]int{}
	for _, n := range g.order {
		for _, input := range n.GetInput() {
			if name, _, control := splitInput(input); !control && g.ops.isDataset(g.nodes[name].GetOp()) {
				users[name]++
			}
		}
	}
	ok = true
	steps := map[string]*step{}
	for _, n := range g.order {
		if !g.ops.isDataset(n.GetOp()) {
			continue
		}
		if users[n.GetName()] > 1 {
			ok = false
		}
		steps[n.GetName()] = g.newStep(n, steps)
	}
	return steps[g.root.GetName()], ok
}

func (g *Graph) newStep(n *tf.NodeDef, steps map[string]*step) *step {
	s := &step{node: n, rule: g.ruleOf(n), like: n}
	at := 0
	for _, arg := range g.ops.byName[n.GetOp()].GetInputArg() {
		size, _ := g.argSize(arg, n)
		for i := at; i < at+size; i++ {
			name, _, _ := splitInput(n.GetInput()[i])
			from := steps[name]
			switch {
			case from == nil:
			case datasetArgs[arg.GetName()]:
				s.in = append(s.in, from)
				s.inAt = append(s.inAt, i)
			default:
				s.captured = append(s.captured, from)
			}
		}
		at += size
	}
	if s.rule.kind != source && len(s.in) == 0 {
		s.rule = rule{kind: source, cost: 3}
	}
	// take(-1), skip(0) and repeat(1) change nothing; people use them to hang a name on a step.
	count, ok := g.inputInt(n, "count")
	switch op := n.GetOp(); {
	case !ok:
	case op == "TakeDataset" && count < 0, op == "SkipDataset" && count == 0, op == "RepeatDataset" && count == 1:
		s.rule = rule{kind: pass}
	}
	return s
}

// input gives the node that feeds an argument of a step, nil when the argument is not there.
func (g *Graph) input(n *tf.NodeDef, arg string) *tf.NodeDef {
	i := g.inputIndex(n, arg)
	if i < 0 || i >= len(n.GetInput()) {
		return nil
	}
	name, _, _ := splitInput(n.GetInput()[i])
	return g.nodes[name]
}

func (g *Graph) inputIndex(n *tf.NodeDef, arg string) int {
	at := 0
	for _, a := range g.ops.byName[n.GetOp()].GetInputArg() {
		if a.GetName() == arg {
			return at
		}
		size, _ := g.argSize(a, n)
		at += size
	}
	return -1
}

func (g *Graph) inputInt(n *tf.NodeDef, arg string) (int64, bool) { return constInt(g.input(n, arg)) }

// walk visits a step and everything below it, captured datasets included.
func (s *step) walk(visit func(*step)) {
	visit(s)
	for _, in := range s.in {
		in.walk(visit)
	}
	for _, c := range s.captured {
		c.walk(visit)
	}
}
