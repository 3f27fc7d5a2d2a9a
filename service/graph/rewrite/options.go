package rewrite

import (
	"errors"
	"slices"

	"google.golang.org/protobuf/proto"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
)

// tightenOptions removes the user's option deterministic=False, which would override the order that Pecan sets
// for steps.
func (e *editor) tightenOptions(n *tf.NodeDef) {
	o, ok := graph.ReadOptions(n)
	if !ok || o.GetOptionalDeterministic() == nil || o.GetDeterministic() {
		return
	}
	o.OptionalDeterministic = nil
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(o)
	if err != nil {
		return
	}
	e.Edit(n.GetName()).Attr["serialized_options"] = &tf.AttrValue{Value: &tf.AttrValue_S{S: raw}}
}

// streamOptions returns the options at the end of every stream graph. The fusions are off for two reasons. The metrics of
// nodes and the policies need each step as the user wrote it, and a fused shuffle would not use Pecan's seeds. The other
// rewrites of tf.data (parallel maps, no-op removal) keep elements and order, and stay on.
func (e *editor) streamOptions() []byte {
	o := &tf.Options{OptimizationOptions: &tf.OptimizationOptions{
		OptionalMapAndBatchFusion:      &tf.OptimizationOptions_MapAndBatchFusion{MapAndBatchFusion: false},
		OptionalShuffleAndRepeatFusion: &tf.OptimizationOptions_ShuffleAndRepeatFusion{ShuffleAndRepeatFusion: false},
		OptionalMapFusion:              &tf.OptimizationOptions_MapFusion{MapFusion: false},
		OptionalFilterFusion:           &tf.OptimizationOptions_FilterFusion{FilterFusion: false},
		OptionalMapAndFilterFusion:     &tf.OptimizationOptions_MapAndFilterFusion{MapAndFilterFusion: false},
		// The worker's window prefetches. A prefetch of tf.data at the root would double the CPU of a small
		// element, and hold elements beyond the window's bound.
		OptionalInjectPrefetch: &tf.OptimizationOptions_InjectPrefetch{InjectPrefetch: false},
	}}
	if mentions(e.g, tf.DataType_DT_FLOAT8_E5M2) {
		// TensorFlow's optimizers convert the graph to a form that cannot be converted back with this dtype.
		o.OptimizationOptions = &tf.OptimizationOptions{
			OptionalApplyDefaultOptimizations: &tf.OptimizationOptions_ApplyDefaultOptimizations{ApplyDefaultOptimizations: false},
		}
	}
	if e.ordered() {
		// This overrides the user's option, so that elements keep their order. The graph itself serialises
		// random steps.
		o.OptionalDeterministic = &tf.Options_Deterministic{Deterministic: true}
	}
	if e.at.Serial {
		serialOptions(o)
	}
	if e.at.Threads > 0 && !e.userSetsThreads() {
		o.ThreadingOptions = &tf.ThreadingOptions{
			OptionalPrivateThreadpoolSize: &tf.ThreadingOptions_PrivateThreadpoolSize{PrivateThreadpoolSize: int32(e.at.Threads)},
		}
	}
	if e.at.RAMBudget > 0 {
		o.AutotuneOptions = &tf.AutotuneOptions{
			OptionalRamBudget: &tf.AutotuneOptions_RamBudget{RamBudget: e.at.RAMBudget},
		}
	}
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(o)
	if err != nil {
		return nil
	}
	return raw
}

func (e *editor) userSetsThreads() bool {
	for _, n := range e.g.Order() {
		if o, ok := graph.ReadOptions(n); ok && o.GetThreadingOptions().GetOptionalPrivateThreadpoolSize() != nil {
			return true
		}
	}
	return false
}

// mentions returns whether the graph or a function in it contains a dtype.
func mentions(g *graph.Graph, dtype tf.DataType) bool {
	for _, f := range g.Def().GetLibrary().GetFunction() {
		sig := f.GetSignature()
		for _, arg := range append(sig.GetInputArg()[:len(sig.GetInputArg()):len(sig.GetInputArg())], sig.GetOutputArg()...) {
			if arg.GetType() == dtype {
				return true
			}
		}
	}
	found := errors.New("found")
	return g.EachNode(func(n *tf.NodeDef, _ string) error {
		for _, v := range n.GetAttr() {
			if v.GetType() == dtype || v.GetTensor().GetDtype() == dtype || slices.Contains(v.GetList().GetType(), dtype) {
				return found
			}
		}
		return nil
	}) != nil
}
