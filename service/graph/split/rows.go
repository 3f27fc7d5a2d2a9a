package split

import (
	"encoding/binary"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph/analysis"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
)

// selectTensorRows returns a tensor with some of the rows of another one.
func selectTensorRows(t *tf.TensorProto, rows rowRanges) (*tf.TensorProto, bool) {
	kept := rows.count
	dims := append([]*tf.TensorShapeProto_Dim{{Size: kept}}, t.GetTensorShape().GetDim()[1:]...)
	out := &tf.TensorProto{Dtype: t.GetDtype(), TensorShape: &tf.TensorShapeProto{Dim: dims}}
	cells, ok := nodedef.ElementCount(&tf.TensorShapeProto{Dim: t.GetTensorShape().GetDim()[1:]})
	if !ok {
		return nil, false
	}
	if nodedef.ValueCount(t) <= 1 && len(t.GetTensorContent()) == 0 {
		return selectOneValue(out, t, kept*cells)
	}
	keep := rows.list()
	if t.GetDtype() == tf.DataType_DT_STRING {
		return selectStrings(out, t, keep, cells)
	}
	width := nodedef.DtypeSize(t.GetDtype())
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
	return selectValues(out, t, keep, cells)
}

// shareRows counts the rows of a share without listing them.
func shareRows(rows, block int64, share Share) int64 {
	full := rows / block
	kept := int64(0)
	if end := min(full, share.Stop); share.First < end {
		kept = ((end-1-share.First)/share.Step + 1) * block
	}
	if full >= share.First && full < share.Stop && (full-share.First)%share.Step == 0 {
		kept += rows % block
	}
	return kept
}

// shareRanges lists the rows of a share as half-open ranges, in the order in which the stream reads them.
func shareRanges(rows, block int64, share Share) [][2]int64 {
	var keep [][2]int64
	for _, b := range share.Blocks(analysis.CeilDiv(rows, block)) {
		from := b * block
		keep = append(keep, [2]int64{from, from + min(block, rows-from)})
	}
	return keep
}

// selectOneValue handles constants where one value (or no value, for zeros) stands for all cells.
func selectOneValue(out, t *tf.TensorProto, cells int64) (*tf.TensorProto, bool) {
	if cells == 0 {
		return out, true
	}
	out.HalfVal, out.FloatVal, out.DoubleVal, out.IntVal = t.HalfVal, t.FloatVal, t.DoubleVal, t.IntVal
	out.Int64Val, out.BoolVal, out.Uint32Val, out.Uint64Val = t.Int64Val, t.BoolVal, t.Uint32Val, t.Uint64Val
	out.ScomplexVal, out.DcomplexVal, out.Float8Val, out.StringVal = t.ScomplexVal, t.DcomplexVal, t.Float8Val, t.StringVal
	return out, len(t.VariantVal)+len(t.ResourceHandleVal) == 0
}

func selectStrings(out, t *tf.TensorProto, keep [][2]int64, cells int64) (*tf.TensorProto, bool) {
	values, ok := nodedef.Strings(nodedef.Const("", t))
	if !ok {
		return nil, false
	}
	kept := selectRows(values, keep, cells)
	for _, v := range kept {
		out.TensorContent = binary.AppendUvarint(out.TensorContent, uint64(len(v)))
	}
	for _, v := range kept {
		out.TensorContent = append(out.TensorContent, v...)
	}
	return out, true
}

func selectRows[T any](values []T, keep [][2]int64, cells int64) []T {
	var out []T
	for _, k := range keep {
		out = append(out, values[k[0]*cells:k[1]*cells]...)
	}
	return out
}

// selectValues handles constants that are written as lists of values. The last value of a list stands for
// all cells that follow.
func selectValues(out, t *tf.TensorProto, keep [][2]int64, cells int64) (*tf.TensorProto, bool) {
	total := t.GetTensorShape().GetDim()[0].GetSize() * cells
	if total > 1<<26 {
		return nil, false
	}
	ok := selectRowsInto(&out.HalfVal, t.HalfVal, keep, cells, total) && selectRowsInto(&out.FloatVal, t.FloatVal, keep, cells, total) &&
		selectRowsInto(&out.DoubleVal, t.DoubleVal, keep, cells, total) && selectRowsInto(&out.IntVal, t.IntVal, keep, cells, total) &&
		selectRowsInto(&out.Int64Val, t.Int64Val, keep, cells, total) && selectRowsInto(&out.BoolVal, t.BoolVal, keep, cells, total) &&
		selectRowsInto(&out.Uint32Val, t.Uint32Val, keep, cells, total) && selectRowsInto(&out.Uint64Val, t.Uint64Val, keep, cells, total)
	if len(t.ScomplexVal)+len(t.DcomplexVal)+len(t.Float8Val) > 0 {
		return nil, false
	}
	return out, ok
}

func selectRowsInto[T any](out *[]T, values []T, keep [][2]int64, cells, total int64) bool {
	if len(values) == 0 {
		return true
	}
	full, ok := nodedef.Fill(append([]T(nil), values...), total)
	if !ok {
		return false
	}
	*out = selectRows(full, keep, cells)
	return true
}
