package dataflow

import (
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
)

// ChangeOf gives what a map does to a component.
func ChangeOf(g *graph.Graph, function string, component int, shape *tf.TensorShapeProto) Change {
	change, _ := ChangeAndShape(g, function, component, shape)
	return change
}

// ChangeAndShape gives what a map does to a component of some shape, and the shape that it has behind it.
func ChangeAndShape(g *graph.Graph, function string, component int, shape *tf.TensorShapeProto) (Change, *tf.TensorShapeProto) {
	unknown := func(why string) (Change, *tf.TensorShapeProto) {
		return Change{Component: component, Opaque: why}, &tf.TensorShapeProto{UnknownRank: true}
	}
	rank := len(shape.GetDim())
	if shape.GetUnknownRank() || rank > maxDims {
		return unknown("its number of dimensions is not known")
	}
	w := &valueAnalysis{g: g, follows: transferFunctions()}
	args := w.arguments(function, component, shape)
	whole := args[component]
	out := w.call(g.Function(function), args)
	if component >= len(out) {
		return unknown("it has no such result")
	}
	result := out[component]
	switch {
	case result.kind == opaque:
		return unknown(result.why)
	case result.kind != derived:
		return unknown("it is made anew, of other things")
	case !result.keepsDimensions(rank):
		return unknown("its dimensions are others behind it")
	}
	change, behind := result.change, &tf.TensorShapeProto{}
	change.Component = component
	for i, a := range result.axes {
		size, known := a.size().constant()
		if !known {
			size = -1
		}
		behind.Dim = append(behind.Dim, &tf.TensorShapeProto_Dim{Size: size})
		change.After = append(change.After, size)
		if !a.size().is(whole.axes[i].size()) {
			change.Sizes |= DimSet(i)
		}
	}
	return change, behind
}

// arguments are the arguments of a function, of which one is followed.
func (w *valueAnalysis) arguments(function string, component int, shape *tf.TensorShapeProto) []*tensor {
	f := w.g.Function(function)
	args := make([]*tensor, len(f.GetSignature().GetInputArg()))
	for i := range args {
		args[i] = w.argument(f, i)
	}
	args[component] = w.component(shape)
	return args
}

// ChecksOf gives the dimensions of a component on whose sizes it depends what a map does besides giving results; known is false where
// that may depend on its values.
func ChecksOf(g *graph.Graph, function string, component int, shape *tf.TensorShapeProto) (dims Dims, known bool) {
	if shape.GetUnknownRank() || len(shape.GetDim()) > maxDims {
		return 0, false
	}
	w := &valueAnalysis{g: g, follows: transferFunctions()}
	return w.effects(g.Function(function), w.arguments(function, component, shape))
}
