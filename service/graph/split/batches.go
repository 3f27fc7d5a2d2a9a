package split

import (
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// BatchStrategy says how batches stay whole if the cut divides the elements of a batch among streams.
type BatchStrategy int

const (
	ExactBatches BatchStrategy = iota
	RemainderBatches
	closingBatches
)

// joinedDivision cuts upstream of a batch whose number of rows is not known beforehand. It returns false if
// there is no such batch, or if its remainders cannot be moved to another stream.
func (p *Planner) joinedDivision(root *graph.Step, cutWithinFiles bool) (d Division, ok bool) {
	d.Strategy = RemainderBatches
	s := root
	for ; s.Rule.Kind != ops.Batched && s.Rule.Kind != ops.Rebatched; s = s.In[0] {
		switch s.Rule.Kind {
		case ops.PassThrough, ops.Asserted:
		case ops.OneToOne, ops.PerElement, ops.Shuffled, ops.Cached:
			if p.Facts(s).Endless || s.Node.GetOp() == "SnapshotDatasetV2" {
				return Division{}, false
			}
			d.Strategy = closingBatches
		default:
			return Division{}, false
		}
	}
	if !p.canJoinRemainders(s) {
		return Division{}, false
	}
	d.Batch = s
	under := needElements
	if s.Rule.Kind == ops.Rebatched {
		under = needRows
	}
	d.edgeSet = p.divide(s.In[0], under, 1, cutWithinFiles)
	return d.indexed(), true
}

// batchRows is the number of rows of a full batch of a grouping step.
func (p *Planner) batchRows(s *graph.Step) (int64, bool) {
	if s.Rule.Kind == ops.Rebatched {
		sizes, ok := nodedef.Ints(p.g.Input(s.Node, "batch_sizes"))
		if !ok || len(sizes) != 1 {
			return 0, false
		}
		return sizes[0], true
	}
	return p.g.InputInt(s.Node, "batch_size")
}

// canJoinRemainders reports whether the rows of a short batch can be unbatched, moved and batched again with
// no visible difference. Objects, and padding that depends on neighbouring rows, rule it out.
func (p *Planner) canJoinRemainders(s *graph.Step) bool {
	if rows, ok := p.batchRows(s); !ok || rows < 1 {
		return false
	}
	for _, t := range p.g.OutputTypes(s.Node) {
		if t == tf.DataType_DT_VARIANT || t == tf.DataType_DT_RESOURCE {
			return false
		}
	}
	return p.rowsIndependent(s)
}

// rowsIndependent reports whether a row is the same whichever rows are batched with it. Padding to the
// longest row makes it depend on them.
func (p *Planner) rowsIndependent(s *graph.Step) bool {
	switch s.Node.GetOp() {
	case "BatchDataset", "BatchDatasetV2", "ParallelBatchDataset", "RebatchDatasetV2":
		return true
	case "PaddedBatchDataset", "PaddedBatchDatasetV2":
		at := p.g.InputIndex(s.Node, "padded_shapes")
		if int(p.g.Attr(s.Node, "N").GetI()) != len(p.g.OutputTypes(s.Node)) {
			return false
		}
		for i := range p.g.OutputTypes(s.Node) {
			name, _, _ := nodedef.SplitInput(s.Node.GetInput()[at+i])
			dims, ok := nodedef.Ints(p.g.Node(name))
			if !ok {
				return false
			}
			for _, d := range dims {
				if d < 0 {
					return false
				}
			}
		}
		return true
	}
	return false
}
