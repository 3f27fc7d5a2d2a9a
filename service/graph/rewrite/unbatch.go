package rewrite

import (
	"fmt"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
)

// TensorFlow's unbatch reads out of bounds if the rows of a batch have no bytes, which ends the worker with all its
// streams. If rows may be empty, a stream divides batches with flat_map and from_tensor_slices. These two steps support
// every dtype, and cost a small dataset for each batch.

// crashesOnEmptyRows returns whether a step is an unbatch whose rows may have no bytes, by its output shapes.
func crashesOnEmptyRows(g *graph.Graph, n *tf.NodeDef) bool {
	if n.GetOp() != "UnbatchDataset" {
		return false
	}
	types := g.OutputTypes(n)
	for i, shape := range g.OutputShapes(n) {
		if i < len(types) && types[i] == tf.DataType_DT_STRING {
			continue
		}
		if shape.GetUnknownRank() {
			return true
		}
		for _, dim := range shape.GetDim() {
			if dim.GetSize() <= 0 {
				return true
			}
		}
	}
	return false
}

// sliceBatches makes a node divide batches by slices. id must be unique: the name of the function follows from it.
func (e *editor) sliceBatches(n *tf.NodeDef, id string) {
	types, shapes := e.g.OutputTypes(n), e.g.OutputShapes(n)
	metadata := n.Attr["metadata"]
	n.Op, n.Attr = "FlatMapDataset", nodedef.DatasetAttrs(types, shapes)
	n.Attr["f"] = nodedef.FuncAttr(e.addSlices("pecan_rows_"+nodedef.ShortHash(id), types, shapes))
	n.Attr["Targuments"] = nodedef.TypesAttr(nil)
	if metadata != nil {
		n.Attr["metadata"] = metadata
	}
}

// addSlices adds the function that returns a dataset of the rows of a batch.
func (e *editor) addSlices(name string, types []tf.DataType, rows []*tf.TensorShapeProto) string {
	f := &tf.FunctionDef{
		Signature: &tf.OpDef{Name: name, IsStateful: true, OutputArg: []*tf.OpDef_ArgDef{{Name: "elements", Type: tf.DataType_DT_VARIANT}}},
		Ret:       map[string]string{"elements": "result:output:0"},
	}
	slices := &tf.NodeDef{Name: "rows", Op: "TensorSliceDataset", Attr: map[string]*tf.AttrValue{
		"Toutput_types": nodedef.TypesAttr(types), "output_shapes": nodedef.ShapesAttr(rows)}}
	for i, t := range types {
		arg := fmt.Sprintf("component_%d", i)
		f.Signature.InputArg = append(f.Signature.InputArg, &tf.OpDef_ArgDef{Name: arg, Type: t})
		slices.Input = append(slices.Input, arg)
	}
	f.NodeDef = []*tf.NodeDef{slices, {Name: "result", Op: "Identity", Input: []string{"rows:handle:0"},
		Attr: map[string]*tf.AttrValue{"T": nodedef.TypeAttr(tf.DataType_DT_VARIANT)}}}
	e.AddFunction(name, f)
	return name
}
