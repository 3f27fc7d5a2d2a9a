package order

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
)

// divide returns the part of an order outside of functions, and that of each function. The steps of a function are next to
// each other, before the step that calls it, which does not move.
func (c *chain) divide(order []string, inside string) (own []string, bodies map[*graph.Step][]string, err error) {
	bodies = map[*graph.Step][]string{}
	for _, s := range c.steps {
		if body := c.bodies[s]; body != nil {
			caller := join(inside, s.Node.GetName())
			// An order of an earlier version has no steps of functions. They keep their places.
			bodies[s] = body.names(caller)
			if len(order) > 0 && strings.HasPrefix(order[0], join(caller, "")) {
				count := min(len(bodies[s]), len(order))
				bodies[s], order = order[:count], order[count:]
			}
		}
		if len(order) == 0 {
			break
		}
		name, isInside := strings.CutPrefix(order[0], join(inside, ""))
		if !isInside {
			return nil, nil, fmt.Errorf("step %s is not in the function of step %s: no step leaves its function", nodedef.Quote(order[0]), nodedef.Quote(inside))
		}
		own, order = append(own, name), order[1:]
	}
	return append(own, order...), bodies, nil
}

// reorderBody gives a step a function whose steps are in another order. caller is the full name of the step.
func (r *reordering) reorderBody(body *chain, order []string, s *graph.Step, caller string) error {
	if body == nil || slices.Equal(order, body.names(caller)) {
		return nil
	}
	o, err := body.reorder(order, caller)
	if err != nil {
		return err
	}
	name := body.function + nodedef.CloneInfix + nodedef.ShortHash(append(slices.Clone(order), "order")...)
	r.funcs = append(append(r.funcs, o.funcs...), o.function(r.g.Function(body.function), name))
	maps.Copy(r.types.funcs, o.types.funcs)
	nodedef.RenameCalls(r.nodes[s.Node.GetName()], body.function, name)
	return nil
}

// function returns a copy of the function of a body, in the new order.
func (r *reordering) function(original *tf.FunctionDef, name string) *tf.FunctionDef {
	f := nodedef.CopySignature(original)
	f.Signature, f.Ret = nodedef.RenameSignature(original.GetSignature(), name), maps.Clone(original.GetRet())
	const output = ":handle:0"
	last, now := r.g.Root().GetName()+output, r.placed[len(r.placed)-1].Node.GetName()+output
	for _, n := range original.GetNodeDef() {
		c := nodedef.Copy(n)
		if moved := r.nodes[n.GetName()]; moved != nil {
			c.Attr = moved.Attr
			for i, input := range moved.GetInput() {
				if input != r.g.Node(n.GetName()).GetInput()[i] {
					c.Input[i] = input + output
				}
			}
		} else if at := slices.Index(c.Input, last); at >= 0 {
			c.Input[at] = now
		}
		f.NodeDef = append(f.NodeDef, c)
	}
	for result, from := range f.GetRet() {
		if from == last {
			f.Ret[result] = now
		}
	}
	return f
}
