package rewrite

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
)

// Shared is a table or a variable that streams of one worker share by its name. It outlives them: whoever runs them has it freed.
type Shared struct {
	Name string
	// handle is a node that gives its handle.
	handle *tf.NodeDef
}

// share notes a node, which has its name, as one to free. Tables whose ops take inputs do not travel with a dataset.
func (e *editor) share(n *tf.NodeDef) {
	out := e.g.Ops().Def(n.GetOp()).GetOutputArg()
	if len(n.GetInput()) > 0 || len(out) != 1 || out[0].GetType() != tf.DataType_DT_RESOURCE {
		return
	}
	e.shared = append(e.shared, Shared{string(n.GetAttr()["shared_name"].GetS()), nodedef.Copy(n)})
}

// sharedByName gives what the graphs share, each once and sorted.
func (e *editor) sharedByName() []Shared {
	slices.SortStableFunc(e.shared, func(a, b Shared) int { return strings.Compare(a.Name, b.Name) })
	return slices.CompactFunc(e.shared, func(a, b Shared) bool { return a.Name == b.Name })
}

// ReleaseGraph writes a graph whose dataset is empty; making it frees what is given, where it is there. TensorFlow keeps nothing of a graph,
// while of every op that is executed by itself it keeps the kernel.
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
