package pooled

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
)

// optionsAt returns the options of a dataset node, merged as TensorFlow merges them: first those of the inputs, in order,
// then the node's own.
func (t *Template) optionsAt(name string) *tf.Options {
	merged := new(tf.Options)
	n := t.nodes[name]
	if own, ok := graph.ReadOptions(n); ok {
		defer func() { proto.Merge(merged, own) }()
	}
	for _, input := range t.datasetInputs(n) {
		proto.Merge(merged, t.optionsAt(input))
	}
	return merged
}

// datasetInputs returns the nodes of a node's input datasets, without captured ones.
func (t *Template) datasetInputs(n *tf.NodeDef) (inputs []string) {
	at := 0
	for _, arg := range t.ops.Def(n.GetOp()).GetInputArg() {
		size := argSize(arg, n)
		for i := at; i < at+size && i < len(n.GetInput()); i++ {
			name, _, control := nodedef.SplitInput(n.GetInput()[i])
			if !control && !strings.HasSuffix(arg.GetName(), "other_arguments") && t.ops.IsDataset(t.nodes[name].GetOp()) {
				inputs = append(inputs, name)
			}
		}
		at += size
	}
	return inputs
}

// argSize is the number of inputs of an argument.
func argSize(arg *tf.OpDef_ArgDef, n *tf.NodeDef) int {
	switch {
	case arg.GetNumberAttr() != "":
		return int(n.GetAttr()[arg.GetNumberAttr()].GetI())
	case arg.GetTypeListAttr() != "":
		return len(n.GetAttr()[arg.GetTypeListAttr()].GetList().GetType())
	}
	return 1
}

// checkOptions refuses options that make tf.data rewrite the dataset in a way that a nested dataset does not get.
func checkOptions(o *tf.Options) error {
	if o.GetOptionalDeterministic() != nil && !o.GetDeterministic() {
		return fmt.Errorf("the option deterministic is false")
	}
	if o.GetOptionalSlack() != nil && o.GetSlack() {
		return fmt.Errorf("the option slack is true")
	}
	asked := new(tf.OptimizationOptions)
	proto.Merge(asked, o.GetOptimizationOptions())
	// Without map fusions and an injected prefetch, these have no effect, or defaults.go has their effect.
	if !asked.GetMapAndBatchFusion() {
		asked.OptionalMapAndBatchFusion = nil
	}
	if !asked.GetShuffleAndRepeatFusion() {
		asked.OptionalShuffleAndRepeatFusion = nil
	}
	if !asked.GetMapFusion() {
		asked.OptionalMapFusion = nil
	}
	if !asked.GetFilterFusion() {
		asked.OptionalFilterFusion = nil
	}
	if !asked.GetMapAndFilterFusion() {
		asked.OptionalMapAndFilterFusion = nil
	}
	if !asked.GetInjectPrefetch() {
		asked.OptionalInjectPrefetch = nil
	}
	if !asked.GetFilterParallelization() {
		asked.OptionalFilterParallelization = nil
	}
	if !asked.GetSeqInterleavePrefetch() {
		asked.OptionalSeqInterleavePrefetch = nil
	}
	asked.OptionalApplyDefaultOptimizations, asked.OptionalMapParallelization, asked.OptionalParallelBatch, asked.OptionalNoopElimination = nil, nil, nil, nil
	if proto.Size(asked) > 0 {
		return fmt.Errorf("options ask for other rewrites of tf.data: %v", asked)
	}
	return nil
}
