package rewrite

import (
	"fmt"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
)

// PullOp is the source op in stream graphs. The worker registers it: no inputs, attributes source (int),
// output_types and output_shapes, one output "components" (a list), OUT_OF_RANGE at the end.
const PullOp = "PecanPull"

// addPull adds a source: an infinite range with a map that gets each element from the worker, under a handle.
func (e *editor) addPull(types []tf.DataType, shapes []*tf.TensorShapeProto, handle int64) string {
	e.AddInt(pullPrefix+"/start", 0)
	e.AddInt(pullPrefix+"/stop", 1<<62)
	e.AddInt(pullPrefix+"/step", 1)
	e.Add(&tf.NodeDef{Name: pullPrefix + "/range", Op: "RangeDataset",
		Input: []string{pullPrefix + "/start", pullPrefix + "/stop", pullPrefix + "/step"},
		Attr:  nodedef.DatasetAttrs([]tf.DataType{tf.DataType_DT_INT64}, []*tf.TensorShapeProto{nodedef.Shape()})})
	pull := &tf.NodeDef{Name: "pull", Op: PullOp, Attr: nodedef.DatasetAttrs(types, shapes)}
	pull.Attr["source"] = nodedef.IntAttr(handle)
	f := &tf.FunctionDef{
		Signature: &tf.OpDef{Name: "pecan_pull_function", IsStateful: true,
			InputArg: []*tf.OpDef_ArgDef{{Name: "index", Type: tf.DataType_DT_INT64}}},
		NodeDef: []*tf.NodeDef{pull}, Ret: map[string]string{}, ControlRet: map[string]string{"pull": "pull"},
	}
	f.Signature.ControlOutput = []string{"pull"}
	for i, t := range types {
		name := fmt.Sprintf("component_%d", i)
		f.Signature.OutputArg = append(f.Signature.OutputArg, &tf.OpDef_ArgDef{Name: name, Type: t})
		f.Ret[name] = fmt.Sprintf("pull:components:%d", i)
	}
	e.AddFunction(f.Signature.Name, f)
	source := &tf.NodeDef{Name: pullPrefix, Op: "MapDataset", Input: []string{pullPrefix + "/range"}, Attr: nodedef.DatasetAttrs(types, shapes)}
	source.Attr["f"] = nodedef.FuncAttr(f.Signature.Name)
	source.Attr["Targuments"] = nodedef.TypesAttr(nil)
	// The op runs in the thread that fetches: to change threads costs CPU per element.
	source.Attr["use_inter_op_parallelism"] = nodedef.BoolAttr(false)
	source.Attr["preserve_cardinality"] = nodedef.BoolAttr(false)
	return e.Add(source)
}
