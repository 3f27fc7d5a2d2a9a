package graph

import (
	"google.golang.org/protobuf/proto"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
)

// readOptions gives what an OptionsDataset sets.
func readOptions(n *tf.NodeDef) (*tf.Options, bool) {
	if n.GetOp() != "OptionsDataset" {
		return nil, false
	}
	var o tf.Options
	if err := proto.Unmarshal(n.GetAttr()["serialized_options"].GetS(), &o); err != nil {
		return nil, false
	}
	return &o, true
}

// tightenOptions clears the user's leave to give elements as they get ready: it would flip steps that Pecan set.
func (e *editor) tightenOptions(n *tf.NodeDef) {
	o, ok := readOptions(n)
	if !ok || o.GetOptionalDeterministic() == nil || o.GetDeterministic() {
		return
	}
	o.OptionalDeterministic = nil
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(o)
	if err != nil {
		return
	}
	e.edit(n.GetName()).Attr["serialized_options"] = &tf.AttrValue{Value: &tf.AttrValue_S{S: raw}}
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
	if e.ordered() {
		// Whatever the user's options say, elements come in order; steps that draw are serialised in the graph itself.
		o.OptionalDeterministic = &tf.Options_Deterministic{Deterministic: true}
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
	for _, n := range e.g.order {
		if o, ok := readOptions(n); ok && o.GetThreadingOptions().GetOptionalPrivateThreadpoolSize() != nil {
			return true
		}
	}
	return false
}
