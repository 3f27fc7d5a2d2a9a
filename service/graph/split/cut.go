package split

import (
	"fmt"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
)

// Share is the part of a dataset that one stream reads: number Stream of Streams parts.
type Share struct{ Streams, Stream int64 }

// cutting inserts one cut into a graph.
type cutting struct {
	*graph.Editor
	g *graph.Graph
	// types and shapes describe the components of the elements at the cut.
	types  []tf.DataType
	shapes []*tf.TensorShapeProto
}

// Cut divides the output of step s, which node name produces, and returns the node that produces the stream's
// share. If the source is a range or a constant, Cut changes the source itself, so that the share costs
// nothing to find. types and shapes are the components of the output.
func (p *Planner) Cut(editor *graph.Editor, s *graph.Step, c Edge, share Share, name string, types []tf.DataType, shapes []*tf.TensorShapeProto) string {
	e := &cutting{Editor: editor, g: p.g, types: types, shapes: shapes}
	streams, stream := share.Streams, share.Stream
	switch s.Node.GetOp() {
	case "RangeDataset":
		if c.block == 1 && e.cutRange(s.Node, streams, stream) {
			return name
		}
		if c.block > 1 {
			if share, ok := e.cutRangeBlocks(s.Node, c.block, streams, stream); ok {
				return share
			}
		}
	case "TensorSliceDataset":
		if e.cutSlices(s.Node, p.Cardinality(s), c.block, streams, stream) {
			return name
		}
	}
	if c.block == 1 {
		return e.shard(s, name, streams, stream)
	}
	return e.blocks(s, name, c.block, streams, stream)
}

// cutSlices keeps only the stream's rows of the constants that a step slices.
func (c *cutting) cutSlices(n *tf.NodeDef, rows, block, streams, stream int64) bool {
	var consts []*tf.NodeDef
	for i, input := range n.GetInput() {
		name, _, control := nodedef.SplitInput(input)
		if control {
			continue
		}
		t := nodedef.Tensor(c.g.Node(name))
		dims := t.GetTensorShape().GetDim()
		if t == nil || len(dims) == 0 || dims[0].GetSize() != rows {
			return false
		}
		share, ok := shareOf(t, block, streams, stream)
		if !ok {
			return false
		}
		consts = append(consts, nodedef.Const(fmt.Sprintf("%s%s/slice_%d", CutPrefix, n.GetName(), i), share))
	}
	for i, constant := range consts {
		c.Edit(n.GetName()).Input[i] = c.Add(constant)
	}
	return true
}

// shard selects every S-th element.
func (c *cutting) shard(s *graph.Step, input string, streams, stream int64) string {
	prefix := CutPrefix + s.Node.GetName()
	types, shapes := c.types, c.shapes
	n := &tf.NodeDef{Name: prefix + "/shard", Op: "ShardDataset",
		Input: []string{input, c.AddInt(prefix+"/shards", streams), c.AddInt(prefix+"/index", stream)},
		Attr:  nodedef.DatasetAttrs(types, shapes)}
	return c.Add(n)
}

// blocks selects every S-th block of elements. It skips to the first block, makes a window of each S-th
// block, and flattens the windows. These ops accept any element, so shapes may differ from element to
// element.
func (c *cutting) blocks(s *graph.Step, input string, block, streams, stream int64) string {
	prefix := CutPrefix + s.Node.GetName()
	types, shapes := c.types, c.shapes
	skip := c.Add(&tf.NodeDef{Name: prefix + "/skip", Op: "SkipDataset",
		Input: []string{input, c.AddInt(prefix+"/first", stream*block)}, Attr: nodedef.DatasetAttrs(types, shapes)})
	variants := make([]tf.DataType, len(types))
	scalars := make([]*tf.TensorShapeProto, len(types))
	for i := range types {
		variants[i], scalars[i] = tf.DataType_DT_VARIANT, nodedef.Shape()
	}
	window := c.Add(&tf.NodeDef{Name: prefix + "/window", Op: "WindowDataset", Input: []string{
		skip, c.AddInt(prefix+"/size", block), c.AddInt(prefix+"/shift", block*streams), c.AddInt(prefix+"/stride", 1),
		c.Add(nodedef.BoolConst(prefix+"/keep_rest", false)),
	}, Attr: nodedef.DatasetAttrs(variants, scalars)})
	flat := &tf.NodeDef{Name: prefix + "/flatten", Op: "FlatMapDataset", Input: []string{window}, Attr: nodedef.DatasetAttrs(types, shapes)}
	flat.Attr["f"] = nodedef.FuncAttr(c.addUnwindow("pecan_unwindow_"+s.Node.GetName(), types, shapes))
	flat.Attr["Targuments"] = nodedef.TypesAttr(nil)
	return c.Add(flat)
}

// addUnwindow adds the function that turns one window into one dataset of elements. The window has a dataset
// for each component.
func (c *cutting) addUnwindow(name string, types []tf.DataType, shapes []*tf.TensorShapeProto) string {
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
		zip := &tf.NodeDef{Name: "zip", Op: "ZipDataset", Input: args, Attr: nodedef.DatasetAttrs(types, shapes)}
		zip.Attr["N"] = nodedef.IntAttr(int64(len(types)))
		f.NodeDef = append(f.NodeDef, zip)
		result = "zip:handle:0"
	}
	f.NodeDef = append(f.NodeDef, &tf.NodeDef{Name: "result", Op: "Identity", Input: []string{result},
		Attr: map[string]*tf.AttrValue{"T": nodedef.TypeAttr(tf.DataType_DT_VARIANT)}})
	c.AddFunction(name, f)
	return name
}

// CutPrefix is the prefix of the names of all nodes that a cut adds. The name of the divided node follows.
const CutPrefix = "pecan_cut/"
