package dataflow

import (
	"slices"
	"sync"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
)

// transfer is the transfer function of an op. It returns what is known about the op's results, one tensor for
// all if they are alike. It returns nil if it does not understand the arguments.
type transfer func(f *scope, n *tf.NodeDef, in []*tensor) []*tensor

// transferFunctions maps ops to their transfer functions.
var transferFunctions = sync.OnceValue(newTransferFunctions)

// newTransferFunctions returns the transfer functions of the ops in typical steps over images, audio and vectors. It
// includes the ops with which such steps compute sizes. Other ops are opaque.
func newTransferFunctions() map[string]transfer {
	transfers := map[string]transfer{
		"Const": transferConst, "IdentityN": func(_ *scope, _ *tf.NodeDef, in []*tensor) []*tensor { return in },
		"Shape": transferShape, "Size": transferShape, "Rank": transferRank,
		"Pack": transferPack, "Unpack": transferUnpack, "ConcatV2": transferConcat, "GatherV2": transferGather,
		"StridedSlice": transferStridedSlice, "Slice": transferSlice, "Pad": transferPad, "PadV2": transferPad, "MirrorPad": transferPad,
		"Tile": transferTile, "ReverseV2": transferReverse, "Transpose": transferTranspose,
		"ExpandDims": transferExpandDims, "Squeeze": transferSqueeze, "Reshape": transferReshape,
		"Fill": transferDrawn, "ZerosLike": transferLike, "OnesLike": transferLike,
		"SelectV2": transferSelect, "Select": transferSelect, "If": transferBranches, "StatelessIf": transferBranches,
		"PartitionedCall": transferCall, "StatefulPartitionedCall": transferCall,
		"EnsureShape": transferEnsured, "ClipByValue": transferClip, "MatMul": transferMatMul,
		"AdjustContrastv2": mixing(true, -3, -2), "AdjustHue": mixing(false, -1), "AdjustSaturation": mixing(false, -1),
		"RGBToHSV": mixing(false, -1), "HSVToRGB": mixing(false, -1),
		"DepthwiseConv2dNative": transferDepthwise, ImageProjectiveOp: transferResize(2), "ScaleAndTranslate": transferScaled,
	}
	for _, op := range []string{"ResizeArea", "ResizeBicubic", "ResizeBilinear", "ResizeNearestNeighbor"} {
		transfers[op] = transferResize(1)
	}
	for _, op := range []string{"Identity", "StopGradient", "PreventGradient", "Snapshot", "CheckNumerics"} {
		transfers[op] = func(_ *scope, _ *tf.NodeDef, in []*tensor) []*tensor { return in[:1] }
	}
	for _, op := range []string{
		"RandomUniform", "RandomUniformInt", "RandomStandardNormal", "TruncatedNormal", "StatelessRandomUniform", "StatelessRandomUniformV2",
		"StatelessRandomNormal", "StatelessRandomNormalV2", "StatelessRandomUniformInt", "StatelessRandomUniformIntV2",
		"StatelessTruncatedNormal", "StatelessTruncatedNormalV2",
	} {
		transfers[op] = transferDrawn
	}
	for _, op := range []string{
		"Abs", "Acos", "Asin", "Atan", "Ceil", "Cos", "Cosh", "Digamma", "Elu", "Erf", "Exp", "Expm1", "Floor", "Inv", "Invert", "IsFinite", "IsInf",
		"IsNan", "LeakyRelu", "Log", "Log1p", "LogicalNot", "Reciprocal", "Relu", "Relu6", "Rint", "Round", "Rsqrt", "Selu", "Sigmoid", "Sign",
		"Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Square", "Tan", "Tanh",
	} {
		transfers[op] = pointwise
	}
	transfers["Neg"] = pointwise
	transfers["Cast"] = pointwise
	for op, affine := range map[string]linearity{
		"Add": sums, "AddV2": sums, "Sub": sums, "Mul": scales, "RealDiv": divides, "Div": divides, "Maximum": never, "Minimum": never,
		"Pow": never, "FloorDiv": never, "FloorMod": never, "Mod": never, "TruncateDiv": never, "TruncateMod": never, "SquaredDifference": never,
		"Equal": never, "NotEqual": never, "Less": never, "LessEqual": never, "Greater": never, "GreaterEqual": never,
		"LogicalAnd": never, "LogicalOr": never, "BitwiseAnd": never, "BitwiseOr": never, "BitwiseXor": never,
		"LeftShift": never, "RightShift": never, "Atan2": never, "DivNoNan": never, "MulNoNan": never, "Xdivy": never, "Xlogy": never,
	} {
		transfers[op] = func(f *scope, n *tf.NodeDef, in []*tensor) []*tensor {
			if same := acceptsAnyShapes(n); same || len(in) != 2 {
				return nil
			}
			t := f.binary(n, affine, in[0], in[1])
			if t != nil && t.kind == derived {
				t.change.AlignmentDependent = t.change.AlignmentDependent || uneven(n)
			}
			return single(t)
		}
	}
	for op, affine := range map[string]bool{"Mean": true, "Sum": true, "Max": false, "Min": false, "Prod": false, "All": false, "Any": false, "EuclideanNorm": false} {
		transfers[op] = reducing(affine)
	}
	return transfers
}

