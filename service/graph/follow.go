package graph

import (
	"slices"
	"sync"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
)

// follow gives what is known of the results of an op, one for all of them if they are alike; nil where its arguments are not what it
// can follow.
type follow func(f *scope, n *tf.NodeDef, in []*tensor) []*tensor

// follows are the ops that are followed.
var follows = sync.OnceValue(followed)

// followed gives the ops that are followed: those that steps over pictures, sounds and rows of numbers are made of, and those with which
// their functions compute sizes. Others are blind.
func followed() map[string]follow {
	follows := map[string]follow{
		"Const": followConst, "IdentityN": func(_ *scope, _ *tf.NodeDef, in []*tensor) []*tensor { return in },
		"Shape": followShape, "Size": followShape, "Rank": followRank,
		"Pack": followPack, "Unpack": followUnpack, "ConcatV2": followConcat, "GatherV2": followGather,
		"StridedSlice": followStridedSlice, "Slice": followSlice, "Pad": followPad, "PadV2": followPad, "MirrorPad": followPad,
		"Tile": followTile, "ReverseV2": followReverse, "Transpose": followTranspose,
		"ExpandDims": followExpandDims, "Squeeze": followSqueeze, "Reshape": followReshape,
		"Fill": followDrawn, "ZerosLike": followLike, "OnesLike": followLike,
		"SelectV2": followSelect, "Select": followSelect, "If": followBranches, "StatelessIf": followBranches,
		"PartitionedCall": followCall, "StatefulPartitionedCall": followCall,
		"EnsureShape": followEnsured, "ClipByValue": followClip, "MatMul": followMatMul,
		"AdjustContrastv2": mixing(true, -3, -2), "AdjustHue": mixing(false, -1), "AdjustSaturation": mixing(false, -1),
		"RGBToHSV": mixing(false, -1), "HSVToRGB": mixing(false, -1),
		"DepthwiseConv2dNative": followDepthwise, projective: followResize(2), "ScaleAndTranslate": followScaled,
	}
	for _, op := range []string{"ResizeArea", "ResizeBicubic", "ResizeBilinear", "ResizeNearestNeighbor"} {
		follows[op] = followResize(1)
	}
	for _, op := range []string{"Identity", "StopGradient", "PreventGradient", "Snapshot", "CheckNumerics"} {
		follows[op] = func(_ *scope, _ *tf.NodeDef, in []*tensor) []*tensor { return in[:1] }
	}
	for _, op := range []string{
		"RandomUniform", "RandomUniformInt", "RandomStandardNormal", "TruncatedNormal", "StatelessRandomUniform", "StatelessRandomUniformV2",
		"StatelessRandomNormal", "StatelessRandomNormalV2", "StatelessRandomUniformInt", "StatelessRandomUniformIntV2",
		"StatelessTruncatedNormal", "StatelessTruncatedNormalV2",
	} {
		follows[op] = followDrawn
	}
	for _, op := range []string{
		"Abs", "Acos", "Asin", "Atan", "Ceil", "Cos", "Cosh", "Digamma", "Elu", "Erf", "Exp", "Expm1", "Floor", "Inv", "Invert", "IsFinite", "IsInf",
		"IsNan", "LeakyRelu", "Log", "Log1p", "LogicalNot", "Reciprocal", "Relu", "Relu6", "Rint", "Round", "Rsqrt", "Selu", "Sigmoid", "Sign",
		"Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Square", "Tan", "Tanh",
	} {
		follows[op] = pointwise
	}
	follows["Neg"] = pointwise
	follows["Cast"] = pointwise
	for op, affine := range map[string]affinity{
		"Add": sums, "AddV2": sums, "Sub": sums, "Mul": scales, "RealDiv": divides, "Div": divides, "Maximum": never, "Minimum": never,
		"Pow": never, "FloorDiv": never, "FloorMod": never, "Mod": never, "TruncateDiv": never, "TruncateMod": never, "SquaredDifference": never,
		"Equal": never, "NotEqual": never, "Less": never, "LessEqual": never, "Greater": never, "GreaterEqual": never,
		"LogicalAnd": never, "LogicalOr": never, "BitwiseAnd": never, "BitwiseOr": never, "BitwiseXor": never,
		"LeftShift": never, "RightShift": never, "Atan2": never, "DivNoNan": never, "MulNoNan": never, "Xdivy": never, "Xlogy": never,
	} {
		follows[op] = func(f *scope, n *tf.NodeDef, in []*tensor) []*tensor {
			if same := incompatible(n); same || len(in) != 2 {
				return nil
			}
			t := f.together(n.GetOp(), affine, in[0], in[1])
			if t != nil && t.kind == image {
				t.change.Uneven = t.change.Uneven || uneven(n)
			}
			return one(t)
		}
	}
	for op, affine := range map[string]bool{"Mean": true, "Sum": true, "Max": false, "Min": false, "Prod": false, "All": false, "Any": false, "EuclideanNorm": false} {
		follows[op] = reducing(affine)
	}
	return follows
}

