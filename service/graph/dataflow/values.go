package dataflow

import (
	"strings"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
)

// valueAnalysis follows the values of one component through a function. What it is not sure of is opaque.
type valueAnalysis struct {
	g       *graph.Graph
	follows map[string]transfer
	// symbols counts the sizes that nobody knows.
	symbols rune
}

// component is the argument that is followed.
func (w *valueAnalysis) component(shape *tf.TensorShapeProto) *tensor {
	t := &tensor{kind: derived, change: Change{Affine: true}, ranked: true, axes: []axis{}}
	for i, d := range shape.GetDim() {
		s := w.unknown(DimSet(i))
		if d.GetSize() >= 0 {
			s = symbolicSize{n: d.GetSize(), dependsOn: DimSet(i)}
		}
		t.axes = append(t.axes, axis{{s, i}})
	}
	return t
}

// argument is one that is not followed.
func (w *valueAnalysis) argument(f *tf.FunctionDef, i int) *tensor {
	shapes := f.GetArgAttr()[uint32(i)].GetAttr()["_output_shapes"].GetList().GetShape()
	if len(shapes) != 1 {
		return &tensor{}
	}
	return w.shaped(shapes[0])
}

func (w *valueAnalysis) shaped(shape *tf.TensorShapeProto) *tensor {
	if shape.GetUnknownRank() {
		return &tensor{}
	}
	t := &tensor{ranked: true, axes: []axis{}}
	for _, d := range shape.GetDim() {
		s := w.unknown(0)
		if d.GetSize() >= 0 {
			s = literal(d.GetSize())
		}
		t.axes = append(t.axes, axis{{s, -1}})
	}
	return t
}

// scope enters a function.
func (w *valueAnalysis) scope(f *tf.FunctionDef, args []*tensor) *scope {
	scope := &scope{valueAnalysis: w, args: map[string]*tensor{}, nodes: map[string]*tf.NodeDef{}, known: map[string][]*tensor{}}
	for i, arg := range f.GetSignature().GetInputArg() {
		scope.args[arg.GetName()] = args[i]
	}
	for _, n := range f.GetNodeDef() {
		scope.nodes[n.GetName()] = n
	}
	return scope
}

// call gives the results of a function.
func (w *valueAnalysis) call(f *tf.FunctionDef, args []*tensor) []*tensor {
	scope := w.scope(f, args)
	var out []*tensor
	for _, result := range f.GetSignature().GetOutputArg() {
		out = append(out, scope.input(f.GetRet()[result.GetName()]))
	}
	return out
}

// scope is a call of a function.
type scope struct {
	*valueAnalysis
	args  map[string]*tensor
	nodes map[string]*tf.NodeDef
	known map[string][]*tensor
}

// input gives what an input inside the function names.
func (f *scope) input(input string) *tensor {
	name := nodedef.InputNode(input)
	if t, ok := f.args[name]; ok {
		return t
	}
	n := f.nodes[name]
	out, ok := f.known[name]
	if !ok {
		out = f.node(n)
		f.known[name] = out
	}
	if len(out) == 1 {
		return out[0]
	}
	// Several results are of one list here.
	if i := nodedef.OutputIndex(input); i >= 0 && i < len(out) {
		return out[i]
	}
	return opaqueTensor("of " + n.GetOp() + " it takes a result that is not followed")
}

// node gives the results of a node; one, if all are alike.
func (f *scope) node(n *tf.NodeDef) []*tensor {
	in := make([]*tensor, 0, len(n.GetInput()))
	for _, input := range n.GetInput() {
		if !strings.HasPrefix(input, "^") {
			in = append(in, f.input(input))
		}
	}
	if follow := f.follows[n.GetOp()]; follow != nil {
		if out := follow(f, n, in); out != nil {
			return out
		}
	}
	return []*tensor{opaqueOperands(n, in)}
}

// effects gives the dimensions of the component on whose sizes it depends what a function does besides giving results: checks that fail,
// numbers that are drawn. known is false where that depends on the component's values.
func (w *valueAnalysis) effects(f *tf.FunctionDef, args []*tensor) (looks Dims, known bool) {
	scope := w.scope(f, args)
	seen := map[string]bool{}
	for _, name := range f.GetControlRet() {
		seen[name] = true
	}
	for _, n := range f.GetNodeDef() {
		if !seen[n.GetName()] && !w.g.Ops().Def(n.GetOp()).GetIsStateful() {
			continue
		}
		of, known := scope.effectsOf(n)
		if !known {
			return 0, false
		}
		looks |= of
	}
	return looks, true
}

// effectsOf gives what the effects of a node depend on. What it waits for counts.
func (f *scope) effectsOf(n *tf.NodeDef) (looks Dims, known bool) {
	var in []*tensor
	alone := true
	for _, input := range n.GetInput() {
		t := f.input(strings.TrimPrefix(input, "^"))
		alone = alone && t.kind != derived && t.kind != opaque
		if looks |= t.sizeDependencies(); !strings.HasPrefix(input, "^") {
			in = append(in, t)
		}
	}
	if alone {
		return looks, true
	}
	if len(in) < len(n.GetInput()) || n.GetOp() != "PartitionedCall" && n.GetOp() != "StatefulPartitionedCall" {
		return 0, false
	}
	called := f.g.Function(n.GetAttr()["f"].GetFunc().GetName())
	if called == nil || len(called.GetSignature().GetInputArg()) != len(in) {
		return 0, false
	}
	return f.effects(called, in)
}

// opaqueOperands is the result of an op that is not known, or whose arguments are not.
func opaqueOperands(n *tf.NodeDef, in []*tensor) *tensor {
	t := &tensor{}
	for _, arg := range in {
		switch arg.kind {
		case opaque:
			return arg
		case derived:
			return opaqueTensor("what " + n.GetOp() + " does to it is not followed")
		case sizeOnly:
			t.kind = sizeOnly
			t.change.DependsOnSize |= arg.sizeDependencies()
		}
	}
	return t
}