func single(t *tensor) []*tensor {
	if t == nil {
		return nil
	}
	return []*tensor{t}
}

// derivedFrom returns a tensor that depends on the sizes that other tensors depend on, without their values.
// None of these tensors may be derived or opaque.
func derivedFrom(in ...*tensor) *tensor {
	t := &tensor{}
	for _, arg := range in {
		if arg.kind == sizeOnly {
			t.kind = sizeOnly
		}
		t.change.DependsOnSize |= arg.sizeDependencies()
	}
	return t
}

// isIndependent reports whether no tensor depends on the component's values.
func isIndependent(in ...*tensor) bool {
	return !slices.ContainsFunc(in, func(t *tensor) bool { return t.kind == derived || t.kind == opaque })
}

func (t *tensor) with(axes []axis) *tensor {
	c := *t
	c.axes, c.ranked = axes, true
	c.ints, c.intsKnown, c.fixed = nil, false, nil
	return &c
}

// withInts returns a tensor of known integers.
func withInts(like *tensor, ints []symbolicSize, axes ...axis) *tensor {
	t := like.with(axes)
	t.ints, t.intsKnown = ints, true
	if len(axes) == 0 {
		t.axes = []axis{}
	}
	return t
}

func newAxis(s symbolicSize) axis { return axis{{s, -1}} }

const maxInts = 64

func transferConst(f *scope, n *tf.NodeDef, _ []*tensor) []*tensor {
	t := f.shaped(nodedef.Tensor(n).GetTensorShape())
	t.fixed = fixedNumbers(n)
	values, ok := nodedef.Ints(n)
	if ok && len(values) <= maxInts {
		t.intsKnown = true
		for _, v := range values {
			t.ints = append(t.ints, literal(v))
		}
	}
	return single(t)
}

func transferShape(f *scope, n *tf.NodeDef, in []*tensor) []*tensor {
	x := in[0]
	if x.kind == opaque {
		return nil
	}
	out := &tensor{}
	if x.kind != independent {
		out.kind = sizeOnly
	}
	if x.kind == sizeOnly {
		out.change.DependsOnSize = rankDim
	}
	if !x.ranked {
		if out.change.DependsOnSize |= x.change.DependsOnSize; x.kind == derived {
			out.change.DependsOnSize = 1<<maxDims - 1
		}
		return single(out)
	}
	var sizes []symbolicSize
	for _, a := range x.axes {
		s := a.size()
		s.dependsOn |= a.dims()
		sizes = append(sizes, s)
	}
	if n.GetOp() == "Size" {
		return single(withInts(out, []symbolicSize{productOf(sizes...)}))
	}
	return single(withInts(out, sizes, newAxis(literal(int64(len(sizes))))))
}

func transferRank(_ *scope, _ *tf.NodeDef, in []*tensor) []*tensor {
	if !in[0].ranked {
		return nil
	}
	out := &tensor{}
	if in[0].kind != independent {
		out.kind, out.change.DependsOnSize = sizeOnly, rankDim
	}
	return single(withInts(out, []symbolicSize{literal(int64(len(in[0].axes)))}))
}

// transferEnsured handles EnsureShape, which fails for other sizes.
func transferEnsured(_ *scope, n *tf.NodeDef, in []*tensor) []*tensor {
	x, shape := in[0], n.GetAttr()["shape"].GetShape()
	if x.kind != derived || !x.ranked || shape.GetUnknownRank() || len(shape.GetDim()) != len(x.axes) {
		return in[:1]
	}
	t := x.with(slices.Clone(x.axes))
	for i, d := range shape.GetDim() {
		if d.GetSize() >= 0 {
			t.change.DependsOnSize |= x.axes[i].dims()
		}
	}
	return single(t)
}