// affinity says when an op of two arguments is affine.
type affinity int

const (
	never affinity = iota
	// sums: always.
	sums
	// scales: when one of them is fixed.
	scales
	// divides: when the right one is fixed.
	divides
)

func one(t *tensor) []*tensor {
	if t == nil {
		return nil
	}
	return []*tensor{t}
}

// incompatible tells whether a comparison answers also for shapes that do not fit.
func incompatible(n *tf.NodeDef) bool {
	v, ok := n.GetAttr()["incompatible_shape_error"]
	return ok && !v.GetB()
}

// derived is a tensor of the same kind as others that are not followed, without its values.
func derived(in ...*tensor) *tensor {
	t := &tensor{}
	for _, arg := range in {
		if arg.kind == sized {
			t.kind = sized
		}
		t.change.Looks |= arg.looks()
	}
	return t
}

// still tells whether tensors have nothing of the component's values.
func still(in ...*tensor) bool {
	return !slices.ContainsFunc(in, func(t *tensor) bool { return t.kind == image || t.kind == opaque })
}

func (t *tensor) with(axes []axis) *tensor {
	c := *t
	c.axes, c.ranked = axes, true
	c.ints, c.counted = nil, false
	return &c
}

// holding is a tensor of integers that are known.
func holding(like *tensor, ints []size, axes ...axis) *tensor {
	t := like.with(axes)
	t.ints, t.counted = ints, true
	if len(axes) == 0 {
		t.axes = []axis{}
	}
	return t
}

func plain(s size) axis { return axis{{s, -1}} }

const mostInts = 64

func followConst(f *scope, n *tf.NodeDef, _ []*tensor) []*tensor {
	t := f.shaped(constTensor(n).GetTensorShape())
	values, ok := constInts(n)
	if ok && len(values) <= mostInts {
		t.counted = true
		for _, v := range values {
			t.ints = append(t.ints, literal(v))
		}
	}
	return one(t)
}

func followShape(f *scope, n *tf.NodeDef, in []*tensor) []*tensor {
	x := in[0]
	if x.kind == opaque {
		return nil
	}
	out := &tensor{}
	if x.kind != fixed {
		out.kind = sized
	}
	if x.kind == sized {
		out.change.Looks = rankDim
	}
	if !x.ranked {
		if out.change.Looks |= x.change.Looks; x.kind == image {
			out.change.Looks = 1<<mostDims - 1
		}
		return one(out)
	}
	var sizes []size
	for _, a := range x.axes {
		s := a.size()
		s.looks |= a.places()
		sizes = append(sizes, s)
	}
	if n.GetOp() == "Size" {
		return one(holding(out, []size{productOf(sizes...)}))
	}
	return one(holding(out, sizes, plain(literal(int64(len(sizes))))))
}

func followRank(_ *scope, _ *tf.NodeDef, in []*tensor) []*tensor {
	if !in[0].ranked {
		return nil
	}
	out := &tensor{}
	if in[0].kind != fixed {
		out.kind, out.change.Looks = sized, rankDim
	}
	return one(holding(out, []size{literal(int64(len(in[0].axes)))}))
}

// pointwise makes each value of the one at its place.
func pointwise(f *scope, n *tf.NodeDef, in []*tensor) []*tensor {
	x := in[0]
	switch x.kind {
	case opaque:
		return nil
	case image:
		t := x.with(x.axes)
		t.ranked, t.change.Computes, t.change.Reckons = x.ranked, true, true
		t.change.Uneven = t.change.Uneven || uneven(n)
		if n.GetOp() != "Neg" && (n.GetOp() != "Cast" || !floating(n.GetAttr()["DstT"].GetType())) {
			t.change.Affine = false
		}
		return one(t)
	}
	t := derived(x)
	t.axes, t.ranked = x.axes, x.ranked
	if x.counted {
		t.counted = true
		for _, v := range x.ints {
			if n.GetOp() != "Cast" || dtypeSize(n.GetAttr()["DstT"].GetType()) < 4 {
				v = f.unknown(v.looks)
			}
			t.ints = append(t.ints, v)
		}
	}
	return one(t)
}

