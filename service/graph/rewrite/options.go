package rewrite

import (
	"errors"
	"slices"

	"google.golang.org/protobuf/proto"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
)

// tightenOptions clears the user's leave to give elements as they get ready: it would flip steps that Pecan set.
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

// streamOptions are the options that every stream graph ends with. The fusions are off because per-node metrics and the
// policies need each step as the user wrote it, and because a fused shuffle would not take our seeds; the other
// rewrites of tf.data (parallel maps, no-op removal) keep elements and order and stay on.
func (e *editor) streamOptions() []byte {
	o := &tf.Options{OptimizationOptions: &tf.OptimizationOptions{
		OptionalMapAndBatchFusion:      &tf.OptimizationOptions_MapAndBatchFusion{MapAndBatchFusion: false},
		OptionalShuffleAndRepeatFusion: &tf.OptimizationOptions_ShuffleAndRepeatFusion{ShuffleAndRepeatFusion: false},
		OptionalMapFusion:              &tf.OptimizationOptions_MapFusion{MapFusion: false},
		OptionalFilterFusion:           &tf.OptimizationOptions_FilterFusion{FilterFusion: false},
		OptionalMapAndFilterFusion:     &tf.OptimizationOptions_MapAndFilterFusion{MapAndFilterFusion: false},
		// The worker's window is the prefetch: one of tf.data's own at the root doubles the CPU of a small element, and keeps
		// elements beyond the window's bound.
		OptionalInjectPrefetch: &tf.OptimizationOptions_InjectPrefetch{InjectPrefetch: false},
	}}
	if mentions(e.g, tf.DataType_DT_FLOAT8_E5M2) {
		// TensorFlow's optimizers take the graph through a form that cannot be written back with this dtype in it.
		o.OptimizationOptions = &tf.OptimizationOptions{
			OptionalApplyDefaultOptimizations: &tf.OptimizationOptions_ApplyDefaultOptimizations{ApplyDefaultOptimizations: false},
		}
	}
	if e.ordered() {
		// Whatever the user's options say, elements come in order; steps that draw are serialised in the graph itself.
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

// mentions tells whether a dtype stands anywhere in the graph or its functions.
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