// transferDrawn handles ops that fill a tensor of a given shape.
func transferDrawn(f *scope, _ *tf.NodeDef, in []*tensor) []*tensor {
	if !isIndependent(in...) {
		return nil
	}
	t := derivedFrom(in...)
	if in[0].intsKnown {
		t.ranked, t.axes = true, []axis{}
		for _, s := range in[0].ints {
			t.axes = append(t.axes, newAxis(s))
		}
	}
	return single(t)
}

func transferLike(_ *scope, _ *tf.NodeDef, in []*tensor) []*tensor {
	x := in[0]
	if x.kind == opaque || !x.ranked {
		return nil
	}
	t := derivedFrom(x)
	if x.kind == derived {
		t.kind = sizeOnly
		t.change.DependsOnSize |= x.dims()
	}
	t.ranked = true
	for _, a := range x.axes {
		t.axes = append(t.axes, newAxis(a.size()))
	}
	return single(t)
}

func transferMatMul(_ *scope, n *tf.NodeDef, in []*tensor) []*tensor {
	x, weights := in[0], in[1]
	if n.GetAttr()["transpose_a"].GetB() || n.GetAttr()["transpose_b"].GetB() || x.kind != derived || !isIndependent(weights) ||
		!x.ranked || len(x.axes) != 2 || !weights.ranked || len(weights.axes) != 2 || len(x.axes[1]) != 1 {
		return nil
	}
	t := x.with([]axis{x.axes[0], {{weights.axes[1].size(), x.axes[1][0].dim}}})
	t.change.Mixes |= x.axes[1].dims()
	t.change.Skews |= x.axes[1].dims()
	t.change.computed(nil)
	t.change.DependsOnSize |= weights.sizeDependencies()
	return single(t)
}

// mixing computes each value from several along some axes. Negative axes count from the end.
func mixing(affine bool, axes ...int) transfer {
	return func(_ *scope, _ *tf.NodeDef, in []*tensor) []*tensor {
		x := in[0]
		if x.kind != derived || !x.ranked || !isIndependent(in[1:]...) || len(x.axes) < 3 {
			return nil
		}
		t := x.with(x.axes)
		for _, at := range axes {
			t.change.Mixes |= x.axes[len(x.axes)+at].dims()
			if !affine {
				t.change.Skews |= x.axes[len(x.axes)+at].dims()
			}
		}
		for _, other := range in[1:] {
			t.change.DependsOnSize |= other.sizeDependencies()
		}
		t.change.computed(nil)
		t.change.Affine = t.change.Affine && affine
		return single(t)
	}
}

// reducing computes one value from all values along some axes.
func reducing(affine bool) transfer {
	return func(f *scope, n *tf.NodeDef, in []*tensor) []*tensor {
		x, over := in[0], in[1]
		if n.GetOp() == "Prod" && x.intsKnown && isIndependent(x) && len(x.axes) == 1 && over.intsKnown && len(over.ints) == 1 {
			return single(withInts(derivedFrom(x), []symbolicSize{productOf(x.ints...)}))
		}
		if x.kind == opaque || !x.ranked || !over.intsKnown {
			return nil
		}
		t := x.with([]axis{})
		if x.kind != derived {
			t = derivedFrom(x).with([]axis{})
		}
		removed := map[int]bool{}
		for _, s := range over.ints {
			at, known := axisOf(s, len(x.axes))
			if !known {
				return nil
			}
			removed[at] = true
		}
		for i, a := range x.axes {
			switch {
			case !removed[i]:
				t.axes = append(t.axes, a)
				continue
			case n.GetAttr()["keep_dims"].GetB():
				t.axes = append(t.axes, axis{})
			}
			t.change.Mixes |= a.dims()
		}
		t.change.computed(nil)
		t.change.Affine = t.change.Affine && affine
		return single(t)
	}
}

// axisOf returns the index of an axis. A negative number counts from the end.
func axisOf(s symbolicSize, rank int) (int, bool) {
	at, known := s.constant()
	if at < 0 {
		at += int64(rank)
	}
	return int(at), known && at >= 0 && at < int64(rank)
}
