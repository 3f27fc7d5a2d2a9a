package rewrite

import (
	"math"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// startAt makes the graph of a stream begin at an index.
func (e *editor) startAt(root *graph.Step, index uint64) {
	if index == 0 {
		return
	}
	e.p.VisitSkips(root, e.plan.division, e.ordered(), 1, func(s *graph.Step, more int64, rests bool) {
		n := int64(min(index, math.MaxInt64))
		if n > math.MaxInt64/more {
			n = math.MaxInt64
		} else {
			n *= more
		}
		e.index.skipped[s] = n
		if rests {
			e.skips[s] = n
			return
		}
		e.skippedUpstream[s] = true
		e.lowerCount(s, n)
	})
}

// lowerCount lowers the count of a step that counts its elements by the n skipped ones.
func (e *editor) lowerCount(s *graph.Step, n int64) {
	arg := ""
	switch {
	case s.Node.GetOp() == "TakeDataset" && s.Rule.Kind == ops.Positional:
		arg = "count"
	case s.Rule.Kind == ops.Asserted:
		arg = "cardinality"
	default:
		return
	}
	if count, ok := e.g.InputInt(s.Node, arg); ok && count >= 0 {
		e.SetInput(s.Node.GetName(), arg, e.AddInt(startPrefix+s.Node.GetName()+"/"+arg, max(0, count-n)))
	}
}

// startPrefix begins the names of the nodes that skip elements. The name of the node upstream follows.
const startPrefix = "pecan_start/"

// skip adds the skip of the stream's first elements after a step, if the skip belongs there.
func (e *editor) skip(s *graph.Step, input string) string {
	n := e.skips[s]
	if n == 0 {
		return input
	}
	prefix := startPrefix + s.Node.GetName()
	types, shapes := e.outputOf(s)
	return e.Add(&tf.NodeDef{Name: prefix + "/skip", Op: "SkipDataset",
		Input: []string{input, e.AddInt(prefix+"/first", n)}, Attr: nodedef.DatasetAttrs(types, shapes)})
}
