package dataflow

import (
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
)

// ChangeOf returns what a map's function does to a component.
func ChangeOf(g *graph.Graph, function string, component int, shape *tf.TensorShapeProto) Change {
	change, _ := ChangeAndShape(g, function, component, shape)
	return change
}

// ChangeAndShape returns what a map's function does to a component of some shape, and the component's shape
// after the step.
func ChangeAndShape(g *graph.Graph, function string, component int, shape *tf.TensorShapeProto) (Change, *tf.TensorShapeProto) {
	unknown := func(why string) (Change, *tf.TensorShapeProto) {
		return Change{Component: component, Opaque: why}, &tf.TensorShapeProto{UnknownRank: true}
	}
	rank := len(shape.GetDim())
	if shape.GetUnknownRank() || rank > maxDims {
		return unknown("its number of dimensions is not known")
	}
	v := &valueAnalysis{g: g, transfers: transferFunctions()}
	args := v.arguments(function, component, shape)
	whole := args[component]
	out := v.call(g.Function(function), args)
	if component >= len(out) {
		return unknown("the function has no such result")
	}
	result := out[component]
	switch {
	case result.kind == opaque:
		return unknown(result.why)
	case result.kind != derived:
		return unknown("it is replaced by values that do not depend on it")
	case !result.keepsDimensions(rank):
		return unknown("the step changes its dimensions")
	}
	change, after := result.change, &tf.TensorShapeProto{}
	change.Component = component
	for i, a := range result.axes {
		size, known := a.size().constant()
		if !known {
			size = -1
		}
		after.Dim = append(after.Dim, &tf.TensorShapeProto_Dim{Size: size})
		change.After = append(change.After, size)
		if !a.size().is(whole.axes[i].size()) {
			change.Sizes |= DimSet(i)
		}
	}
	return change, after
}

// arguments returns the arguments of a function. The analysis tracks one of them, the component.
func (v *valueAnalysis) arguments(function string, component int, shape *tf.TensorShapeProto) []*tensor {
	f := v.g.Function(function)
	args := make([]*tensor, len(f.GetSignature().GetInputArg()))
	for i := range args {
		args[i] = v.argument(f, i)
	}
	args[component] = v.component(shape)
	return args
}

// ChecksOf returns the dimensions of a component whose sizes affect what a map does besides returning
// results, such as a check that fails. known is false if that may depend on the component's values.
func ChecksOf(g *graph.Graph, function string, component int, shape *tf.TensorShapeProto) (dims Dims, known bool) {
	if shape.GetUnknownRank() || len(shape.GetDim()) > maxDims {
		return 0, false
	}
	v := &valueAnalysis{g: g, transfers: transferFunctions()}
	return v.effects(g.Function(function), v.arguments(function, component, shape))
}
