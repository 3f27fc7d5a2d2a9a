package split

import (
	"encoding/binary"
	"math"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/analysis"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
)

// maxListedRows is the largest number of values of a range that are listed in a constant. A larger share is
// computed block by block.
const maxListedRows = 1 << 16

// rangeBounds contains the three constants of a range.
type rangeBounds struct{ start, stop, step int64 }

func boundsOfRange(g *graph.Graph, n *tf.NodeDef) (rangeBounds, bool) {
	start, ok1 := g.InputInt(n, "start")
	stop, ok2 := g.InputInt(n, "stop")
	step, ok3 := g.InputInt(n, "step")
	return rangeBounds{start, stop, step}, ok1 && ok2 && ok3 && step != 0
}

// cutRange replaces a range by the range of the values of a share.
func (c *cutting) cutRange(n *tf.NodeDef, share Share) bool {
	r, ok := boundsOfRange(c.g, n)
	return ok && c.moveRange(n, r, r.step, share)
}

// unreachableCount is a count that no stream reaches in two years, so the behaviour after it does not matter.
// enumerate() is a range up to the largest number, of which each of maxStreams streams has more.
const unreachableCount = int64(1) << 46

// counterFits reports whether TensorFlow's counter stays within int64 with this stride. TensorFlow adds the
// stride once more after the last value. If the counter overflows there, the range never ends.
func (r rangeBounds) counterFits(stride, streams int64) bool {
	count := analysis.RangeCount(r.start, r.stop, r.step)
	// If the range counts blocks, each of its values stands for a block of numbers.
	if count/streams >= unreachableCount {
		return true
	}
	// The last value lies between start and stop, so an overflow on the way to it does no harm.
	last := r.start + max(count-1, 0)*r.step
	return sumFits(last, stride*streams)
}

func sumFits(a, b int64) bool {
	return (b <= 0 || a <= math.MaxInt64-b) && (b >= 0 || a >= math.MinInt64-b)
}

// moveRange starts a range at the first value of a share, multiplies its step, and ends it where the share ends.
// stride is the difference between the first values of two blocks that follow each other. moveRange returns false
// if the arithmetic would overflow.
func (c *cutting) moveRange(n *tf.NodeDef, r rangeBounds, stride int64, share Share) bool {
	if abs(stride) > math.MaxInt64/2/max(share.Step, share.First) || !r.counterFits(stride, share.Step) || !sumFits(r.start, stride*share.First) {
		return false
	}
	prefix := CutPrefix + n.GetName()
	c.SetInput(n.GetName(), "start", c.AddInt(prefix+"/start", r.start+stride*share.First))
	c.SetInput(n.GetName(), "step", c.AddInt(prefix+"/step", stride*share.Step))
	if share.ends() {
		c.SetInput(n.GetName(), "stop", c.AddInt(prefix+"/stop", r.stopAfter(stride, share.Stop)))
	}
	return true
}

// stopAfter is the end of a range that has only its first blocks.
func (r rangeBounds) stopAfter(stride, blocks int64) int64 {
	if abs(stride) > math.MaxInt64/max(blocks, 1) || !sumFits(r.start, stride*blocks) {
		return r.stop
	}
	stop := r.start + stride*blocks
	if r.step < 0 {
		return max(stop, r.stop)
	}
	return min(stop, r.stop)
}

func abs(v int64) int64 {
	if v < 0 && v != math.MinInt64 {
		return -v
	}
	if v < 0 {
		return math.MaxInt64
	}
	return v
}

