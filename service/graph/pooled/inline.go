package pooled

import (
	"errors"
	"fmt"
	"slices"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// Steps that run inline compute in the thread that fetches the element. tf.data's default is a thread per map and a pool of
// threads for their functions, so an element changes threads at least twice per map. Inline steps use one core, so they
// are for workers that run a stream on each core.
//
// The functions and their optimisation stay the same. Only the executor differs: TensorFlow's single-threaded one, which
// has no Switch and Merge. The caller must keep the ops to the thread (see tf.Iterator.KeepToThread).

// staysInThread are the dataset ops that read their input in the thread that reads them. Other ops may read it in a thread
// of their own, where ops are not limited to that thread.
var staysInThread = ops.Names(`
	RangeDataset TensorDataset TensorSliceDataset TFRecordDataset TFRecordDatasetV2 TextLineDataset FixedLengthRecordDataset
	FixedLengthRecordDatasetV2 MapDataset BatchDataset BatchDatasetV2 PaddedBatchDataset PaddedBatchDatasetV2 ShuffleDataset
	ShuffleDatasetV2 ShuffleDatasetV3 TakeDataset SkipDataset ShardDataset RepeatDataset ConcatenateDataset ZipDataset
	FilterDataset OptionsDataset BytesProducedStatsDataset SetStatsAggregatorDataset AssertCardinalityDataset UnbatchDataset
	FlatMapDataset InterleaveDataset WindowDataset
`)

// mayWait are the ops without state that may wait for something else than a core.
var mayWait = ops.Names("ReadFile MatchingFiles")

// controls are the ops that the single-threaded executor cannot run, or that become such ops.
var controls = ops.Names(`
	If StatelessIf While StatelessWhile Case StatelessCase For Switch RefSwitch Merge RefMerge Enter RefEnter Exit RefExit
	NextIteration RefNextIteration LoopCond
`)

// WhyNotInline returns why the steps cannot run inline; nil if they can.
func (t *Template) WhyNotInline() error { return t.notInline }

// whyNotInline allows only steps that compute in the thread that fetches, with functions that cannot wait. A template
// without a map gains nothing from running inline.
func (t *Template) whyNotInline() error {
	if t.options.GetThreadingOptions() != nil {
		return errors.New("the options set threads")
	}
	maps := 0
	for _, n := range t.def.GetNode() {
		op := n.GetOp()
		if !t.ops.IsDataset(op) {
			continue
		}
		if !staysInThread[op] {
			return fmt.Errorf("node %s is a %s", nodedef.Quote(n.GetName()), op)
		}
		if !t.isPlainMap(n) {
			continue
		}
		maps++
		if err := t.whyFunctionNotInline(n.GetAttr()["f"].GetFunc().GetName(), nil); err != nil {
			return err
		}
	}
	if maps == 0 {
		return errors.New("no step would be parallel")
	}
	return nil
}

// isPlainMap returns whether a node is a map that tf.data may make parallel.
func (t *Template) isPlainMap(n *tf.NodeDef) bool {
	return n.GetOp() == "MapDataset" && !n.GetAttr()["force_synchronous"].GetB() && !t.isStateful(n.GetAttr()["f"].GetFunc().GetName())
}

// whyFunctionNotInline returns why a function, or one that it calls, cannot run in one thread. callers are the functions
// that call it.
func (t *Template) whyFunctionNotInline(name string, callers []string) error {
	f := t.functions[name]
	if f == nil || slices.Contains(callers, name) {
		return fmt.Errorf("function %s is unknown or calls itself", nodedef.Quote(name))
	}
	for _, n := range f.GetNodeDef() {
		op := n.GetOp()
		if controls[op] || mayWait[op] || t.ops.IsDataset(op) {
			return fmt.Errorf("function %s has a %s", nodedef.Quote(name), op)
		}
		for _, called := range nodedef.CalledFunctions(n) {
			if err := t.whyFunctionNotInline(called, append(callers, name)); err != nil {
				return err
			}
		}
	}
	return nil
}

// runInline changes a node of the stream's function so that its step runs inline.
func (t *Template) runInline(n *tf.NodeDef) {
	switch n.GetOp() {
	case "BatchDatasetV2", "PaddedBatchDatasetV2":
		n.Attr["parallel_copy"] = nodedef.BoolAttr(false)
	case "MapDataset":
		if t.isPlainMap(n) {
			n.Attr["use_inter_op_parallelism"] = nodedef.BoolAttr(false)
		}
	}
}
