package rewrite

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/pecan-ml/pecan/proto/reason"
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// serialise makes a parallel step compute one element at a time, in order. tf.data's option deterministic is
// not enough: it orders the results, not the draws of random values. serialise removes arguments of the step,
// so do not set arguments after it.
func (e *editor) serialise(c *tf.NodeDef) {
	to := ops.SequentialOps[c.GetOp()]
	keep := e.g.InputIndex(c, to.LastArg) + 1
	if to.LastArg == "other_arguments" {
		keep = len(c.GetInput())
		for keep > 0 && strings.HasPrefix(c.GetInput()[keep-1], "^") {
			keep--
		}
		keep--
	}
	inputs := append([]string(nil), c.Input[:keep]...)
	for _, input := range c.Input[keep:] {
		if strings.HasPrefix(input, "^") {
			inputs = append(inputs, input)
		}
	}
	c.Op, c.Input = to.Op, inputs
	def := e.g.Ops().Def(to.Op)
	for key := range c.Attr {
		if ops.AttrDef(def, key) == nil && !strings.HasPrefix(key, "_") {
			delete(c.Attr, key)
		}
	}
}

const (
	prefetchOp      = "PrefetchDataset"
	parallelBatchOp = "ParallelBatchDataset"
)

// prefetches returns whether a dataset op computes elements before they are requested, or several at once, and
// has no serial variant.
func prefetches(op string) bool {
	switch op {
	case "ParseExampleDataset", "ParseExampleDatasetV2", "ExperimentalParseExampleDataset", "PrefetchingDataset", "ThreadPoolDataset",
		"ExperimentalThreadPoolDataset":
		return true
	}
	return ops.IsParallel(op) && ops.SequentialOps[op].Op == ""
}

// checkSerial returns an error if a step of a dataset cannot be made to compute one element at a time.
func checkSerial(g *graph.Graph) error {
	return g.EachNode(func(n *tf.NodeDef, function string) error {
		op := n.GetOp()
		if !g.Ops().IsDataset(op) || !prefetches(op) && (function == "" || op != parallelBatchOp) {
			return nil
		}
		return reason.New(reason.Unsupported, "node %s is a %s, which cannot compute one element at a time", nodedef.Quote(nodedef.Path(function, n)), op)
	})
}

// batchSerially turns a parallel batch, which copies elements in parallel and before they are requested, into a
// plain one.
func (e *editor) batchSerially(name string) {
	if e.Node(name).GetOp() != parallelBatchOp {
		return
	}
	c := e.Edit(name)
	calls := e.g.InputIndex(c, "num_parallel_calls")
	c.Input = slices.Delete(c.Input, calls, calls+1)
	c.Op = "BatchDatasetV2"
	def := e.g.Ops().Def(c.Op)
	for key := range c.Attr {
		if ops.AttrDef(def, key) == nil && !strings.HasPrefix(key, "_") {
			delete(c.Attr, key)
		}
	}
	c.Attr["parallel_copy"] = nodedef.BoolAttr(false)
}

// clearThreads removes the user's options for threads of the iterator.
func (e *editor) clearThreads(n *tf.NodeDef) {
	o, ok := graph.ReadOptions(n)
	if !ok || o.GetThreadingOptions() == nil {
		return
	}
	o.ThreadingOptions = nil
	if raw, err := (proto.MarshalOptions{Deterministic: true}).Marshal(o); err == nil {
		e.Edit(n.GetName()).Attr["serialized_options"] = nodedef.BytesAttr(string(raw))
	}
}

// serialOptions makes ops run in the thread of their function, and turns off tf.data's autotuning and the
// rewrites that make steps parallel.
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
