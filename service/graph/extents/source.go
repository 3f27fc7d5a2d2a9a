package extents

import (
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/ops"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
)

// source is a step that opens the record files of a list.
type source struct {
	step, list *graph.Step
	// between are the steps between the list and the step. They change the order of the files at most.
	between []*graph.Step
	reader  *tf.FunctionDef
	names   [][]byte
	// cycle is how many files the step reads at a time. shuffled is set if a shuffle orders the files.
	cycle    int
	shuffled bool
}

// autoCycle is the cycle length of an interleave that leaves it to tf.data.
const autoCycle = 16

// sourceOf returns the source that a step is, if it opens uncompressed TFRecord files and does nothing else.
func sourceOf(g *graph.Graph, s *graph.Step) (src source, ok bool) {
	n := s.Node
	src = source{step: s, cycle: 1}
	switch {
	case n.GetOp() == "FlatMapDataset":
	case s.Rule.Mixes:
		cycle, known := g.InputInt(n, "cycle_length")
		switch {
		case !known || cycle == 0:
			return src, false
		case cycle < 0:
			cycle = autoCycle
		}
		src.cycle = int(min(cycle, maxCountedFiles))
	default:
		return src, false
	}
	if len(g.Attr(n, "Targuments").GetList().GetType()) > 0 || len(s.In) != 1 || len(s.Captured) > 0 {
		return src, false
	}
	at := s.In[0]
	for ; len(at.In) == 1; at = at.In[0] {
		switch {
		case at.Node.GetOp() == "ShuffleDatasetV3" || at.Node.GetOp() == "ShuffleDataset":
			src.shuffled = true
		case at.Node.GetOp() == "PrefetchDataset", g.CacheMarkOf(at.Node) != nil && !g.Freezes(at.Node):
		default:
			return src, false
		}
		src.between = append(src.between, at)
	}
	list := at.Node
	if list.GetOp() != "TensorSliceDataset" || len(list.GetInput()) != 1 {
		return src, false
	}
	names := g.Input(list, "components")
	src.list = at
	src.names, ok = nodedef.Strings(names)
	if !ok || len(src.names) == 0 || len(nodedef.Tensor(names).GetTensorShape().GetDim()) != 1 {
		return src, false
	}
	src.reader = recordReader(g, g.Attr(n, "f").GetFunc().GetName())
	return src, src.reader != nil
}

// inOrder reports whether the step returns the records in the order of the list.
func (s source) inOrder() bool { return len(s.names) == 1 || s.cycle == 1 && !s.shuffled }

// anyOrder reports whether the order of a step's elements decides only the order of the dataset's elements, and which
// of them make a batch.
func anyOrder(users map[*graph.Step]*graph.Step, s *graph.Step) bool {
	for s = users[s]; s != nil; s = users[s] {
		switch s.Rule.Kind {
		case ops.OneToOne, ops.PassThrough, ops.PerElement, ops.Shuffled, ops.Batched, ops.Repeated, ops.Cached, ops.Asserted:
		default:
			return false
		}
	}
	return true
}
