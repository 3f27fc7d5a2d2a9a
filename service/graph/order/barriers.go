package order

import (
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
)

// authorBarrier is the reason that is given for the steps that pecan.keep_position holds.
const authorBarrier = "its author keeps it where it is"

// barrierFunctions finds the functions that have the mark, or call one that has.
func barrierFunctions(g *graph.Graph) map[string]bool {
	held := map[string]bool{}
	for name, f := range g.Functions() {
		if graph.KeepsPosition(f) {
			held[name] = true
		}
	}
	for before := 0; before < len(held); {
		before = len(held)
		for name, f := range g.Functions() {
			for _, n := range f.GetNodeDef() {
				if callsAny(n, held) {
					held[name] = true
				}
			}
		}
	}
	return held
}

func callsAny(n *tf.NodeDef, functions map[string]bool) bool {
	for _, called := range nodedef.CalledFunctions(n) {
		if functions[called] {
			return true
		}
	}
	return false
}

// barriers finds the steps from a root on that their author keeps where they are, the marks around them among them.
func barriers(g *graph.Graph, root *graph.Step) map[*graph.Step]bool {
	functions := barrierFunctions(g)
	held := map[*graph.Step]bool{}
	within := 0
	for s := root; ; s = s.In[0] {
		mark := g.MarkOf(s.Node)
		if mark == graph.KeepPositionEnd {
			within++
		}
		if within > 0 || mark == graph.KeepPositionBegin || callsAny(s.Node, functions) {
			held[s] = true
		}
		if mark == graph.KeepPositionBegin {
			within = max(0, within-1)
		}
		if len(s.In) != 1 {
			return held
		}
	}
}
