package pooled

import (
	"errors"
	"fmt"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// keepsNoState are stateful ops whose calls do not depend on earlier ones, or that keep their state in the dataset. The
// state of other stateful ops would pass from stream to stream, because it lives as long as the iterator.
var keepsNoState = ops.Names(`
	Assert CheckNumerics Timestamp Print PrintV2 If Case While For StatefulPartitionedCall StatsAggregatorHandle DummySeedGenerator DummyMemoryCache
	ReadVariableOp ResourceGather ResourceGatherNd LookupTableFind LookupTableFindV2 LookupTableSize LookupTableSizeV2
`)

// whyPrivate returns why the streams of a graph need iterators of their own; nil if they do not.
func (t *Template) whyPrivate() error {
	for _, n := range t.def.GetNode() {
		if t.resources[n.GetName()] {
			continue
		}
		if err := t.whyNodeIsPrivate(n); err != nil {
			return err
		}
	}
	for _, f := range t.def.GetLibrary().GetFunction() {
		for _, n := range f.GetNodeDef() {
			if err := t.whyNodeIsPrivate(n); err != nil {
				return fmt.Errorf("in function %s: %w", nodedef.Quote(f.GetSignature().GetName()), err)
			}
		}
	}
	return nil
}

func (t *Template) whyNodeIsPrivate(n *tf.NodeDef) error {
	def := t.ops.Def(n.GetOp())
	switch op := n.GetOp(); {
	case op == "_Retval", op == pullOp:
		return nil
	case def == nil:
		return fmt.Errorf("node %s is a %s", nodedef.Quote(n.GetName()), op)
	case op == "SnapshotDatasetV2", op == "SnapshotDataset", op == "SaveDataset", op == "SaveDatasetV2":
		return fmt.Errorf("node %s writes files", nodedef.Quote(n.GetName()))
	case t.ops.IsDataset(op), keepsNoState[op]:
		return nil
	case def.GetIsStateful():
		return fmt.Errorf("node %s is a %s, whose state lives as long as its iterator", nodedef.Quote(n.GetName()), op)
	}
	return nil
}

// fileCache refuses a cache in files, which an iterator deletes if it ends early.
func (t *Template) fileCache(n *tf.NodeDef) error {
	if n.GetOp() != "CacheDataset" && n.GetOp() != "CacheDatasetV2" {
		return nil
	}
	names, ok := nodedef.Strings(t.nodes[inputNode(n, 1)])
	if ok && len(names) == 1 && len(names[0]) == 0 {
		return nil
	}
	return errors.New("a cache writes files")
}

// inputNode returns the name of the node at an input outside of functions; "" without such an input.
func inputNode(n *tf.NodeDef, i int) string {
	if i >= len(n.GetInput()) {
		return ""
	}
	name, _, _ := nodedef.SplitInput(n.GetInput()[i])
	return name
}
