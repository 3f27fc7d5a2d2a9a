package rewrite

import (
	"fmt"
	"slices"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
)

// Ragged and sparse values are variants, which are no plain bytes. Between the steps upstream of a cached step and those
// downstream they travel as strings: a map writes them, and another map reads them.

// withoutVariants returns the types and shapes that variants have as strings.
func withoutVariants(types []tf.DataType, shapes []*tf.TensorShapeProto) ([]tf.DataType, []*tf.TensorShapeProto) {
	types, shapes = slices.Clone(types), slices.Clone(shapes)
	for i, t := range types {
		if t == tf.DataType_DT_VARIANT {
			types[i], shapes[i] = tf.DataType_DT_STRING, nodedef.Shape()
		}
	}
	return types, shapes
}

// writeVariants adds the map that writes variants as strings after a node. It returns the node if there are none.
func (e *editor) writeVariants(input string, types []tf.DataType, shapes []*tf.TensorShapeProto) *tf.NodeDef {
	written, writtenShapes := withoutVariants(types, shapes)
	return e.mapVariants("pecan_write_variants", input, types, written, writtenShapes, func(name, arg string) (*tf.NodeDef, string) {
		return &tf.NodeDef{Name: name, Op: "SerializeTensor", Input: []string{arg}, Attr: map[string]*tf.AttrValue{"T": nodedef.TypeAttr(tf.DataType_DT_VARIANT)}}, "serialized"
	})
}

// readVariants adds the map that reads strings as variants after a node.
func (e *editor) readVariants(input string, types []tf.DataType, shapes []*tf.TensorShapeProto) string {
	written, _ := withoutVariants(types, shapes)
	return e.mapVariants("pecan_read_variants", input, written, types, shapes, func(name, arg string) (*tf.NodeDef, string) {
		return &tf.NodeDef{Name: name, Op: "ParseTensor", Input: []string{arg}, Attr: map[string]*tf.AttrValue{"out_type": nodedef.TypeAttr(tf.DataType_DT_VARIANT)}}, "output"
	}).GetName()
}

// mapVariants adds a map that converts the components whose types differ.
func (e *editor) mapVariants(name, input string, from, to []tf.DataType, shapes []*tf.TensorShapeProto, convert func(name, arg string) (*tf.NodeDef, string)) *tf.NodeDef {
	f := &tf.FunctionDef{Signature: &tf.OpDef{Name: name}, Ret: map[string]string{}}
	for i := range from {
		arg, out, node := fmt.Sprintf("component_%d", i), fmt.Sprintf("result_%d", i), fmt.Sprintf("convert_%d", i)
		f.Signature.InputArg = append(f.Signature.InputArg, &tf.OpDef_ArgDef{Name: arg, Type: from[i]})
		f.Signature.OutputArg = append(f.Signature.OutputArg, &tf.OpDef_ArgDef{Name: out, Type: to[i]})
		converted, result := nodedef.Identity(node, arg, from[i]), "output"
		if from[i] != to[i] {
			converted, result = convert(node, arg)
		}
		f.NodeDef = append(f.NodeDef, converted)
		f.Ret[out] = node + ":" + result + ":0"
	}
	e.AddFunction(name, f)
	n := &tf.NodeDef{Name: name, Op: "MapDataset", Input: []string{input}, Attr: nodedef.DatasetAttrs(to, shapes)}
	n.Attr["f"] = nodedef.FuncAttr(name)
	n.Attr["Targuments"] = nodedef.TypesAttr(nil)
	n.Attr["use_inter_op_parallelism"] = nodedef.BoolAttr(true)
	n.Attr["preserve_cardinality"] = nodedef.BoolAttr(true)
	e.Add(n)
	return n
}
