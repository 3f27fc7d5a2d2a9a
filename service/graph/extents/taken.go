package extents

import (
	"math"

	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/analysis"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// Range has consecutive records of a file: from From on, below To.
type Range struct{ From, To int64 }

// Whole has all records of a file.
var Whole = Range{0, math.MaxInt64}

// usersOf maps each step to the step that reads it.
func usersOf(root *graph.Step) map[*graph.Step]*graph.Step {
	users := map[*graph.Step]*graph.Step{}
	root.Walk(func(s *graph.Step) {
		for _, in := range s.In {
			users[in] = s
		}
	})
	return users
}

// taken returns the elements of a step that are used, and the take and skip steps that decide it. Such a step may come
// after steps that give one element for each, and after batches.
func taken(g *graph.Graph, a *analysis.Analysis, users map[*graph.Step]*graph.Step, s *graph.Step) (used Range, by []*graph.Step) {
	used = Whole
	each := int64(1)
	for s = users[s]; s != nil; s = users[s] {
		count, known := g.InputInt(s.Node, "count")
		known = known && count >= 0 && count <= (math.MaxInt64-used.From)/each
		switch {
		case s.Node.GetOp() == "TakeDataset" && known:
			used.To = min(used.To, used.From+count*each)
		case s.Node.GetOp() == "SkipDataset" && known:
			used.From += count * each
		case oneForEach(g, a, s):
			continue
		case s.Rule.Kind == ops.Batched:
			size, ok := g.InputInt(s.Node, "batch_size")
			if !ok || size < 1 || each > math.MaxInt64/size {
				return used, by
			}
			each *= size
			continue
		default:
			return used, by
		}
		by = append(by, s)
	}
	return used, by
}

// positionsMatter reports whether a step downstream combines the elements of a step with others by their positions.
func positionsMatter(g *graph.Graph, a *analysis.Analysis, users map[*graph.Step]*graph.Step, s *graph.Step) bool {
	for s = users[s]; s != nil; s = users[s] {
		if s.Rule.Kind == ops.Zipped {
			return true
		}
		if !oneForEach(g, a, s) && s.Rule.Kind != ops.Batched {
			return false
		}
	}
	return false
}

// oneForEach reports whether a step may change places with a take: it gives one element for each.
func oneForEach(g *graph.Graph, a *analysis.Analysis, s *graph.Step) bool {
	return s.Rule.Kind == ops.PassThrough && !g.Freezes(s.Node) || s.Rule.Kind == ops.OneToOne && a.Facts(s).Pure()
}

// remove lets the user of a step read what the step reads. It returns the name of the root.
func remove(e *graph.Editor, users map[*graph.Step]*graph.Step, s *graph.Step, root string) string {
	name, input := s.Node.GetName(), e.Node(s.Node.GetName()).GetInput()[s.InAt[0]]
	user := users[s]
	if user == nil {
		return nodedef.InputNode(input)
	}
	n := e.Edit(user.Node.GetName())
	for i, at := range n.GetInput() {
		if nodedef.InputNode(at) == name {
			n.Input[i] = input
		}
	}
	return root
}
