package dataflow

import (
	"strings"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
)

// valueAnalysis tracks the values of one component through a function. If it is not certain about a value,
// the value is opaque.
type valueAnalysis struct {
	g         *graph.Graph
	transfers map[string]transfer
	// symbols is the last letter that was given to an unknown size.
	symbols rune
}

// component returns the argument that the analysis tracks.
func (v *valueAnalysis) component(shape *tf.TensorShapeProto) *tensor {
	t := &tensor{kind: derived, change: Change{Affine: true, value: unchanged}, ranked: true, axes: []axis{}}
	for i, d := range shape.GetDim() {
		s := v.unknown(DimSet(i))
		if d.GetSize() >= 0 {
			s = symbolicSize{n: d.GetSize(), dependsOn: DimSet(i)}
		}
		t.axes = append(t.axes, axis{{s, i}})
	}
	return t
}

// argument returns an argument that the analysis does not track.
func (v *valueAnalysis) argument(f *tf.FunctionDef, i int) *tensor {
	shapes := f.GetArgAttr()[uint32(i)].GetAttr()["_output_shapes"].GetList().GetShape()
	if len(shapes) != 1 {
		return &tensor{}
	}
	return v.shaped(shapes[0])
}

func (v *valueAnalysis) shaped(shape *tf.TensorShapeProto) *tensor {
	if shape.GetUnknownRank() {
		return &tensor{}
	}
	t := &tensor{ranked: true, axes: []axis{}}
	for _, d := range shape.GetDim() {
		s := v.unknown(0)
		if d.GetSize() >= 0 {
			s = literal(d.GetSize())
		}
		t.axes = append(t.axes, axis{{s, -1}})
	}
	return t
}

// scope prepares the analysis of one call of a function.
func (v *valueAnalysis) scope(f *tf.FunctionDef, args []*tensor) *scope {
	scope := &scope{valueAnalysis: v, args: map[string]*tensor{}, nodes: map[string]*tf.NodeDef{}, known: map[string][]*tensor{}}
	for i, arg := range f.GetSignature().GetInputArg() {
		scope.args[arg.GetName()] = args[i]
	}
	for _, n := range f.GetNodeDef() {
		scope.nodes[n.GetName()] = n
	}
	return scope
}

// call returns the results of a function.
func (v *valueAnalysis) call(f *tf.FunctionDef, args []*tensor) []*tensor {
	scope := v.scope(f, args)
	var out []*tensor
	for _, result := range f.GetSignature().GetOutputArg() {
		out = append(out, scope.input(f.GetRet()[result.GetName()]))
	}
	return out
}

// scope is one call of a function.
type scope struct {
	*valueAnalysis
	args  map[string]*tensor
	nodes map[string]*tf.NodeDef
	known map[string][]*tensor
}

// input returns the tensor that an input inside the function refers to.
func (s *scope) input(input string) *tensor {
	name := nodedef.InputNode(input)
	if t, ok := s.args[name]; ok {
		return t
	}
	n := s.nodes[name]
	out, ok := s.known[name]
	if !ok {
		out = s.node(n)
		s.known[name] = out
	}
	if len(out) == 1 {
		return out[0]
	}
	// The results are the entries of one list.
	if i := nodedef.OutputIndex(input); i >= 0 && i < len(out) {
		return out[i]
	}
	return opaqueTensor("it is not known which result of " + n.GetOp() + " is used")
}

// node returns the results of a node, one for all if they are alike.
func (s *scope) node(n *tf.NodeDef) []*tensor {
	in := make([]*tensor, 0, len(n.GetInput()))
	for _, input := range n.GetInput() {
		if !strings.HasPrefix(input, "^") {
			in = append(in, s.input(input))
		}
	}
	if transferOf := s.transfers[n.GetOp()]; transferOf != nil {
		if out := transferOf(s, n, in); out != nil {
			return out
		}
	}
	return []*tensor{opaqueOperands(n, in)}
}

// effects returns the dimensions whose sizes affect what a function does besides returning results: checks
// that fail, random values that are drawn. known is false if that depends on the component's values.
func (v *valueAnalysis) effects(f *tf.FunctionDef, args []*tensor) (dims Dims, known bool) {
	scope := v.scope(f, args)
	seen := map[string]bool{}
	for _, name := range f.GetControlRet() {
		seen[name] = true
	}
	for _, n := range f.GetNodeDef() {
		if !seen[n.GetName()] && !v.g.Ops().Def(n.GetOp()).GetIsStateful() {
			continue
		}
		of, known := scope.effectsOf(n)
		if !known {
			return 0, false
		}
		dims |= of
	}
	return dims, true
}

// effectsOf returns what the effects of a node depend on. The node's control inputs count.
func (s *scope) effectsOf(n *tf.NodeDef) (dims Dims, known bool) {
	var in []*tensor
	alone := true
	for _, input := range n.GetInput() {
		t := s.input(strings.TrimPrefix(input, "^"))
		alone = alone && t.kind != derived && t.kind != opaque
		if dims |= t.sizeDependencies(); !strings.HasPrefix(input, "^") {
			in = append(in, t)
		}
	}
	if alone {
		return dims, true
	}
	if len(in) < len(n.GetInput()) || n.GetOp() != "PartitionedCall" && n.GetOp() != "StatefulPartitionedCall" {
		return 0, false
	}
	called := s.g.Function(n.GetAttr()["f"].GetFunc().GetName())
	if called == nil || len(called.GetSignature().GetInputArg()) != len(in) {
		return 0, false
	}
	return s.effects(called, in)
}

// opaqueOperands returns the result of an op that has no transfer function, or whose transfer function does
// not understand the arguments.
func opaqueOperands(n *tf.NodeDef, in []*tensor) *tensor {
	t := &tensor{}
	for _, arg := range in {
		switch arg.kind {
		case opaque:
			return arg
		case derived:
			return opaqueTensor("it is not known what " + n.GetOp() + " does to it")
		case sizeOnly:
			t.kind = sizeOnly
			t.change.DependsOnSize |= arg.sizeDependencies()
		}
	}
	return t
}
