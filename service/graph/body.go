package graph

import (
	"slices"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
)

const (
	// argumentOp stands for an argument in the graph of a function's body.
	argumentOp = "Placeholder"
	// bodyResult is the name of the node that marks the result of a body. No node of a function can have it.
	bodyResult = "result:"
)

// Body returns the dataset that a function returns as a graph of its own, in which arguments are placeholders. Its nodes have
// the names that they have in the function. It is nil if the function returns something else than one dataset of its own, or
// has further uses of that dataset. The graph shares the functions of g, and has no fingerprint.
func (g *Graph) Body(function string) *Graph {
	f := g.functions[function]
	if outs := f.GetSignature().GetOutputArg(); len(outs) != 1 || outs[0].GetType() != tf.DataType_DT_VARIANT {
		return nil
	}
	b := &Graph{def: &tf.GraphDef{Versions: g.def.GetVersions(), Library: g.def.GetLibrary()}, ops: g.ops, limits: g.limits, nodes: map[string]*tf.NodeDef{}, functions: g.functions}
	for _, a := range f.GetSignature().GetInputArg() {
		b.add(&tf.NodeDef{Name: a.GetName(), Op: argumentOp, Attr: map[string]*tf.AttrValue{"dtype": nodedef.TypeAttr(a.GetType())}})
	}
	originals := map[string]*tf.NodeDef{}
	for _, n := range f.GetNodeDef() {
		originals[n.GetName()] = n
	}
	for _, n := range f.GetNodeDef() {
		c := nodedef.Copy(n)
		for i, input := range c.GetInput() {
			if c.Input[i] = nodedef.TopLevelInput(input, func(name, output string) int { return g.firstOf(originals[name], output) }); c.Input[i] == "" {
				return nil
			}
		}
		b.add(c)
	}
	result := nodedef.InputNode(f.GetRet()[f.GetSignature().GetOutputArg()[0].GetName()])
	b.retval = &tf.NodeDef{Name: bodyResult, Op: "_Retval", Input: []string{result}}
	b.add(b.retval)
	for b.root = b.nodes[result]; b.root.GetOp() == "Identity"; {
		b.root = b.NodeOf(b.root.GetInput()[0])
	}
	if !g.ops.IsDataset(b.root.GetOp()) || b.orderNodes() != nil || b.usedBeside() {
		return nil
	}
	return b
}

func (g *Graph) add(n *tf.NodeDef) {
	g.def.Node = append(g.def.Node, n)
	g.nodes[n.GetName()] = n
}

// firstOf returns the number of the first result of an output of a node, among all its results; -1 if it is not known.
func (g *Graph) firstOf(n *tf.NodeDef, output string) int {
	first := 0
	for _, out := range g.ops.Def(n.GetOp()).GetOutputArg() {
		if out.GetName() == output {
			return first
		}
		size, known := g.ArgSize(out, n)
		if !known {
			break
		}
		first += size
	}
	return -1
}

// usedBeside reports whether a node that the result does not need uses a dataset of the result.
func (g *Graph) usedBeside() bool {
	needed := map[string]bool{}
	for _, n := range g.order {
		needed[n.GetName()] = true
	}
	return slices.ContainsFunc(g.def.Node, func(n *tf.NodeDef) bool {
		return !needed[n.GetName()] && slices.ContainsFunc(n.GetInput(), func(input string) bool {
			name, _, control := nodedef.SplitInput(input)
			return !control && needed[name] && g.ops.IsDataset(g.nodes[name].GetOp())
		})
	})
}

// IsArgument reports whether a node of a body is an argument of the function.
func IsArgument(n *tf.NodeDef) bool { return n.GetOp() == argumentOp }
