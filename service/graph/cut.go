package graph

import (
	"encoding/binary"
	"fmt"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
)

// cut puts the cut on the output of a step and gives the node that stands for the stream's share. Sources that are
// numbers or constants are changed themselves, so that the share costs nothing to find.
func (e *editor) cut(s *step, c edge, name string) string {
	streams, stream := e.plan.streams, int64(e.at.Stream)
	switch s.node.GetOp() {
	case "RangeDataset":
		if c.block == 1 && e.cutRange(s.node, streams, stream) {
			return name
		}
		if c.block > 1 {
			if share, ok := e.cutRangeBlocks(s.node, c.block, streams, stream); ok {
				return share
			}
		}
	case "TensorSliceDataset":
		if e.cutSlices(s.node, c.block, streams, stream) {
			return name
		}
	}
	if c.block == 1 {
		return e.shard(s, name, streams, stream)
	}
	return e.blocks(s, name, c.block, streams, stream)
}

// cutSlices keeps only the stream's rows of the constants that a step slices.
func (e *editor) cutSlices(n *tf.NodeDef, block, streams, stream int64) bool {
	var consts []*tf.NodeDef
	rows := e.p.countSource(n)
	for i, input := range n.GetInput() {
		name, _, control := splitInput(input)
		if control {
			continue
		}
		t := constTensor(e.g.nodes[name])
		dims := t.GetTensorShape().GetDim()
		if t == nil || len(dims) == 0 || dims[0].GetSize() != rows {
			return false
		}
		share, ok := shareOf(t, block, streams, stream)
		if !ok {
			return false
		}
		consts = append(consts, constNode(fmt.Sprintf("%s%s/slice_%d", cutPrefix, n.GetName(), i), share))
	}
	for i, c := range consts {
		e.edit(n.GetName()).Input[i] = e.add(c)
	}
	return true
}

// shareOf takes the rows p of a tensor with (p div block) mod streams = stream.
func shareOf(t *tf.TensorProto, block, streams, stream int64) (*tf.TensorProto, bool) {
	rows := t.GetTensorShape().GetDim()[0].GetSize()
	kept := shareRows(rows, block, streams, stream)
	dims := append([]*tf.TensorShapeProto_Dim{{Size: kept}}, t.GetTensorShape().GetDim()[1:]...)
	out := &tf.TensorProto{Dtype: t.GetDtype(), TensorShape: &tf.TensorShapeProto{Dim: dims}}
	cells, ok := elementCount(&tf.TensorShapeProto{Dim: t.GetTensorShape().GetDim()[1:]})
	if !ok {
		return nil, false
	}
	if valueCount(t) <= 1 && len(t.GetTensorContent()) == 0 {
		return shareOfOneValue(out, t, kept*cells)
	}
	keep := shareRanges(rows, block, streams, stream)
	if t.GetDtype() == tf.DataType_DT_STRING {
		return shareOfStrings(out, t, keep, cells)
	}
	width := dtypeSize(t.GetDtype())
	if width == 0 {
		return nil, false
	}
	if raw := t.GetTensorContent(); len(raw) > 0 {
		out.TensorContent = make([]byte, 0, kept*cells*width)
		for _, k := range keep {
			out.TensorContent = append(out.TensorContent, raw[k[0]*cells*width:k[1]*cells*width]...)
		}
		return out, true
	}
	return shareOfValues(out, t, keep, cells)
}

// shareRows counts the rows of a stream without listing them.
func shareRows(rows, block, streams, stream int64) int64 {
	blocks := rows / block
	kept := blocks / streams * block
	if stream < blocks%streams {
		kept += block
	}
	if stream == blocks%streams {
		kept += rows % block
	}
	return kept
}

// shareRanges lists the rows of a stream as half-open ranges.
func shareRanges(rows, block, streams, stream int64) [][2]int64 {
	var keep [][2]int64
	for first := stream; rows > 0 && first <= (rows-1)/block; first += streams {
		from := first * block
		keep = append(keep, [2]int64{from, from + min(block, rows-from)})
	}
	return keep
}

// shareOfOneValue handles constants where one value, or none for zeros, stands for all cells.
func shareOfOneValue(out, t *tf.TensorProto, cells int64) (*tf.TensorProto, bool) {
	if cells == 0 {
		return out, true
	}
	out.HalfVal, out.FloatVal, out.DoubleVal, out.IntVal = t.HalfVal, t.FloatVal, t.DoubleVal, t.IntVal
	out.Int64Val, out.BoolVal, out.Uint32Val, out.Uint64Val = t.Int64Val, t.BoolVal, t.Uint32Val, t.Uint64Val
	out.ScomplexVal, out.DcomplexVal, out.Float8Val, out.StringVal = t.ScomplexVal, t.DcomplexVal, t.Float8Val, t.StringVal
	return out, len(t.VariantVal)+len(t.ResourceHandleVal) == 0
}

func shareOfStrings(out, t *tf.TensorProto, keep [][2]int64, cells int64) (*tf.TensorProto, bool) {
	values, ok := constStrings(constNode("", t))
	if !ok {
		return nil, false
	}
	kept := pick(values, keep, cells)
	for _, v := range kept {
		out.TensorContent = binary.AppendUvarint(out.TensorContent, uint64(len(v)))
	}
	for _, v := range kept {
		out.TensorContent = append(out.TensorContent, v...)
	}
	return out, true
}

