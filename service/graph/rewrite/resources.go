package rewrite

import (
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// nameResources names tables and variables by a hash of their content. Graphs in one worker share resources by name, so they
// share only equal ones. If files have the content of a table, the states of the files are hashed. A worker's table outlives
// the job, and the files may change. Tables that functions create belong to the iterator.
//
// Handles of the trainer's seed generators and caches get names that no worker knows, so that a step creates
// its own.
func (e *editor) nameResources() {
	for _, n := range e.g.Order() {
		if t := nodedef.Tensor(n); t.GetDtype() == tf.DataType_DT_RESOURCE {
			absent := &tf.TensorProto{Dtype: t.GetDtype(), TensorShape: t.GetTensorShape()}
			for _, handle := range t.GetResourceHandleVal() {
				absent.ResourceHandleVal = append(absent.ResourceHandleVal, &tf.ResourceHandleProto{
					Device: handle.GetDevice(), Container: handle.GetContainer(), Name: "pecan_absent/" + n.GetName(),
					HashCode: handle.GetHashCode(), MaybeTypeName: handle.GetMaybeTypeName(),
				})
			}
			e.Edit(n.GetName()).Attr["value"] = &tf.AttrValue{Value: &tf.AttrValue_Tensor{Tensor: absent}}
		}
	}
	for name, f := range e.g.Functions() {
		e.privateTables(name, f)
	}
	if !e.hasResources() {
		// Without resources, skip the hash: it reads every constant, which may be most of the graph.
		return
	}
	h := graph.NewHasher(e.g)
	content := map[string][]string{}
	for _, n := range e.g.Order() {
		if ops.FillsTable(n.GetOp()) || n.GetOp() == "AssignVariableOp" {
			target, _, _ := nodedef.SplitInput(n.GetInput()[0])
			content[target] = append(content[target], string(h.Node(n.GetName())))
			if ops.FillsTableFromFiles(n.GetOp()) {
				content[target] = append(content[target], e.tableContentKey(n)...)
			}
		}
	}
	for _, n := range e.g.Order() {
		if ops.IsTable(n.GetOp()) && n.GetAttr()["shared_name"] != nil || n.GetOp() == "VarHandleOp" {
			name := "pecan_" + nodedef.ShortHash(append(content[n.GetName()], string(h.Node(n.GetName())))...)
			e.Edit(n.GetName()).Attr["shared_name"] = nodedef.BytesAttr(name)
			e.addShared(e.Node(n.GetName()))
		}
	}
}

func (e *editor) hasResources() bool {
	for _, n := range e.g.Order() {
		if ops.IsTable(n.GetOp()) || n.GetOp() == "VarHandleOp" {
			return true
		}
	}
	return false
}
