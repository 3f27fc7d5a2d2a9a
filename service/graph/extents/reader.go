package extents

import (
	"slices"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
)

// recordReader returns the function that opens the uncompressed TFRecord file that its argument names. It returns nil if a
// step's function does anything else. tf.data.TFRecordDataset writes such a function, and calls it for each file of a list.
// A user's function that returns a TFRecordDataset calls it for a list of one file.
func recordReader(g *graph.Graph, name string) *tf.FunctionDef {
	f := g.Function(name)
	if inner := readerOfOne(f); inner != "" {
		f = g.Function(inner)
	}
	if f == nil || !opensRecords(f) {
		return nil
	}
	return f
}

// readerOfOne returns the function that f calls for a list that contains only its argument. It returns "" if f does
// anything else.
func readerOfOne(f *tf.FunctionDef) string {
	sig := f.GetSignature()
	if len(sig.GetInputArg()) != 1 || len(sig.GetOutputArg()) != 1 {
		return ""
	}
	nodes := map[string]*tf.NodeDef{}
	for _, n := range f.GetNodeDef() {
		nodes[n.GetName()] = n
		switch n.GetOp() {
		case "Const", "Identity", "NoOp", "Reshape", "TensorSliceDataset", "FlatMapDataset":
		default:
			return ""
		}
	}
	inner, ops := "", []string(nil)
	for at := nodes[nodedef.InputNode(f.GetRet()[sig.GetOutputArg()[0].GetName()])]; at != nil; at = nodes[nodedef.InputNode(at.GetInput()[0])] {
		if len(at.GetInput()) == 0 || len(ops) > len(nodes) {
			return ""
		}
		if at.GetOp() != "Identity" {
			ops = append(ops, at.GetOp())
		}
		switch at.GetOp() {
		case "FlatMapDataset":
			if nodedef.DataInputCount(at) != 1 {
				return ""
			}
			inner = at.GetAttr()["f"].GetFunc().GetName()
		case "TensorSliceDataset":
			if nodedef.DataInputCount(at) != 1 {
				return ""
			}
		case "Reshape":
			// A list of files in a function has one file if it has the shape [-1] of a scalar.
			if shape, ok := nodedef.Ints(nodes[nodedef.InputNode(at.GetInput()[1])]); !ok || !slices.Equal(shape, []int64{-1}) {
				return ""
			}
		}
		if from := nodedef.InputNode(at.GetInput()[0]); from == sig.GetInputArg()[0].GetName() {
			if !slices.Equal(ops, []string{"FlatMapDataset", "TensorSliceDataset", "Reshape"}) {
				return ""
			}
			return inner
		}
	}
	return ""
}

// opensRecords reports whether a function returns the records of the file that its argument names, without compression and
// without other steps.
func opensRecords(f *tf.FunctionDef) bool {
	sig := f.GetSignature()
	if len(sig.GetInputArg()) != 1 || len(sig.GetOutputArg()) != 1 || sig.GetInputArg()[0].GetType() != tf.DataType_DT_STRING {
		return false
	}
	nodes := map[string]*tf.NodeDef{}
	var reader *tf.NodeDef
	for _, n := range f.GetNodeDef() {
		nodes[n.GetName()] = n
		switch n.GetOp() {
		case "TFRecordDataset":
			if reader != nil {
				return false
			}
			reader = n
		case "Const", "Identity", "NoOp":
		default:
			return false
		}
	}
	if reader == nil || nodedef.DataInputCount(reader) != 3 || reader.GetInput()[0] != sig.GetInputArg()[0].GetName() {
		return false
	}
	compression, ok := nodedef.Strings(nodes[nodedef.InputNode(reader.GetInput()[1])])
	if !ok || len(compression) != 1 || len(compression[0]) > 0 {
		return false
	}
	result := f.GetRet()[sig.GetOutputArg()[0].GetName()]
	for at := nodes[nodedef.InputNode(result)]; at != nil && len(at.GetInput()) > 0; at = nodes[nodedef.InputNode(at.GetInput()[0])] {
		if at == reader {
			return true
		}
	}
	return false
}

// extentReader returns a function that opens one extent: the records from an offset on. It asserts their number,
// because a shorter file would otherwise end the extent early. The reader with offsets exists only in functions:
// TensorFlow cannot write it as a node of a graph, because its AsGraphDef leaves out the offsets.
func extentReader(f *tf.FunctionDef, name string) *tf.FunctionDef {
	out := &tf.FunctionDef{
		Signature: nodedef.RenameSignature(f.GetSignature(), name), Ret: f.GetRet(), ControlRet: f.GetControlRet(), Attr: f.GetAttr(),
	}
	out.Signature.InputArg = append(slices.Clone(f.GetSignature().GetInputArg()),
		&tf.OpDef_ArgDef{Name: "pecan_offset", Type: tf.DataType_DT_INT64}, &tf.OpDef_ArgDef{Name: "pecan_records", Type: tf.DataType_DT_INT64})
	types, shapes := []tf.DataType{tf.DataType_DT_STRING}, []*tf.TensorShapeProto{nodedef.Shape()}
	step := func(name, op, input string) *tf.NodeDef {
		return &tf.NodeDef{Name: name, Op: op, Input: []string{input, "pecan_records"}, Attr: nodedef.DatasetAttrs(types, shapes)}
	}
	var opened string
	for _, n := range f.GetNodeDef() {
		if n.GetOp() == "TFRecordDataset" {
			opened = n.GetName() + ":handle:0"
		}
	}
	for _, n := range f.GetNodeDef() {
		n = nodedef.Copy(n)
		if n.GetOp() == "TFRecordDataset" {
			n.Op = "TFRecordDatasetV2"
			n.Input = slices.Insert(slices.Clone(n.GetInput()), 3, "pecan_offset")
		} else {
			n.Input = slices.Clone(n.GetInput())
			for i, input := range n.GetInput() {
				if input == opened {
					n.Input[i] = "pecan_assert:handle:0"
				}
			}
		}
		out.NodeDef = append(out.NodeDef, n)
	}
	out.NodeDef = append(out.NodeDef,
		step("pecan_take", "TakeDataset", opened), step("pecan_assert", "AssertCardinalityDataset", "pecan_take:handle:0"))
	for key, value := range out.GetRet() {
		if value == opened {
			out.Ret = map[string]string{key: "pecan_assert:handle:0"}
		}
	}
	return out
}