func pick[T any](values []T, keep [][2]int64, cells int64) []T {
	var out []T
	for _, k := range keep {
		out = append(out, values[k[0]*cells:k[1]*cells]...)
	}
	return out
}

// shareOfValues handles constants that are written as lists of values, where the last one stands for all that follow.
func shareOfValues(out, t *tf.TensorProto, keep [][2]int64, cells int64) (*tf.TensorProto, bool) {
	total := t.GetTensorShape().GetDim()[0].GetSize() * cells
	if total > 1<<26 {
		return nil, false
	}
	ok := pickInto(&out.HalfVal, t.HalfVal, keep, cells, total) && pickInto(&out.FloatVal, t.FloatVal, keep, cells, total) &&
		pickInto(&out.DoubleVal, t.DoubleVal, keep, cells, total) && pickInto(&out.IntVal, t.IntVal, keep, cells, total) &&
		pickInto(&out.Int64Val, t.Int64Val, keep, cells, total) && pickInto(&out.BoolVal, t.BoolVal, keep, cells, total) &&
		pickInto(&out.Uint32Val, t.Uint32Val, keep, cells, total) && pickInto(&out.Uint64Val, t.Uint64Val, keep, cells, total)
	if len(t.ScomplexVal)+len(t.DcomplexVal)+len(t.Float8Val) > 0 {
		return nil, false
	}
	return out, ok
}

func pickInto[T any](out *[]T, values []T, keep [][2]int64, cells, total int64) bool {
	if len(values) == 0 {
		return true
	}
	full, ok := fill(append([]T(nil), values...), total)
	if !ok {
		return false
	}
	*out = pick(full, keep, cells)
	return true
}

// outputOf gives types and shapes of what a step gives now.
func (e *editor) outputOf(s *step) ([]tf.DataType, []*tf.TensorShapeProto) {
	types, shapes := e.g.outputTypes(s.like), e.g.outputShapes(s.like)
	if e.cargo.out[s] {
		return numbered(types, shapes)
	}
	return types, shapes
}

// shard takes every S-th element.
func (e *editor) shard(s *step, input string, streams, stream int64) string {
	prefix := cutPrefix + s.node.GetName()
	types, shapes := e.outputOf(s)
	n := &tf.NodeDef{Name: prefix + "/shard", Op: "ShardDataset",
		Input: []string{input, e.addInt(prefix+"/shards", streams), e.addInt(prefix+"/index", stream)},
		Attr:  datasetAttrs(types, shapes)}
	return e.add(n)
}

// blocks takes every S-th block of elements: skip to the first, windows of a block at each S-th block, flat again.
// Only ops that hold any element are used, so shapes may differ from element to element.
func (e *editor) blocks(s *step, input string, block, streams, stream int64) string {
	prefix := cutPrefix + s.node.GetName()
	types, shapes := e.outputOf(s)
	skip := e.add(&tf.NodeDef{Name: prefix + "/skip", Op: "SkipDataset",
		Input: []string{input, e.addInt(prefix+"/first", stream*block)}, Attr: datasetAttrs(types, shapes)})
	variants := make([]tf.DataType, len(types))
	scalars := make([]*tf.TensorShapeProto, len(types))
	for i := range types {
		variants[i], scalars[i] = tf.DataType_DT_VARIANT, shapeOf()
	}
	window := e.add(&tf.NodeDef{Name: prefix + "/window", Op: "WindowDataset", Input: []string{
		skip, e.addInt(prefix+"/size", block), e.addInt(prefix+"/shift", block*streams), e.addInt(prefix+"/stride", 1),
		e.add(boolConst(prefix+"/keep_rest", false)),
	}, Attr: datasetAttrs(variants, scalars)})
	flat := &tf.NodeDef{Name: prefix + "/flatten", Op: "FlatMapDataset", Input: []string{window}, Attr: datasetAttrs(types, shapes)}
	flat.Attr["f"] = funcAttr(e.addUnwindow("pecan_unwindow_"+s.node.GetName(), types, shapes))
	flat.Attr["Targuments"] = typesAttr(nil)
	return e.add(flat)
}

// addUnwindow adds the function that turns one window, a dataset for each component, into one dataset of elements.
func (e *editor) addUnwindow(name string, types []tf.DataType, shapes []*tf.TensorShapeProto) string {
	f := &tf.FunctionDef{
		Signature: &tf.OpDef{Name: name, OutputArg: []*tf.OpDef_ArgDef{{Name: "elements", Type: tf.DataType_DT_VARIANT}}},
		Ret:       map[string]string{"elements": "result:output:0"},
	}
	var args []string
	for i := range types {
		arg := fmt.Sprintf("window_%d", i)
		args = append(args, arg)
		f.Signature.InputArg = append(f.Signature.InputArg, &tf.OpDef_ArgDef{Name: arg, Type: tf.DataType_DT_VARIANT})
	}
	result := args[0]
	if len(types) > 1 {
		zip := &tf.NodeDef{Name: "zip", Op: "ZipDataset", Input: args, Attr: datasetAttrs(types, shapes)}
		zip.Attr["N"] = intAttr(int64(len(types)))
		f.NodeDef = append(f.NodeDef, zip)
		result = "zip:handle:0"
	}
	f.NodeDef = append(f.NodeDef, &tf.NodeDef{Name: "result", Op: "Identity", Input: []string{result},
		Attr: map[string]*tf.AttrValue{"T": typeAttr(tf.DataType_DT_VARIANT)}})
	e.funcs[name] = f
	return name
}