// evenOps round each value of floats as the standard says, wherever it lies.
var evenOps = wordSet(`
	Abs Ceil Floor Neg Rint Round Sqrt Square IsFinite IsInf IsNan Add AddV2 Sub Mul RealDiv Div SquaredDifference
	Equal NotEqual Less LessEqual Greater GreaterEqual
`)

// evenComplexOps do so for complex numbers: their quotients are computed like logarithms.
var evenComplexOps = wordSet(`Neg Add AddV2 Sub Equal NotEqual`)

// uneven tells whether the last bits of what an op computes may depend on where in memory a value lies. Of a float that does not fit,
// a cast to an integer makes whatever the instruction at hand makes; that of zeros with a sign holds for the larger and the smaller of two.
func uneven(n *tf.NodeDef) bool {
	of := n.GetAttr()["T"].GetType()
	switch {
	case n.GetOp() == "Cast":
		to := n.GetAttr()["DstT"].GetType()
		return floating(n.GetAttr()["SrcT"].GetType()) && integer(to)
	case complexNumber(of):
		return !evenComplexOps[n.GetOp()]
	}
	return floating(of) && !evenOps[n.GetOp()]
}

func floating(t tf.DataType) bool {
	switch t {
	case tf.DataType_DT_FLOAT, tf.DataType_DT_DOUBLE, tf.DataType_DT_HALF, tf.DataType_DT_BFLOAT16:
		return true
	}
	return false
}

func complexNumber(t tf.DataType) bool {
	return t == tf.DataType_DT_COMPLEX64 || t == tf.DataType_DT_COMPLEX128
}

func integer(t tf.DataType) bool {
	return !floating(t) && !complexNumber(t) && t != tf.DataType_DT_BOOL
}

// together computes value by value from two tensors, the smaller of which is spread over the larger one.
func (f *scope) together(op string, affine affinity, a, b *tensor) *tensor {
	switch {
	case a.kind == opaque || b.kind == opaque:
		return nil
	case a.kind == image && b.kind == image:
		t := agree(a, b)
		if t == nil {
			return nil
		}
		if a != b {
			t.change.Mixes |= a.change.Moves | b.change.Moves
			t.change.Skews |= a.change.Moves | b.change.Moves
		}
		t.change.Computes, t.change.Reckons = true, true
		t.change.Affine = t.change.Affine && affine == sums
		return t
	case a.kind == image:
		return spread(a, b, affine != never)
	case b.kind == image:
		return spread(b, a, affine == sums || affine == scales)
	}
	t := derived(a, b)
	if !a.ranked || !b.ranked {
		return t
	}
	if len(a.axes) < len(b.axes) {
		a, b = b, a
	}
	t.ranked, t.axes = true, slices.Clone(a.axes)
	for i, other := range b.axes {
		at := len(a.axes) - len(b.axes) + i
		switch mine := a.axes[at]; {
		case ones(other):
		case ones(mine):
			t.axes[at] = other
		case mine.size().is(other.size()):
			t.axes[at] = plain(mine.size())
		default:
			t.axes[at] = plain(f.unknown(0))
		}
	}
	count, known := int64(1), len(t.axes) == 0
	if len(t.axes) == 1 {
		count, known = t.axes[0].size().constant()
	}
	if t.counted = known && count <= mostInts && (a.counted || b.counted); t.counted {
		for i := range int(count) {
			x, y := f.at(a, i), f.at(b, i)
			v := f.unknown(x.looks | y.looks)
			if op == "Mul" {
				v = productOf(x, y)
			}
			t.ints = append(t.ints, v)
		}
	}
	return t
}

// spread computes value by value with a tensor that has nothing of the component's values.
func spread(x, other *tensor, affine bool) *tensor {
	if !other.ranked || !x.ranked || len(other.axes) > len(x.axes) {
		return unclear("the shape of what is computed with is not known")
	}
	t := x.with(x.axes)
	for i, o := range other.axes {
		mine := x.axes[len(x.axes)-len(other.axes)+i]
		if ones(o) {
			continue
		}
		if !mine.size().is(o.size()) {
			return unclear("it may get larger by what is computed with")
		}
		t.change.Along |= mine.places()
		t.change.Looks |= tied(mine, o.size())
	}
	t.change.Looks |= other.looks()
	t.change.Computes, t.change.Reckons = true, true
	t.change.Affine = t.change.Affine && affine
	return t
}