// cutRangeBlocks selects the blocks of a share of a range without visiting the other blocks. In a light pipeline,
// a full read of the range in every stream would cost more than everything else. The node of the range stays
// the source.
func (c *cutting) cutRangeBlocks(n *tf.NodeDef, block int64, share Share) (string, bool) {
	r, ok := boundsOfRange(c.g, n)
	types := c.g.OutputTypes(n)
	if !ok || len(types) != 1 || (types[0] != tf.DataType_DT_INT64 && types[0] != tf.DataType_DT_INT32) {
		return "", false
	}
	count := analysis.RangeCount(r.start, r.stop, r.step)
	if !r.counterFits(r.step, 1) {
		// A local run of this range is endless, and a list is not.
		return "", false
	}
	if count < 1<<40 && shareRows(count, block, share) <= maxListedRows {
		c.listRange(n, r, types[0], shareRanges(count, block, share))
		return n.GetName(), true
	}
	// The function that creates a block subtracts the block's first value from the end of the range.
	if block > math.MaxInt64/4/abs(r.step) || !sumFits(r.stop, -r.start) || r.start == math.MinInt64 {
		return "", false
	}
	if !c.moveRange(n, r, r.step*block, share) {
		return "", false
	}
	c.Edit(n.GetName()).Attr["output_types"] = nodedef.TypesAttr([]tf.DataType{tf.DataType_DT_INT64})
	flat := &tf.NodeDef{Name: CutPrefix + n.GetName() + "/flatten", Op: "FlatMapDataset", Input: []string{n.GetName()},
		Attr: nodedef.DatasetAttrs(types, []*tf.TensorShapeProto{nodedef.Shape()})}
	flat.Attr["f"] = nodedef.FuncAttr(c.addBlockOfRange("pecan_block_"+n.GetName(), r, types[0], block))
	flat.Attr["Targuments"] = nodedef.TypesAttr(nil)
	return c.Add(flat), true
}

// listRange replaces a range by a constant with the values of some of its rows.
func (c *cutting) listRange(n *tf.NodeDef, r rangeBounds, dtype tf.DataType, keep [][2]int64) {
	var raw []byte
	rows := int64(0)
	for _, part := range keep {
		for p := part[0]; p < part[1]; p++ {
			if dtype == tf.DataType_DT_INT32 {
				raw = binary.LittleEndian.AppendUint32(raw, uint32(r.start+p*r.step))
			} else {
				raw = binary.LittleEndian.AppendUint64(raw, uint64(r.start+p*r.step))
			}
			rows++
		}
	}
	list := c.Add(nodedef.Const(CutPrefix+n.GetName()+"/numbers", &tf.TensorProto{Dtype: dtype, TensorShape: nodedef.Shape(rows), TensorContent: raw}))
	cut := c.Edit(n.GetName())
	cut.Op, cut.Input = "TensorSliceDataset", []string{list}
	cut.Attr = map[string]*tf.AttrValue{"Toutput_types": nodedef.TypesAttr([]tf.DataType{dtype}), "output_shapes": nodedef.ShapesAttr([]*tf.TensorShapeProto{nodedef.Shape()})}
}

// addBlockOfRange adds the function that returns the values of one block, given the block's first value. The
// last block contains only the rest of the range.
func (c *cutting) addBlockOfRange(name string, r rangeBounds, dtype tf.DataType, block int64) string {
	i64 := map[string]*tf.AttrValue{"T": nodedef.TypeAttr(tf.DataType_DT_INT64)}
	shorter := "Minimum"
	if r.step < 0 {
		shorter = "Maximum"
	}
	numbers := &tf.NodeDef{Name: "numbers", Op: "RangeDataset", Input: []string{"first", "end:z:0", "step:output:0"},
		Attr: nodedef.DatasetAttrs([]tf.DataType{dtype}, []*tf.TensorShapeProto{nodedef.Shape()})}
	c.AddFunction(name, &tf.FunctionDef{
		Signature: &tf.OpDef{Name: name, IsStateful: true,
			InputArg:  []*tf.OpDef_ArgDef{{Name: "first", Type: tf.DataType_DT_INT64}},
			OutputArg: []*tf.OpDef_ArgDef{{Name: "elements", Type: tf.DataType_DT_VARIANT}}},
		NodeDef: []*tf.NodeDef{
			nodedef.Int64Const("stop", r.stop), nodedef.Int64Const("length", block*r.step), nodedef.Int64Const("step", r.step),
			{Name: "left", Op: "Sub", Input: []string{"stop:output:0", "first"}, Attr: i64},
			{Name: "span", Op: shorter, Input: []string{"left:z:0", "length:output:0"}, Attr: i64},
			{Name: "end", Op: "AddV2", Input: []string{"first", "span:z:0"}, Attr: i64},
			numbers,
			{Name: "result", Op: "Identity", Input: []string{"numbers:handle:0"}, Attr: map[string]*tf.AttrValue{"T": nodedef.TypeAttr(tf.DataType_DT_VARIANT)}},
		},
		Ret: map[string]string{"elements": "result:output:0"},
	})
	return name
}
