package order

import (
	"slices"
	"strings"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/dataflow"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// A step that can fail must not get elements that it does not get in the original order. A trial on a sample of
// elements does not show such a failure. So an op counts as one that can fail, unless it is listed here.

// totalOps return a result for every input.
var totalOps = ops.Names(`
	Const NoOp Identity IdentityN StopGradient PreventGradient Snapshot Shape ShapeN Size Rank ZerosLike OnesLike Cast StringLength
	StaticRegexFullMatch StringLower StringUpper StringStrip
	Abs Acos Acosh Asin Asinh Atan Atanh Ceil Cos Cosh Digamma Elu Erf Erfc Exp Expm1 Floor Inv Invert IsFinite IsInf IsNan LeakyRelu Lgamma Log
	Log1p LogicalNot Neg Reciprocal Relu Relu6 Rint Round Rsqrt Selu Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Square Tan Tanh
`)

// fittingOps return a result for all values, if the sizes of their inputs fit. Tracing has checked the sizes if
// all of them are known and the listed inputs are constants. GatherV2 is not here, because its indices may be
// out of range.
var fittingOps = map[string][]int{
	"Add": nil, "AddV2": nil, "Sub": nil, "Mul": nil, "Maximum": nil, "Minimum": nil, "SquaredDifference": nil, "Equal": nil, "NotEqual": nil,
	"Less": nil, "LessEqual": nil, "Greater": nil, "GreaterEqual": nil, "LogicalAnd": nil, "LogicalOr": nil, "BitwiseAnd": nil, "BitwiseOr": nil,
	"BitwiseXor": nil, "Atan2": nil, "DivNoNan": nil, "MulNoNan": nil, "Xdivy": nil, "Xlogy": nil, "ClipByValue": nil, "SelectV2": nil, "Select": nil,
	"MatMul": nil, "Pack": nil, "Unpack": nil, "Squeeze": nil, "AdjustContrastv2": nil, "AdjustHue": nil, "AdjustSaturation": nil, "RGBToHSV": nil,
	"HSVToRGB": nil, "DepthwiseConv2dNative": nil, "ImageProjectiveTransformV3": {2},
	"ReverseV2": {1}, "Slice": {1, 2}, "StridedSlice": {1, 2, 3}, "Pad": {1}, "PadV2": {1}, "MirrorPad": {1}, "Transpose": {1}, "Tile": {1},
	"ExpandDims": {1}, "Reshape": {1}, "Fill": {0}, "BroadcastTo": {1}, "OneHot": {1},
	"Mean": {1}, "Sum": {1}, "Max": {1}, "Min": {1}, "Prod": {1}, "All": {1}, "Any": {1}, "EuclideanNorm": {1},
	"ResizeArea": {1}, "ResizeBicubic": {1}, "ResizeBilinear": {1}, "ResizeNearestNeighbor": {1},
	"RandomUniform": {0}, "RandomStandardNormal": {0}, "TruncatedNormal": {0},
}

// divisionOps fail for some integers: for a divisor of 0, and Pow for a negative exponent.
var divisionOps = ops.Names(`Div RealDiv FloorDiv FloorMod Mod TruncateDiv TruncateMod Pow`)

// checkingOps check their input: their purpose is to fail.
var checkingOps = ops.Names(`Assert CheckNumerics CheckNumericsV2 EnsureShape`)

// failures finds the ops by which a step can fail.
func (a *traitAnalysis) failures(t *Traits, function string) {
	sized := true
	for _, i := range t.Reads {
		sized = sized && !t.Before[i].GetUnknownRank() && !slices.ContainsFunc(t.Before[i].GetDims(), func(n int64) bool { return n <= 0 })
	}
	t.CanFail = findOp(a.g, function, func(n *tf.NodeDef, of map[string]*tf.NodeDef) bool { return mayFail(n, of, sized) })
	t.FailsForIntegers = findOp(a.g, function, failsToDivide)
	t.Checks = findOp(a.g, function, func(n *tf.NodeDef, _ map[string]*tf.NodeDef) bool { return checkingOps[n.GetOp()] })
}

// findOp returns the first op that matches in a function or in the functions that it calls; "" without one.
func findOp(g *graph.Graph, function string, matches func(n *tf.NodeDef, of map[string]*tf.NodeDef) bool) string {
	nodes := map[string]*tf.NodeDef{}
	for _, n := range g.Function(function).GetNodeDef() {
		nodes[n.GetName()] = n
	}
	for _, n := range g.Function(function).GetNodeDef() {
		if matches(n, nodes) {
			return n.GetOp()
		}
		for _, called := range nodedef.CalledFunctions(n) {
			if op := findOp(g, called, matches); op != "" {
				return op
			}
		}
	}
	return ""
}

// mayFail returns whether an op can fail for some values. findOp examines the functions that the op calls.
func mayFail(n *tf.NodeDef, of map[string]*tf.NodeDef, sized bool) bool {
	op := n.GetOp()
	switch constants, fits := fittingOps[op]; {
	case totalOps[op], ops.CallsOnce[op]:
		return false
	case op == "ConcatV2":
		return !sized || constantIn(n, nodedef.DataInputCount(n)-1, of) == nil
	case fits:
		return !sized || slices.ContainsFunc(constants, func(i int) bool { return constantIn(n, i, of) == nil })
	case divisionOps[op]:
		return !sized || failsToDivide(n, of)
	}
	return true
}

// failsToDivide returns whether an op fails for some integers.
func failsToDivide(n *tf.NodeDef, of map[string]*tf.NodeDef) bool {
	return divisionOps[n.GetOp()] && dataflow.IsInteger(n.GetAttr()["T"].GetType()) && (n.GetOp() == "Pow" || !safeDivisor(constantIn(n, 1, of)))
}

// safeDivisor returns whether every integer can be divided by a constant. -1 is not safe, because the quotient
// of the smallest integer and -1 overflows.
func safeDivisor(constant *tf.NodeDef) bool {
	values, known := nodedef.Ints(constant)
	return known && len(values) > 0 && !slices.Contains(values, 0) && !slices.Contains(values, -1)
}

// constantIn returns the constant that is the input of a node inside a function; nil if the input is no constant.
func constantIn(n *tf.NodeDef, input int, of map[string]*tf.NodeDef) *tf.NodeDef {
	if input < 0 || input >= len(n.GetInput()) || strings.HasPrefix(n.GetInput()[input], "^") {
		return nil
	}
	from := of[nodedef.InputNode(n.GetInput()[input])]
	for from.GetOp() == "Identity" && len(from.GetInput()) > 0 {
		from = of[nodedef.InputNode(from.GetInput()[0])]
	}
	if from.GetOp() != "Const" {
		return nil
	}
	return from
}
