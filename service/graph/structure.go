package graph

import (
	"strconv"
	"strings"

	"github.com/pecan-ml/pecan/proto/reason"
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
)

// checkNodes compares each top-level node with the definition of its op: attributes, number of inputs, and
// whether the inputs exist.
func (g *Graph) checkNodes() error {
	for _, n := range g.def.Node {
		if err := g.checkAttrs(n, n.GetName(), reason.GraphStructure); err != nil {
			return err
		}
		data, controls := 0, false
		for _, input := range n.GetInput() {
			name, index, control := nodedef.SplitInput(input)
			from, ok := g.nodes[name]
			switch {
			case !ok && control:
				return reason.New(reason.GraphStructure, "node %s waits for %s, which is not in the dataset's graph", nodedef.Quote(n.GetName()), nodedef.Quote(name))
			case !ok:
				return reason.New(reason.GraphStructure, "node %s takes %s, which is not in the dataset's graph", nodedef.Quote(n.GetName()), nodedef.Quote(input))
			case control:
				controls = true
				continue
			case controls:
				return reason.New(reason.GraphStructure, "node %s has the input %s after a control input", nodedef.Quote(n.GetName()), nodedef.Quote(input))
			}
			data++
			if err := g.checkOutputIndex(n, from, index); err != nil {
				return err
			}
		}
		if want, ok := g.inputCount(n); !ok || want != data {
			return reason.New(reason.GraphStructure, "node %s is a %s with %d inputs, but its attributes require %d", nodedef.Quote(n.GetName()), n.GetOp(), data, want)
		}
	}
	return nil
}

func (g *Graph) checkOutputIndex(n, from *tf.NodeDef, index string) error {
	i := 0
	if index != "" {
		parsed, err := strconv.Atoi(index)
		if err != nil || parsed < 0 {
			return reason.New(reason.GraphStructure, "node %s takes output %s of %s, which is not a number", nodedef.Quote(n.GetName()), nodedef.Quote(index), nodedef.Quote(from.GetName()))
		}
		i = parsed
	}
	have, ok := g.argCount(g.ops.Def(from.GetOp()).GetOutputArg(), from)
	if !ok || i >= have {
		return reason.New(reason.GraphStructure, "node %s takes output %d of %s (%s), which has %d", nodedef.Quote(n.GetName()), i, nodedef.Quote(from.GetName()), from.GetOp(), have)
	}
	return nil
}

func (g *Graph) inputCount(n *tf.NodeDef) (int, bool) {
	return g.argCount(g.ops.Def(n.GetOp()).GetInputArg(), n)
}

// argCount is the number of tensors that a list of arguments has on one node.
func (g *Graph) argCount(args []*tf.OpDef_ArgDef, n *tf.NodeDef) (int, bool) {
	total := 0
	for _, arg := range args {
		count, ok := g.ArgSize(arg, n)
		if !ok {
			return total, false
		}
		total += count
	}
	return total, true
}

// ArgSize is the number of inputs of an argument. It returns false if the node's attributes do not determine
// it.
func (g *Graph) ArgSize(arg *tf.OpDef_ArgDef, n *tf.NodeDef) (int, bool) {
	switch {
	case arg.GetNumberAttr() != "":
		v := g.Attr(n, arg.GetNumberAttr())
		if _, ok := v.GetValue().(*tf.AttrValue_I); !ok || v.GetI() < 0 || v.GetI() > int64(g.limits.MaxNodes) {
			return 0, false
		}
		return int(v.GetI()), true
	case arg.GetTypeListAttr() != "":
		v := g.Attr(n, arg.GetTypeListAttr())
		if _, ok := v.GetValue().(*tf.AttrValue_List); !ok {
			return 0, false
		}
		return len(v.GetList().GetType()), true
	}
	return 1, true
}

// checkAttrs checks that a node has every attribute that its op requires, with the right kind of value.
func (g *Graph) checkAttrs(n *tf.NodeDef, path string, why reason.Reason) error {
	for _, def := range g.ops.Def(n.GetOp()).GetAttr() {
		v, ok := n.GetAttr()[def.GetName()]
		switch {
		case !ok && def.GetDefaultValue() == nil:
			return reason.New(why, "node %s is a %s without the attribute %q", nodedef.Quote(path), n.GetOp(), def.GetName())
		case ok && !kindFits(v, def.GetType()):
			return reason.New(why, "node %s is a %s whose attribute %q is not of kind %s", nodedef.Quote(path), n.GetOp(), def.GetName(), def.GetType())
		}
	}
	return nil
}

// kindFits reports whether the value of an attribute is of the kind that the op declares.
func kindFits(v *tf.AttrValue, kind string) bool {
	if list, ok := strings.CutPrefix(kind, "list("); ok {
		l, isList := v.GetValue().(*tf.AttrValue_List)
		return isList && listFits(l.List, strings.TrimSuffix(list, ")"))
	}
	switch x := v.GetValue().(type) {
	case *tf.AttrValue_Placeholder:
		return true
	case *tf.AttrValue_S:
		return kind == "string"
	case *tf.AttrValue_I:
		return kind == "int"
	case *tf.AttrValue_F:
		return kind == "float"
	case *tf.AttrValue_B:
		return kind == "bool"
	case *tf.AttrValue_Type:
		return kind == "type"
	case *tf.AttrValue_Shape:
		return kind == "shape"
	case *tf.AttrValue_Tensor:
		return kind == "tensor"
	case *tf.AttrValue_Func:
		return kind == "func"
	case *tf.AttrValue_List:
		return kind == "" && x != nil
	}
	return false
}