// agree is a tensor that has something of two, which have the same dimensions but for those of size 1.
func agree(a, b *tensor) *tensor {
	if !a.ranked || !b.ranked || len(a.axes) != len(b.axes) {
		return nil
	}
	t := a.with(slices.Clone(a.axes))
	for i, other := range b.axes {
		switch mine := a.axes[i]; {
		case mine.places() == other.places() && mine.size().is(other.size()), ones(other) && other.places() == 0:
		case ones(mine) && mine.places() == 0:
			t.axes[i] = other
		default:
			return nil
		}
	}
	t.change = a.change.also(b.change)
	return t
}

// either is a tensor that is one of two.
func (f *scope) either(a, b *tensor) *tensor {
	switch {
	case a.kind == opaque:
		return a
	case b.kind == opaque:
		return b
	case a.kind == image && b.kind == image:
		if !a.ranked || !b.ranked || len(a.axes) != len(b.axes) {
			return unclear("its shape depends on a choice")
		}
		t := a.with(slices.Clone(a.axes))
		for i, other := range b.axes {
			mine := a.axes[i]
			if len(mine) != 1 || len(other) != 1 || mine[0].place != other[0].place {
				if mine.places() != other.places() || !mine.size().is(other.size()) {
					return unclear("its shape depends on a choice")
				}
			} else if !mine.size().is(other.size()) {
				t.axes[i] = axis{{f.unknown(mine[0].size.looks | other[0].size.looks), mine[0].place}}
			}
		}
		t.change = a.change.also(b.change)
		return t
	case a.kind == image || b.kind == image:
		return unclear("it may be made anew, of other things")
	}
	t := derived(a, b)
	if a.ranked && b.ranked && len(a.axes) == len(b.axes) {
		t.ranked = true
		for i := range a.axes {
			if t.axes = append(t.axes, plain(a.axes[i].size())); !a.axes[i].size().is(b.axes[i].size()) {
				t.axes[i] = plain(f.unknown(0))
			}
		}
	}
	return t
}

func followSelect(f *scope, n *tf.NodeDef, in []*tensor) []*tensor {
	if len(in) != 3 || in[0].kind == image || in[0].kind == opaque {
		return nil
	}
	if !in[0].ranked || len(in[0].axes) > 0 && n.GetOp() == "Select" {
		if still(in...) {
			return nil
		}
		return one(unclear("which values are chosen is not followed"))
	}
	t := f.either(in[1], in[2])
	if t.kind == opaque {
		return one(t)
	}
	if t.kind != image {
		return one(derived(in...))
	}
	was := t.change
	if t = spread(t, in[0], true); t.kind == image {
		t.change.Computes, t.change.Reckons, t.change.Affine = was.Computes, was.Reckons, was.Affine
	}
	return one(t)
}

func followBranches(f *scope, n *tf.NodeDef, in []*tensor) []*tensor {
	if in[0].kind == image || in[0].kind == opaque {
		return nil
	}
	var out [2][]*tensor
	for i, key := range []string{"then_branch", "else_branch"} {
		called := f.g.functions[n.GetAttr()[key].GetFunc().GetName()]
		if called == nil || len(called.GetSignature().GetInputArg()) != len(in)-1 {
			return nil
		}
		out[i] = f.call(called, in[1:])
	}
	if len(out[0]) != len(out[1]) {
		return nil
	}
	var results []*tensor
	for i := range out[0] {
		t := *f.either(out[0][i], out[1][i])
		if t.change.Looks |= in[0].looks(); t.kind == fixed && in[0].kind == sized {
			t.kind = sized
		}
		results = append(results, &t)
	}
	return results
}

func followCall(f *scope, n *tf.NodeDef, in []*tensor) []*tensor {
	called := f.g.functions[n.GetAttr()["f"].GetFunc().GetName()]
	if called == nil || len(called.GetSignature().GetInputArg()) != len(in) {
		return nil
	}
	return f.call(called, in)
}

// followEnsured is for what fails with other sizes.
func followEnsured(_ *scope, n *tf.NodeDef, in []*tensor) []*tensor {
	x, shape := in[0], n.GetAttr()["shape"].GetShape()
	if x.kind != image || !x.ranked || shape.GetUnknownRank() || len(shape.GetDim()) != len(x.axes) {
		return in[:1]
	}
	t := x.with(slices.Clone(x.axes))
	for i, d := range shape.GetDim() {
		if d.GetSize() >= 0 {
			t.change.Looks |= x.axes[i].places()
		}
	}
	return one(t)
}

