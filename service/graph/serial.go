package graph

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/pecan-ml/pecan/proto/reason"
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
)

const (
	prefetchOp      = "PrefetchDataset"
	parallelBatchOp = "ParallelBatchDataset"
)

// worksAhead tells whether a dataset op makes elements that nobody has asked for yet, or several at once, and has no form that does not.
func worksAhead(op string) bool {
	switch op {
	case "ParseExampleDataset", "ParseExampleDatasetV2", "ExperimentalParseExampleDataset", "PrefetchingDataset", "ThreadPoolDataset",
		"ExperimentalThreadPoolDataset":
		return true
	}
	return sideBySide(op) && serialOps[op].op == ""
}

// serialises says which step of a dataset cannot be made to work on one element after another.
func (g *Graph) serialises() error {
	return g.eachNode(func(n *tf.NodeDef, function string) error {
		op := n.GetOp()
		if !g.ops.isDataset(op) || !worksAhead(op) && (function == "" || op != parallelBatchOp) {
			return nil
		}
		return reason.New(reason.Unsupported, "node %s is a %s, which cannot work on one element at a time", quoteName(nodePath(function, n)), op)
	})
}

// batchSerially makes a batch that copies elements side by side, and ahead, the plain one.
func (e *editor) batchSerially(name string) {
	if e.node(name).GetOp() != parallelBatchOp {
		return
	}
	c := e.edit(name)
	calls := e.g.inputIndex(c, "num_parallel_calls")
	c.Input = slices.Delete(c.Input, calls, calls+1)
	c.Op = "BatchDatasetV2"
	def := e.g.ops.byName[c.Op]
	for key := range c.Attr {
		if attrDef(def, key) == nil && !strings.HasPrefix(key, "_") {
			delete(c.Attr, key)
		}
	}
	c.Attr["parallel_copy"] = boolAttr(false)
}

// noThreads clears the user's wish for threads of the iterator's own.
func (e *editor) noThreads(n *tf.NodeDef) {
	o, ok := readOptions(n)
	if !ok || o.GetThreadingOptions() == nil {
		return
	}
	o.ThreadingOptions = nil
	if raw, err := (proto.MarshalOptions{Deterministic: true}).Marshal(o); err == nil {
		e.edit(n.GetName()).Attr["serialized_options"] = bytesAttr(string(raw))
	}
}

// serialOptions have operations work in the thread that runs their function, and no rewrite or tuning of tf.data's make more of a step
// than the graph says.
func serialOptions(o *tf.Options) {
	o.ThreadingOptions = &tf.ThreadingOptions{
		OptionalMaxIntraOpParallelism: &tf.ThreadingOptions_MaxIntraOpParallelism{MaxIntraOpParallelism: 1},
	}
	o.AutotuneOptions = &tf.AutotuneOptions{OptionalEnabled: &tf.AutotuneOptions_Enabled{Enabled: false}}
	rewrites := o.OptimizationOptions
	rewrites.OptionalApplyDefaultOptimizations = &tf.OptimizationOptions_ApplyDefaultOptimizations{ApplyDefaultOptimizations: false}
	rewrites.OptionalMapParallelization = &tf.OptimizationOptions_MapParallelization{MapParallelization: false}
	rewrites.OptionalFilterParallelization = &tf.OptimizationOptions_FilterParallelization{FilterParallelization: false}
	rewrites.OptionalParallelBatch = &tf.OptimizationOptions_ParallelBatch{ParallelBatch: false}
	rewrites.OptionalSeqInterleavePrefetch = &tf.OptimizationOptions_SeqInterleavePrefetch{SeqInterleavePrefetch: false}
}
