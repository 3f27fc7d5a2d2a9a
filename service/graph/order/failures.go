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

// Which ops may fail. A step that may must not be run for elements that it did not get in the original order, and a sample of the
// elements does not show it: so an op may fail unless it is known that it cannot.

// totalOps give a result for whatever they are given.
var totalOps = ops.Names(`
	Const NoOp Identity IdentityN StopGradient PreventGradient Snapshot Shape ShapeN Size Rank ZerosLike OnesLike Cast StringLength
	StaticRegexFullMatch StringLower StringUpper StringStrip
	Abs Acos Acosh Asin Asinh Atan Atanh Ceil Cos Cosh Digamma Elu Erf Erfc Exp Expm1 Floor Inv Invert IsFinite IsInf IsNan LeakyRelu Lgamma Log
	Log1p LogicalNot Neg Reciprocal Relu Relu6 Rint Round Rsqrt Selu Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Square Tan Tanh
`)

// fittingOps give a result for whatever values they are given, if the sizes fit, which tracing has seen to where all sizes are known (but
// for the places of a gather). The numbers are of those inputs that must be constants for that.
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

// dividing are ops that fail on integers where the right one is 0, or that do not know what to do with them.
var dividing = ops.Names(`Div RealDiv FloorDiv FloorMod Mod TruncateDiv TruncateMod Pow`)

// checkingOps are there to fail.
var checkingOps = ops.Names(`Assert CheckNumerics CheckNumericsV2 EnsureShape`)

// failures finds by what a step may fail.
func (p *traitAnalysis) failures(t *Traits, function string) {
	sized := true
	for _, i := range t.Reads {
		sized = sized && !t.Before[i].GetUnknownRank() && !slices.ContainsFunc(t.Before[i].GetDims(), func(n int64) bool { return n <= 0 })
	}
	t.CanFail = findOp(p.g, function, func(n *tf.NodeDef, of map[string]*tf.NodeDef) bool { return mayFail(n, of, sized) })
	t.Divides = findOp(p.g, function, failsToDivide)
	t.Checks = findOp(p.g, function, func(n *tf.NodeDef, _ map[string]*tf.NodeDef) bool { return checkingOps[n.GetOp()] })
}

// findOp names the first op in a function, or in those that it calls, that is such a one; "" where there is none.
func findOp(g *graph.Graph, function string, is func(n *tf.NodeDef, of map[string]*tf.NodeDef) bool) string {
	nodes := map[string]*tf.NodeDef{}
	for _, n := range g.Function(function).GetNodeDef() {
		nodes[n.GetName()] = n
	}
	for _, n := range g.Function(function).GetNodeDef() {
		if is(n, nodes) {
			return n.GetOp()
		}
		for _, called := range nodedef.CalledFunctions(n) {
			if op := findOp(g, called, is); op != "" {
				return op
			}
		}
	}
	return ""
}

// mayFail tells whether an op may fail for some values. Where an op calls functions those are looked at for themselves.
func mayFail(n *tf.NodeDef, of map[string]*tf.NodeDef, sized bool) bool {
	op := n.GetOp()
	switch constants, fits := fittingOps[op]; {
	case totalOps[op], ops.CallsOnce[op]:
		return false
	case op == "ConcatV2":
		return !sized || constantIn(n, nodedef.DataInputCount(n)-1, of) == nil
	case fits:
		return !sized || slices.ContainsFunc(constants, func(i int) bool { return constantIn(n, i, of) == nil })
	case dividing[op]:
		return !sized || failsToDivide(n, of)
	}
	return true
}

// failsToDivide tells whether an op fails for some values of integers.
func failsToDivide(n *tf.NodeDef, of map[string]*tf.NodeDef) bool {
	return dividing[n.GetOp()] && dataflow.IsInteger(n.GetAttr()["T"].GetType()) && (n.GetOp() == "Pow" || !safeDivisor(constantIn(n, 1, of)))
}

// safeDivisor tells whether a constant is a divisor of any integer. The smallest integer has no opposite.
func safeDivisor(constant *tf.NodeDef) bool {
	values, known := nodedef.Ints(constant)
	return known && len(values) > 0 && !slices.Contains(values, 0) && !slices.Contains(values, -1)
}

// constantIn gives the constant that an input of a node inside a function is, nil where it is none.
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
