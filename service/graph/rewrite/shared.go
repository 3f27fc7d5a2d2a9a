package rewrite

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
)

// Shared is a table or a variable that streams of one worker share by name. It outlives the streams, so the
// worker must free it with the graph of ReleaseGraph.
type Shared struct {
	Name string
	// handle is a node that returns the handle of the table or variable.
	handle *tf.NodeDef
}

// addShared records a named node as shared. Tables whose ops have inputs are not part of a dataset's graph.
func (e *editor) addShared(n *tf.NodeDef) {
	out := e.g.Ops().Def(n.GetOp()).GetOutputArg()
	if len(n.GetInput()) > 0 || len(out) != 1 || out[0].GetType() != tf.DataType_DT_RESOURCE {
		return
	}
	e.shared = append(e.shared, Shared{string(n.GetAttr()["shared_name"].GetS()), nodedef.Copy(n)})
}

// sharedByName returns the shared resources of the graphs, each once, sorted by name.
func (e *editor) sharedByName() []Shared {
	slices.SortStableFunc(e.shared, func(a, b Shared) int { return strings.Compare(a.Name, b.Name) })
	return slices.CompactFunc(e.shared, func(a, b Shared) bool { return a.Name == b.Name })
}

// ReleaseGraph returns a graph of an empty dataset. Creating that dataset frees the given resources, if they
// exist. A graph is used because TensorFlow keeps nothing of it, while it keeps the kernel of every op that is
// executed eagerly.
func ReleaseGraph(shared []Shared) ([]byte, error) {
	def := &tf.GraphDef{Library: &tf.FunctionDefLibrary{}}
	dataset := &tf.NodeDef{Name: "empty", Op: "RangeDataset", Input: []string{"start", "stop", "step"},
		Attr: nodedef.DatasetAttrs([]tf.DataType{tf.DataType_DT_INT64}, []*tf.TensorShapeProto{nodedef.Shape()})}
	def.Node = append(def.Node, nodedef.Int64Const("start", 0), nodedef.Int64Const("stop", 0), nodedef.Int64Const("step", 1))
	for i, s := range shared {
		handle, free := nodedef.Copy(s.handle), fmt.Sprintf("free_%d", i)
		handle.Name = fmt.Sprintf("handle_%d", i)
		def.Node = append(def.Node, handle, &tf.NodeDef{Name: free, Op: "DestroyResourceOp", Input: []string{handle.Name},
			Attr: map[string]*tf.AttrValue{"ignore_lookup_error": nodedef.BoolAttr(true)}})
		dataset.Input = append(dataset.Input, "^"+free)
	}
	def.Node = append(def.Node, dataset, &tf.NodeDef{Name: "dataset", Op: "_Retval", Input: []string{dataset.Name},
		Attr: map[string]*tf.AttrValue{"T": nodedef.TypeAttr(tf.DataType_DT_VARIANT), "index": nodedef.IntAttr(0)}})
	return proto.MarshalOptions{Deterministic: true}.Marshal(def)
}
