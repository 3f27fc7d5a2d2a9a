package order

import (
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
)

// authorBarrier is the reason of barriers that pecan.keep_position sets.
const authorBarrier = "its author fixed its position with pecan.keep_position"

// barrierFunctions finds the functions that pecan.keep_position marks, and their callers.
func barrierFunctions(g *graph.Graph) map[string]bool {
	marked := map[string]bool{}
	for name, f := range g.Functions() {
		if graph.KeepsPosition(f) {
			marked[name] = true
		}
	}
	for before := 0; before < len(marked); {
		before = len(marked)
		for name, f := range g.Functions() {
			for _, n := range f.GetNodeDef() {
				if callsAny(n, marked) {
					marked[name] = true
				}
			}
		}
	}
	return marked
}

func callsAny(n *tf.NodeDef, functions map[string]bool) bool {
	for _, called := range nodedef.CalledFunctions(n) {
		if functions[called] {
			return true
		}
	}
	return false
}

// barriers finds the steps upstream of a root whose position the author fixed, with the result of barrierFunctions. The marks of
// pecan.keep_position_of, which enclose such steps, are barriers too. enclosed are the steps between marks, and the marks.
func barriers(g *graph.Graph, root *graph.Step, functions map[string]bool) (fixed, enclosed map[*graph.Step]bool) {
	fixed, enclosed = map[*graph.Step]bool{}, map[*graph.Step]bool{}
	var visit func(s *graph.Step, within int)
	visit = func(s *graph.Step, within int) {
		mark := g.MarkOf(s.Node)
		if mark == graph.KeepPositionEnd {
			within++
		}
		enclosed[s] = within > 0 || mark == graph.KeepPositionBegin
		fixed[s] = enclosed[s] || callsAny(s.Node, functions)
		if mark == graph.KeepPositionBegin {
			within = max(0, within-1)
		}
		for _, in := range s.In {
			visit(in, within)
		}
	}
	visit(root, 0)
	return fixed, enclosed
}
