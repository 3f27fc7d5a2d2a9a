package cacheable

import (
	"slices"
	"strings"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// Ragged and sparse values travel through a pipeline as tensors of dtype variant. TensorFlow writes these as bytes, but it cannot
// write other variants, such as datasets and optional values.

// variantOps are the ops whose variants can be written. The others pass variants on.
var variantOps = ops.Names(`RaggedTensorToVariant SerializeSparse SerializeManySparse
	Const Identity IdentityN Pack Unpack ConcatV2 Reshape Slice StridedSlice GatherV2 ExpandDims Squeeze EnsureShape EmptyTensorList`)

// writesVariants reports whether all variants of the dataset can be written.
func (r *Rules) writesVariants() bool {
	writes := true
	_ = r.g.EachNode(func(n *tf.NodeDef, _ string) error {
		switch op := n.GetOp(); {
		case op == "WindowDataset", r.returnsDatasets(n):
			writes = false
		case r.g.Ops().IsDataset(op), variantOps[op], strings.HasPrefix(op, "TensorList"), len(nodedef.CalledFunctions(n)) > 0:
		default:
			writes = writes && !r.returnsVariants(n)
		}
		return nil
	})
	return writes
}

// returnsVariants reports whether a node has an output of dtype variant.
func (r *Rules) returnsVariants(n *tf.NodeDef) bool {
	for _, arg := range r.g.Ops().Def(n.GetOp()).GetOutputArg() {
		types := append([]tf.DataType{arg.GetType(), r.g.Attr(n, arg.GetTypeAttr()).GetType()}, r.g.Attr(n, arg.GetTypeListAttr()).GetList().GetType()...)
		if slices.Contains(types, tf.DataType_DT_VARIANT) {
			return true
		}
	}
	return false
}

// returnsDatasets reports whether a node is a map whose function may return a dataset.
func (r *Rules) returnsDatasets(n *tf.NodeDef) bool {
	if !r.g.Ops().IsDataset(n.GetOp()) || r.g.RuleOf(n).Kind != ops.OneToOne {
		return false
	}
	found, seen := false, map[string]bool{}
	var visit func(function string)
	visit = func(function string) {
		if seen[function] {
			return
		}
		seen[function] = true
		for _, inner := range r.g.Function(function).GetNodeDef() {
			found = found || r.g.Ops().IsDataset(inner.GetOp())
			for _, called := range nodedef.CalledFunctions(inner) {
				visit(called)
			}
		}
	}
	for _, function := range nodedef.CalledFunctions(n) {
		visit(function)
	}
	return found
}
