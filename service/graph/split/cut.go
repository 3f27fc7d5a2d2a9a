package split

import (
	"fmt"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
)

// cutting cuts a graph at one edge.
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
	switch s.Node.GetOp() {
	case "RangeDataset":
		if c.block == 1 && e.cutRange(s.Node, share) {
			return name
		}
		if c.block > 1 {
			if blocks, ok := e.cutRangeBlocks(s.Node, c.block, share); ok {
				return blocks
			}
		}
	case "TensorSliceDataset":
		if rows := p.Cardinality(s); e.cutSlices(s.Node, rows, c.rows(rows, share)) {
			return name
		}
	}
	if c.block == 1 {
		return e.shard(s, name, share)
	}
	return e.blocks(s, name, c.block, share)
}

// cutSlices keeps only the stream's rows of the constants that a step slices.
func (c *cutting) cutSlices(n *tf.NodeDef, rows int64, keep rowRanges) bool {
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
		share, ok := selectTensorRows(t, keep)
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

// shard selects the elements of a share whose blocks have one element.
func (c *cutting) shard(s *graph.Step, input string, share Share) string {
	prefix := CutPrefix + s.Node.GetName()
	types, shapes := c.types, c.shapes
	index := share.First
	if share.ends() {
		input, index = c.between(prefix, input, share, 1), 0
	}
	n := &tf.NodeDef{Name: prefix + "/shard", Op: "ShardDataset",
		Input: []string{input, c.AddInt(prefix+"/shards", share.Step), c.AddInt(prefix+"/index", index)},
		Attr:  nodedef.DatasetAttrs(types, shapes)}
	return c.Add(n)
}

// between skips the elements before the first block of a share, and ends where the share ends.
func (c *cutting) between(prefix, input string, share Share, block int64) string {
	attrs := func() map[string]*tf.AttrValue { return nodedef.DatasetAttrs(c.types, c.shapes) }
	skip := c.Add(&tf.NodeDef{Name: prefix + "/skip", Op: "SkipDataset",
		Input: []string{input, c.AddInt(prefix+"/first", share.First*block)}, Attr: attrs()})
	if !share.ends() {
		return skip
	}
	return c.Add(&tf.NodeDef{Name: prefix + "/take", Op: "TakeDataset",
		Input: []string{skip, c.AddInt(prefix+"/count", (share.Stop-share.First)*block)}, Attr: attrs()})
}

// blocks selects the blocks of a share. It skips to the first block, makes a window of each block of the share,
// and flattens the windows. These ops accept any element, so shapes may differ from element to element.
func (c *cutting) blocks(s *graph.Step, input string, block int64, share Share) string {
	prefix := CutPrefix + s.Node.GetName()
	types, shapes := c.types, c.shapes
	skip := c.between(prefix, input, share, block)
	variants := make([]tf.DataType, len(types))
	scalars := make([]*tf.TensorShapeProto, len(types))
	for i := range types {
		variants[i], scalars[i] = tf.DataType_DT_VARIANT, nodedef.Shape()
	}
	window := c.Add(&tf.NodeDef{Name: prefix + "/window", Op: "WindowDataset", Input: []string{
		skip, c.AddInt(prefix+"/size", block), c.AddInt(prefix+"/shift", block*share.Step), c.AddInt(prefix+"/stride", 1),
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
