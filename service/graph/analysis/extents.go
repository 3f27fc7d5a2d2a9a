package analysis

import (
	"math"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// ExtentReader is the prefix of the names of the functions that read the records of one extent of a file. The name
// means nothing: Extents looks at what the function does.
const ExtentReader = "pecan_extents_"

// Extents returns the number of records in an extent, and in all extents that a step reads. ok is false if the step
// reads no extents one after the other, or if the extents do not end at multiples of one number.
func (a *Analysis) Extents(s *graph.Step) (each, total int64, ok bool) {
	each, total, starts := a.extentBlocks(s)
	return each, total, starts != nil
}

// ExtentBlocks returns the first extent of each block of extents, which has as many records as Extents says. It returns nil
// if each extent is such a block.
func (a *Analysis) ExtentBlocks(s *graph.Step) []int64 {
	_, _, starts := a.extentBlocks(s)
	for i, first := range starts {
		if first != int64(i) {
			return starts
		}
	}
	return nil
}

// extentBlocks divides the records of a list of extents into blocks of equal size. each is the number of records of a block,
// total is the number of all records, and starts has the first extent of each block. It returns no starts if extents do not
// begin at the bounds of blocks.
func (a *Analysis) extentBlocks(s *graph.Step) (each, total int64, starts []int64) {
	counts := a.extentCounts(s)
	if len(counts) == 0 || a.listOfExtents(s) != s.In[0] || s.Node.GetOp() != "FlatMapDataset" {
		return 0, 0, nil
	}
	most, even := int64(0), true
	for i, n := range counts {
		if n < 1 && len(counts) > 1 || n < 0 || total > math.MaxInt64-n {
			return 0, 0, nil
		}
		total, most = total+n, max(most, n)
		even = even && (n == counts[0] || i == len(counts)-1 && n < counts[0])
	}
	if each = counts[0]; even && each > 0 {
		for i := range counts {
			starts = append(starts, int64(i))
		}
		return each, total, starts
	}
	for each = 1; each < most; each *= 2 {
	}
	for ; each < total; each *= 2 {
		starts = starts[:0]
		at := int64(0)
		for i, n := range counts {
			if at%each == 0 {
				starts = append(starts, int64(i))
			} else if at/each != (at+n-1)/each {
				starts = nil
				break
			}
			at += n
		}
		if starts != nil {
			return each, total, starts
		}
	}
	return 0, 0, nil
}

// extentCounts returns the number of records of each extent that a step reads, nil if it reads none or they are not
// known.
func (a *Analysis) extentCounts(s *graph.Step) []int64 {
	if !a.ReadsExtents(s) {
		return nil
	}
	counts, _ := nodedef.Ints(a.g.Node(nodedef.InputNode(a.listOfExtents(s).Node.GetInput()[2])))
	return counts
}

// recordsOfExtents is the number of records in all extents that a step reads, Unknown if it reads none.
func (a *Analysis) recordsOfExtents(s *graph.Step) int64 {
	counts := a.extentCounts(s)
	if counts == nil {
		return Unknown
	}
	total := int64(0)
	for _, n := range counts {
		if n < 0 || total > math.MaxInt64-n {
			return Unknown
		}
		total += n
	}
	return total
}

// ReadsExtents reports whether a step opens extents of files, which a constant lists. Its function asserts the number
// of the records of each extent, so the list determines where each record is.
func (a *Analysis) ReadsExtents(s *graph.Step) bool {
	return (s.Node.GetOp() == "FlatMapDataset" || s.Rule.Mixes) && len(s.In) == 1 && a.listOfExtents(s) != nil &&
		a.assertsThirdArgument(a.g.Attr(s.Node, "f").GetFunc().GetName()) && a.Facts(s).ReadsFiles
}

// listOfExtents returns the list of the extents that a step opens, perhaps in another order, and nil if there is none.
func (a *Analysis) listOfExtents(s *graph.Step) *graph.Step {
	for at := s.In[0]; ; at = at.In[0] {
		switch {
		case a.listsExtents(at):
			return at
		case len(at.In) != 1 || at.Rule.Kind != ops.Shuffled && at.Rule.Kind != ops.PassThrough || a.g.Freezes(at.Node):
			return nil
		}
	}
}

// listsExtents reports whether the elements of a source are names, offsets and numbers of records.
func (a *Analysis) listsExtents(s *graph.Step) bool {
	types := a.g.OutputTypes(s.Node)
	return s.Node.GetOp() == "TensorSliceDataset" && len(s.Node.GetInput()) == 3 && len(types) == 3 &&
		types[0] == tf.DataType_DT_STRING && types[1] == tf.DataType_DT_INT64 && types[2] == tf.DataType_DT_INT64
}

// assertsThirdArgument reports whether a function returns a dataset with as many elements as its third argument says.
func (a *Analysis) assertsThirdArgument(name string) bool {
	f := a.g.Function(name)
	args, outputs := f.GetSignature().GetInputArg(), f.GetSignature().GetOutputArg()
	if len(args) != 3 || len(outputs) != 1 {
		return false
	}
	nodes := map[string]*tf.NodeDef{}
	for _, n := range f.GetNodeDef() {
		nodes[n.GetName()] = n
	}
	at := nodes[nodedef.InputNode(f.GetRet()[outputs[0].GetName()])]
	for steps := 0; at.GetOp() == "Identity" && steps <= len(nodes); steps++ {
		at = nodes[nodedef.InputNode(at.GetInput()[0])]
	}
	return at.GetOp() == "AssertCardinalityDataset" && len(at.GetInput()) > 1 && at.GetInput()[1] == args[2].GetName()
}
