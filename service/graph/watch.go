package graph

import (
	"slices"
	"strings"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
)

// watch follows the values of one component through a function. What it is not sure of is opaque.
type watch struct {
	g       *Graph
	follows map[string]follow
	// symbols counts the sizes that nobody knows.
	symbols rune
}

// relation says what a tensor inside a function has to do with the component.
type relation int

const (
	// fixed: nothing.
	fixed relation = iota
	// sized: it depends on the component's sizes alone.
	sized
	// image: it is the component, changed.
	image
	// opaque: it depends on the component in a way that is not followed.
	opaque
)

// tensor is what is known of one inside a function.
type tensor struct {
	kind   relation
	why    string
	change Change
	// axes are its dimensions, if ranked.
	axes   []axis
	ranked bool
	// ints are its values, row by row, if counted.
	ints    []size
	counted bool
}

// axis is a dimension: several of the component that were merged into one, or one, or none for a size of 1.
type axis []part

// part is a dimension of the component, or one that has come in (place -1), or one along which all that came in is alike.
type part struct {
	size  size
	place int
}

const alike = -2

// size is a product of a number and of sizes that nobody knows.
type size struct {
	n  int64
	of string
	// looks has the dimensions of the component that it was computed from.
	looks Dims
}

func literal(n int64) size { return size{n: n} }

func (w *watch) unknown(looks Dims) size {
	w.symbols++
	return size{n: 1, of: string(w.symbols), looks: looks}
}

func (s size) is(other size) bool { return s.n == other.n && s.of == other.of }

// constant gives a size that is known.
func (s size) constant() (int64, bool) { return s.n, s.of == "" }

func productOf(sizes ...size) size {
	all := literal(1)
	var of []rune
	for _, s := range sizes {
		all.n *= s.n
		all.looks |= s.looks
		of = append(of, []rune(s.of)...)
	}
	slices.Sort(of)
	if all.of = string(of); all.n == 0 {
		all.of = ""
	}
	return all
}

func (a axis) size() size {
	sizes := make([]size, len(a))
	for i, p := range a {
		sizes[i] = p.size
	}
	return productOf(sizes...)
}

// places are the dimensions of the component that lie in an axis.
func (a axis) places() (s Dims) {
	for _, p := range a {
		if p.place >= 0 {
			s |= dimSet(p.place)
		}
	}
	return s
}

func (t *tensor) places() (s Dims) {
	for _, a := range t.axes {
		s |= a.places()
	}
	return s
}

func ones(a axis) bool {
	n, known := a.size().constant()
	return known && n == 1
}

// stands tells whether a tensor has the component's dimensions in their order. One of size 1 may stand for one that is gone.
func (t *tensor) stands(rank int) bool {
	if !t.ranked || len(t.axes) != rank {
		return false
	}
	there := t.places()
	for i, a := range t.axes {
		at := a.places()
		if at != dimSet(i) && !(at == 0 && len(a) <= 1 && there&dimSet(i) == 0 && ones(a)) {
			return false
		}
	}
	return true
}

// looks are the dimensions on whose sizes a tensor depends.
func (t *tensor) looks() Dims {
	s := t.change.Looks
	for _, n := range t.ints {
		s |= n.looks
	}
	return s
}

func unclear(why string) *tensor { return &tensor{kind: opaque, why: why} }

// component is the argument that is followed.
func (w *watch) component(shape *tf.TensorShapeProto) *tensor {
	t := &tensor{kind: image, change: Change{Affine: true}, ranked: true, axes: []axis{}}
	for i, d := range shape.GetDim() {
		s := w.unknown(dimSet(i))
		if d.GetSize() >= 0 {
			s = size{n: d.GetSize(), looks: dimSet(i)}
		}
		t.axes = append(t.axes, axis{{s, i}})
	}
	return t
}

// argument is one that is not followed.
func (w *watch) argument(f *tf.FunctionDef, i int) *tensor {
	shapes := f.GetArgAttr()[uint32(i)].GetAttr()["_output_shapes"].GetList().GetShape()
	if len(shapes) != 1 {
		return &tensor{}
	}
	return w.shaped(shapes[0])
}

func (w *watch) shaped(shape *tf.TensorShapeProto) *tensor {
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
func (w *watch) scope(f *tf.FunctionDef, args []*tensor) *scope {
	scope := &scope{watch: w, args: map[string]*tensor{}, nodes: map[string]*tf.NodeDef{}, known: map[string][]*tensor{}}
	for i, arg := range f.GetSignature().GetInputArg() {
		scope.args[arg.GetName()] = args[i]
	}
	for _, n := range f.GetNodeDef() {
		scope.nodes[n.GetName()] = n
	}
	return scope
}

// call gives the results of a function.
func (w *watch) call(f *tf.FunctionDef, args []*tensor) []*tensor {
	scope := w.scope(f, args)
	var out []*tensor
	for _, result := range f.GetSignature().GetOutputArg() {
		out = append(out, scope.input(f.GetRet()[result.GetName()]))
	}
	return out
}

// scope is a call of a function.
type scope struct {
	*watch
	args  map[string]*tensor
	nodes map[string]*tf.NodeDef
	known map[string][]*tensor
}

// input gives what an input inside the function names.
func (f *scope) input(input string) *tensor {
	name := functionInputNode(input)
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
	if i := outputIndex(input); i >= 0 && i < len(out) {
		return out[i]
	}
	return unclear("of " + n.GetOp() + " it takes a result that is not followed")
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
	return []*tensor{blind(n, in)}
}

// effects gives the dimensions of the component on whose sizes it depends what a function does besides giving results: checks that fail,
// numbers that are drawn. known is false where that depends on the component's values.
func (w *watch) effects(f *tf.FunctionDef, args []*tensor) (looks Dims, known bool) {
	scope := w.scope(f, args)
	seen := map[string]bool{}
	for _, name := range f.GetControlRet() {
		seen[name] = true
	}
	for _, n := range f.GetNodeDef() {
		if !seen[n.GetName()] && !w.g.ops.byName[n.GetOp()].GetIsStateful() {
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
		alone = alone && t.kind != image && t.kind != opaque
		if looks |= t.looks(); !strings.HasPrefix(input, "^") {
			in = append(in, t)
		}
	}
	if alone {
		return looks, true
	}
	if len(in) < len(n.GetInput()) || n.GetOp() != "PartitionedCall" && n.GetOp() != "StatefulPartitionedCall" {
		return 0, false
	}
	called := f.g.functions[n.GetAttr()["f"].GetFunc().GetName()]
	if called == nil || len(called.GetSignature().GetInputArg()) != len(in) {
		return 0, false
	}
	return f.effects(called, in)
}

// blind is the result of an op that is not known, or whose arguments are not.
func blind(n *tf.NodeDef, in []*tensor) *tensor {
	t := &tensor{}
	for _, arg := range in {
		switch arg.kind {
		case opaque:
			return arg
		case image:
			return unclear("what " + n.GetOp() + " does to it is not followed")
		case sized:
			t.kind = sized
			t.change.Looks |= arg.looks()
		}
	}
	return t
}
