package order

import (
	"strings"

	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// InFunction separates the name of a step from that of a step inside its function. No node's name has it.
const InFunction = ":"

// chain has the steps of a dataset: that of a graph, or that of the function of an interleave or flat_map.
type chain struct {
	g *graph.Graph
	// steps are in the registered order, without those in functions. fixed are those that the author keeps in place.
	steps []*graph.Step
	fixed map[*graph.Step]bool
	// bodies are the datasets of the functions of steps, if steps in them may move.
	bodies map[*graph.Step]*chain
	// function is the function whose dataset it is; "" for that of the graph.
	function string
}

// newChain returns the steps of a graph; nil if they are not a tree.
func newChain(g *graph.Graph) *chain {
	r := &reader{kept: barrierFunctions(g), nodes: g.Limits().MaxNodes}
	return r.chainOf(g, "")
}

// Names returns the steps of a dataset in their registered order, as an order has them; nil if they have no single order.
func Names(g *graph.Graph) []string {
	c := newChain(g)
	if c == nil {
		return nil
	}
	return c.names("")
}

// reader reads the steps of a dataset and of the functions that it calls.
type reader struct {
	// kept are the functions that the author marked, and those that call them.
	kept map[string]bool
	// nodes is how many nodes of functions may still be read: a graph may call functions from many places.
	nodes int
}

// chainOf returns the steps of a graph.
func (r *reader) chainOf(g *graph.Graph, function string) *chain {
	root, isTree := g.Steps()
	if !isTree {
		return nil
	}
	fixed, enclosed := barriers(g, root, r.kept)
	c := &chain{g: g, steps: sequence(root), fixed: fixed, bodies: map[*graph.Step]*chain{}, function: function}
	for _, s := range c.steps {
		if called := datasetFunction(g, s); called != "" && !enclosed[s] {
			if body := r.bodyOf(g, called); body != nil {
				c.bodies[s] = body
			}
		}
	}
	return c
}

// datasetFunction returns the function of an interleave or flat_map, which returns a dataset for each element. It returns ""
// for other steps, and if the author fixed the function.
func datasetFunction(g *graph.Graph, s *graph.Step) string {
	called := nodedef.CalledFunctions(s.Node)
	if s.Rule.Kind != ops.PerElement || ops.FunctionAttr(s.Node.GetOp()) != "f" || len(called) != 1 || graph.KeepsPosition(g.Function(called[0])) {
		return ""
	}
	return called[0]
}

// bodyOf returns the steps of a function's dataset; nil if they have one order only.
func (r *reader) bodyOf(g *graph.Graph, function string) *chain {
	if r.nodes -= len(g.Function(function).GetNodeDef()); r.nodes < 0 {
		return nil
	}
	dataset := g.Body(function)
	if dataset == nil {
		return nil
	}
	body := r.chainOf(dataset, function)
	if body == nil {
		return nil
	}
	movable := 0
	for _, s := range body.steps {
		if isMovable(s) && !body.fixed[s] {
			movable++
		}
	}
	if movable < 2 && len(body.bodies) == 0 {
		return nil
	}
	return body
}

// names are the names of all steps, with those in functions. inside is the name of the step in whose function they are.
func (c *chain) names(inside string) (names []string) {
	for _, s := range c.steps {
		name := join(inside, s.Node.GetName())
		if body := c.bodies[s]; body != nil {
			names = append(names, body.names(name)...)
		}
		names = append(names, name)
	}
	return names
}

// Outermost returns the name of the step that is in no function and whose function has the given step, directly or through
// other functions. For a step outside of functions, it returns the step's own name.
func Outermost(name string) string {
	name, _, _ = strings.Cut(name, InFunction)
	return name
}

// join returns the name of a step inside the function of another step; that step is "" outside of functions.
func join(inside, name string) string {
	if inside == "" {
		return name
	}
	return inside + InFunction + name
}

// sequence lists the steps upstream of a root and the root itself, in the registered order. Where a step joins several
// datasets, such as a zip, the steps of each branch come first, the first branch before the others. Each branch has sections
// of its own.
func sequence(root *graph.Step) []*graph.Step {
	var steps []*graph.Step
	for _, in := range root.In {
		steps = append(steps, sequence(in)...)
	}
	if len(root.In) > 0 {
		steps = append(steps, root)
	}
	return steps
}

// begins reports whether a step is the first one of a branch, or of a dataset without branches.
func begins(s *graph.Step) bool { return len(s.In) == 1 && len(s.In[0].In) == 0 }

// joins reports whether a step reads several datasets.
func joins(s *graph.Step) bool { return len(s.In) > 1 }
