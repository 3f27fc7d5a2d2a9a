package pooled

import (
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
)

// tf.data rewrites a dataset when it makes an iterator, and does not rewrite nested datasets. By default it makes plain
// maps without state parallel, and the copies of batches. The pooled graph has the results of these two rewrites.

// defaults says which rewrites tf.data does for a dataset with these options.
type defaults struct{ maps, batches bool }

func defaultsOf(o *tf.Options) defaults {
	rewrites := o.GetOptimizationOptions()
	if rewrites.GetOptionalApplyDefaultOptimizations() != nil && !rewrites.GetApplyDefaultOptimizations() {
		return defaults{maps: rewrites.GetMapParallelization(), batches: rewrites.GetParallelBatch()}
	}
	tuned := o.GetAutotuneOptions().GetOptionalEnabled() == nil || o.GetAutotuneOptions().GetEnabled()
	return defaults{
		maps:    tuned && (rewrites.GetOptionalMapParallelization() == nil || rewrites.GetMapParallelization()),
		batches: rewrites.GetOptionalParallelBatch() == nil || rewrites.GetParallelBatch(),
	}
}

// autotune lets tf.data choose a number.
const autotune = -1

// applyDefaults changes a node of the stream's function as tf.data would.
func (t *Template) applyDefaults(n *tf.NodeDef) (added []*tf.NodeDef) {
	switch n.GetOp() {
	case "BatchDatasetV2", "PaddedBatchDatasetV2":
		if t.defaults.batches {
			n.Attr["parallel_copy"] = nodedef.BoolAttr(true)
		}
	case "MapDataset":
		if !t.defaults.maps || !t.isPlainMap(n) {
			return nil
		}
		calls := "pecan_parallel/" + n.GetName()
		n.Op = "ParallelMapDatasetV2"
		n.Input = nodedef.InsertInput(n.GetInput(), calls+":output:0")
		n.Attr["deterministic"] = nodedef.BytesAttr("true")
		delete(n.Attr, "force_synchronous")
		return []*tf.NodeDef{nodedef.Int64Const(calls, autotune)}
	}
	return nil
}

// isStateful returns whether tf.data takes a function for stateful.
func (t *Template) isStateful(name string) bool {
	f := t.functions[name]
	if !f.GetSignature().GetIsStateful() {
		return false
	}
	for _, n := range f.GetNodeDef() {
		switch op := n.GetOp(); {
		case op == pullOp:
			return true
		case !t.ops.Def(op).GetIsStateful(), op == "Assert":
		case op == "If", op == "While":
			for _, called := range nodedef.CalledFunctions(n) {
				if t.isStateful(called) {
					return true
				}
			}
		default:
			return true
		}
	}
	return false
}