func followClip(f *scope, n *tf.NodeDef, in []*tensor) []*tensor {
	if in[0].kind != image || len(in) != 3 || !still(in[1:]...) {
		return nil
	}
	t := spread(in[0], in[1], false)
	if t.kind == image {
		t = spread(t, in[2], false)
		t.change.Uneven = t.change.Uneven || uneven(n)
	}
	return one(t)
}

// followDrawn is for what is filled to a shape.
func followDrawn(f *scope, _ *tf.NodeDef, in []*tensor) []*tensor {
	if !still(in...) {
		return nil
	}
	t := derived(in...)
	if in[0].counted {
		t.ranked, t.axes = true, []axis{}
		for _, s := range in[0].ints {
			t.axes = append(t.axes, plain(s))
		}
	}
	return one(t)
}

func followLike(_ *scope, _ *tf.NodeDef, in []*tensor) []*tensor {
	x := in[0]
	if x.kind == opaque || !x.ranked {
		return nil
	}
	t := derived(x)
	if x.kind == image {
		t.kind = sized
		t.change.Looks |= x.places()
	}
	t.ranked = true
	for _, a := range x.axes {
		t.axes = append(t.axes, plain(a.size()))
	}
	return one(t)
}

func followMatMul(_ *scope, n *tf.NodeDef, in []*tensor) []*tensor {
	x, weights := in[0], in[1]
	if n.GetAttr()["transpose_a"].GetB() || n.GetAttr()["transpose_b"].GetB() || x.kind != image || !still(weights) ||
		!x.ranked || len(x.axes) != 2 || !weights.ranked || len(weights.axes) != 2 || len(x.axes[1]) != 1 {
		return nil
	}
	t := x.with([]axis{x.axes[0], {{weights.axes[1].size(), x.axes[1][0].place}}})
	t.change.Mixes |= x.axes[1].places()
	t.change.Skews |= x.axes[1].places()
	t.change.Computes, t.change.Reckons = true, true
	t.change.Looks |= weights.looks()
	return one(t)
}

// mixing computes each value from several along some axes, counted from the end.
func mixing(affine bool, axes ...int) follow {
	return func(_ *scope, _ *tf.NodeDef, in []*tensor) []*tensor {
		x := in[0]
		if x.kind != image || !x.ranked || !still(in[1:]...) || len(x.axes) < 3 {
			return nil
		}
		t := x.with(x.axes)
		for _, at := range axes {
			t.change.Mixes |= x.axes[len(x.axes)+at].places()
			if !affine {
				t.change.Skews |= x.axes[len(x.axes)+at].places()
			}
		}
		for _, other := range in[1:] {
			t.change.Looks |= other.looks()
		}
		t.change.Computes, t.change.Reckons = true, true
		t.change.Affine = t.change.Affine && affine
		return one(t)
	}
}

// reducing computes one value of all along some axes.
func reducing(affine bool) follow {
	return func(f *scope, n *tf.NodeDef, in []*tensor) []*tensor {
		x, over := in[0], in[1]
		if n.GetOp() == "Prod" && x.counted && still(x) && len(x.axes) == 1 && over.counted && len(over.ints) == 1 {
			return one(holding(derived(x), []size{productOf(x.ints...)}))
		}
		if x.kind == opaque || !x.ranked || !over.counted {
			return nil
		}
		t := x.with([]axis{})
		if x.kind != image {
			t = derived(x).with([]axis{})
		}
		gone := map[int]bool{}
		for _, s := range over.ints {
			at, known := axisOf(s, len(x.axes))
			if !known {
				return nil
			}
			gone[at] = true
		}
		for i, a := range x.axes {
			switch {
			case !gone[i]:
				t.axes = append(t.axes, a)
				continue
			case n.GetAttr()["keep_dims"].GetB():
				t.axes = append(t.axes, axis{})
			}
			t.change.Mixes |= a.places()
		}
		t.change.Computes, t.change.Reckons = true, true
		t.change.Affine = t.change.Affine && affine
		return one(t)
	}
}

// axisOf reads the number of an axis, which may count from the end.
func axisOf(s size, rank int) (int, bool) {
	at, known := s.constant()
	if at < 0 {
		at += int64(rank)
	}
	return int(at), known && at >= 0 && at < int64(rank)
}