func listFits(l *tf.AttrValue_ListValue, kind string) bool {
	others := map[string]int{
		"string": len(l.GetS()), "int": len(l.GetI()), "float": len(l.GetF()), "bool": len(l.GetB()),
		"type": len(l.GetType()), "shape": len(l.GetShape()), "tensor": len(l.GetTensor()), "func": len(l.GetFunc()),
	}
	for k, n := range others {
		if k != kind && n > 0 {
			return false
		}
	}
	return true
}

// findRoot finds the one result of the graph. Unused nodes are normal, because tf.data leaves some behind.
func (g *Graph) findRoot() error {
	for _, n := range g.def.Node {
		if n.GetOp() != "_Retval" {
			continue
		}
		if g.retval != nil {
			return reason.New(reason.GraphStructure, "the dataset's graph has two results (%s and %s): it must have one", nodedef.Quote(g.retval.GetName()), nodedef.Quote(n.GetName()))
		}
		g.retval = n
	}
	if g.retval == nil {
		return reason.New(reason.GraphStructure, "the dataset's graph has no result (_Retval node): send the result of dataset._as_serialized_graph()")
	}
	name, _, _ := nodedef.SplitInput(g.retval.GetInput()[0])
	g.root = g.nodes[name]
	if !g.ops.IsDataset(g.root.GetOp()) {
		return reason.New(reason.GraphStructure, "the result of the graph, node %s, is a %s and not a dataset", nodedef.Quote(name), g.root.GetOp())
	}
	return nil
}

// orderNodes sorts the whole graph, to find a cycle anywhere, and keeps the nodes that the result needs.
func (g *Graph) orderNodes() error {
	names := make([]string, len(g.def.Node))
	for i, n := range g.def.Node {
		names[i] = n.GetName()
	}
	sorted, cycle := sortNodes(names, func(name string) []string {
		inputs := g.nodes[name].GetInput()
		from := make([]string, len(inputs))
		for i, input := range inputs {
			from[i], _, _ = nodedef.SplitInput(input)
		}
		return from
	})
	if cycle != "" {
		return reason.New(reason.GraphStructure, "node %s of the dataset's graph depends on itself", nodedef.Quote(cycle))
	}
	needed := map[string]bool{g.retval.GetName(): true}
	for i := len(sorted) - 1; i >= 0; i-- {
		if !needed[sorted[i]] {
			continue
		}
		for _, input := range g.nodes[sorted[i]].GetInput() {
			name, _, _ := nodedef.SplitInput(input)
			needed[name] = true
		}
	}
	for _, name := range sorted {
		if needed[name] {
			g.order = append(g.order, g.nodes[name])
		}
	}
	return nil
}

// checkPaths bounds the number of iterators of a pipeline. There is one for each path from the result to a
// dataset. A dataset that reads its input twice doubles them. Without a bound, a small graph would occupy the
// dispatcher, and then the workers, without end.
func (g *Graph) checkPaths() error {
	steps := make(map[string]int, len(g.order))
	for _, n := range g.order {
		if !g.ops.IsDataset(n.GetOp()) {
			continue
		}
		total := 1
		for _, input := range n.GetInput() {
			if name, _, control := nodedef.SplitInput(input); !control {
				total += steps[name]
			}
		}
		if total > g.limits.MaxNodes {
			return reason.New(reason.GraphLimit, "node %s of the dataset has more than %d steps upstream of it, counting each once for every path to it: simplify the pipeline",
				nodedef.Quote(n.GetName()), g.limits.MaxNodes)
		}
		steps[n.GetName()] = total
	}
	return nil
}

// sortNodes puts inputs before users. It does not recurse, because hostile graphs are deep. If there is a
// cycle, sortNodes returns a name on it.
func sortNodes(names []string, inputs func(string) []string) (sorted []string, cycle string) {
	const unseen, open, done = 0, 1, 2
	state := make(map[string]int, len(names))
	type frame struct {
		name   string
		inputs []string
	}
	for _, start := range names {
		if state[start] != unseen {
			continue
		}
		state[start] = open
		stack := []frame{{start, inputs(start)}}
		for len(stack) > 0 {
			top := &stack[len(stack)-1]
			if len(top.inputs) == 0 {
				state[top.name] = done
				sorted = append(sorted, top.name)
				stack = stack[:len(stack)-1]
				continue
			}
			next := top.inputs[0]
			top.inputs = top.inputs[1:]
			switch state[next] {
			case open:
				return nil, next
			case unseen:
				state[next] = open
				stack = append(stack, frame{next, inputs(next)})
			}
		}
	}
	return sorted, ""
}
