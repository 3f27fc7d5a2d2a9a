package pooled

import (
	"encoding/binary"
	"fmt"
	"math"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
)

// Argument is a tensor that a stream passes to its template. Data are its values in memory; those of strings are their
// lengths as 64-bit numbers and then their bytes.
type Argument struct {
	DType tf.DataType
	Dims  []int64
	Data  []byte
}

// argumentOf decodes a constant.
func argumentOf(n *tf.NodeDef) (Argument, error) {
	t := nodedef.Tensor(n)
	a := Argument{DType: t.GetDtype()}
	for _, d := range t.GetTensorShape().GetDim() {
		a.Dims = append(a.Dims, d.GetSize())
	}
	count, ok := nodedef.ElementCount(t.GetTensorShape())
	if ok {
		a.Data, ok = valuesOf(n, t, count)
	}
	if !ok {
		return Argument{}, fmt.Errorf("node %s has a value that cannot be an argument", nodedef.Quote(n.GetName()))
	}
	return a, nil
}

// valuesOf returns the values of a tensor in memory.
func valuesOf(n *tf.NodeDef, t *tf.TensorProto, count int64) ([]byte, bool) {
	if t.GetDtype() == tf.DataType_DT_STRING {
		values, ok := nodedef.Strings(n)
		if !ok {
			return nil, false
		}
		var lengths, all []byte
		for _, v := range values {
			lengths, all = binary.LittleEndian.AppendUint64(lengths, uint64(len(v))), append(all, v...)
		}
		return append(lengths, all...), true
	}
	width := nodedef.DtypeSize(t.GetDtype())
	if raw := t.GetTensorContent(); len(raw) > 0 {
		return raw, width > 0 && int64(len(raw)) == count*width
	}
	switch t.GetDtype() {
	case tf.DataType_DT_FLOAT:
		return listed(t.GetFloatVal(), count, func(b []byte, v float32) []byte {
			return binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
		})
	case tf.DataType_DT_DOUBLE:
		return listed(t.GetDoubleVal(), count, func(b []byte, v float64) []byte {
			return binary.LittleEndian.AppendUint64(b, math.Float64bits(v))
		})
	case tf.DataType_DT_HALF, tf.DataType_DT_BFLOAT16:
		return listed(t.GetHalfVal(), count, func(b []byte, v int32) []byte { return binary.LittleEndian.AppendUint16(b, uint16(v)) })
	}
	values, ok := nodedef.Ints(n)
	if !ok {
		return nil, false
	}
	return listed(values, count, func(b []byte, v int64) []byte {
		return binary.LittleEndian.AppendUint64(b, uint64(v))[:len(b)+int(width)]
	})
}

// listed writes a list of values, whose last value TensorFlow repeats.
func listed[T any](values []T, count int64, write func([]byte, T) []byte) ([]byte, bool) {
	all, ok := nodedef.Fill(append([]T(nil), values...), count)
	var out []byte
	for _, v := range all {
		out = write(out, v)
	}
	return out, ok
}
