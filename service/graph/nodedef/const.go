package nodedef

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/bits"
	"slices"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
)

// StringConst returns a constant node with one string.
func StringConst(name, value string) *tf.NodeDef {
	return Const(name, &tf.TensorProto{Dtype: tf.DataType_DT_STRING, TensorShape: Shape(), StringVal: [][]byte{[]byte(value)}})
}

// DtypeSize is the number of bytes of one value in memory. It is 0 for types without a fixed width.
func DtypeSize(t tf.DataType) int64 {
	switch t {
	case tf.DataType_DT_BOOL, tf.DataType_DT_INT8, tf.DataType_DT_UINT8, tf.DataType_DT_QINT8, tf.DataType_DT_QUINT8,
		tf.DataType_DT_FLOAT8_E5M2, tf.DataType_DT_FLOAT8_E4M3FN, tf.DataType_DT_FLOAT8_E4M3FNUZ,
		tf.DataType_DT_FLOAT8_E4M3B11FNUZ, tf.DataType_DT_FLOAT8_E5M2FNUZ, tf.DataType_DT_INT4, tf.DataType_DT_UINT4:
		return 1
	case tf.DataType_DT_INT16, tf.DataType_DT_UINT16, tf.DataType_DT_HALF, tf.DataType_DT_BFLOAT16,
		tf.DataType_DT_QINT16, tf.DataType_DT_QUINT16:
		return 2
	case tf.DataType_DT_FLOAT, tf.DataType_DT_INT32, tf.DataType_DT_UINT32, tf.DataType_DT_QINT32:
		return 4
	case tf.DataType_DT_DOUBLE, tf.DataType_DT_INT64, tf.DataType_DT_UINT64, tf.DataType_DT_COMPLEX64:
		return 8
	case tf.DataType_DT_COMPLEX128:
		return 16
	}
	return 0
}

// ElementCount multiplies the sizes of a shape. It returns false for unknown sizes and for overflow.
func ElementCount(s *tf.TensorShapeProto) (int64, bool) {
	if s.GetUnknownRank() {
		return 0, false
	}
	count := int64(1)
	empty := false
	for _, d := range s.GetDim() {
		switch {
		case d.GetSize() < 0:
			return 0, false
		case d.GetSize() == 0:
			empty = true
		default:
			hi, lo := bits.Mul64(uint64(count), uint64(d.GetSize()))
			if hi != 0 || lo > math.MaxInt64 {
				return 0, false
			}
			count = int64(lo)
		}
	}
	if empty {
		return 0, true
	}
	return count, true
}

// Tensor returns the tensor of a Const node, nil for other nodes.
func Tensor(n *tf.NodeDef) *tf.TensorProto {
	if n.GetOp() != "Const" {
		return nil
	}
	return n.GetAttr()["value"].GetTensor()
}

// IsZero reports whether all floats of a small constant are 0.
func IsZero(t *tf.TensorProto) bool {
	raw := bytes.Trim(t.GetTensorContent(), "\x00")
	return t.GetDtype() == tf.DataType_DT_FLOAT && len(raw) == 0 && !slices.ContainsFunc(t.GetFloatVal(), func(v float32) bool { return v != 0 })
}

// Ints returns the values of an integer or Boolean Const.
func Ints(n *tf.NodeDef) ([]int64, bool) {
	t := Tensor(n)
	if t == nil {
		return nil, false
	}
	count, ok := ElementCount(t.GetTensorShape())
	if !ok || count > 1<<20 {
		return nil, false
	}
	var values []int64
	if raw := t.GetTensorContent(); len(raw) > 0 {
		width := DtypeSize(t.GetDtype())
		if width == 0 || int64(len(raw)) != count*width {
			return nil, false
		}
		for i := int64(0); i < count; i++ {
			cell := raw[i*width:]
			switch t.GetDtype() {
			case tf.DataType_DT_INT64:
				values = append(values, int64(binary.LittleEndian.Uint64(cell)))
			case tf.DataType_DT_INT32:
				values = append(values, int64(int32(binary.LittleEndian.Uint32(cell))))
			case tf.DataType_DT_UINT64:
				values = append(values, int64(binary.LittleEndian.Uint64(cell)))
			case tf.DataType_DT_UINT32:
				values = append(values, int64(binary.LittleEndian.Uint32(cell)))
			case tf.DataType_DT_INT16:
				values = append(values, int64(int16(binary.LittleEndian.Uint16(cell))))
			case tf.DataType_DT_UINT16:
				values = append(values, int64(binary.LittleEndian.Uint16(cell)))
			case tf.DataType_DT_INT8:
				values = append(values, int64(int8(cell[0])))
			case tf.DataType_DT_UINT8, tf.DataType_DT_BOOL:
				values = append(values, int64(cell[0]))
			default:
				return nil, false
			}
		}
		return values, true
	}
	switch t.GetDtype() {
	case tf.DataType_DT_INT64:
		values = append(values, t.GetInt64Val()...)
	case tf.DataType_DT_INT32, tf.DataType_DT_INT16, tf.DataType_DT_UINT16, tf.DataType_DT_INT8, tf.DataType_DT_UINT8:
		for _, v := range t.GetIntVal() {
			values = append(values, int64(v))
		}
	case tf.DataType_DT_UINT64:
		for _, v := range t.GetUint64Val() {
			values = append(values, int64(v))
		}
	case tf.DataType_DT_UINT32:
		for _, v := range t.GetUint32Val() {
			values = append(values, int64(v))
		}
	case tf.DataType_DT_BOOL:
		for _, v := range t.GetBoolVal() {
			if v {
				values = append(values, 1)
			} else {
				values = append(values, 0)
			}
		}
	default:
		return nil, false
	}
	return Fill(values, count)
}

// Numbers returns the values of a small Const of integers or floats.
func Numbers(n *tf.NodeDef) ([]float64, bool) {
	t := Tensor(n)
	count, ok := ElementCount(t.GetTensorShape())
	if t == nil || !ok || count > maxNumbers {
		return nil, false
	}
	raw, width := t.GetTensorContent(), DtypeSize(t.GetDtype())
	if len(raw) > 0 && int64(len(raw)) != count*width {
		return nil, false
	}
	var values []float64
	switch t.GetDtype() {
	case tf.DataType_DT_BOOL:
		return nil, false
	case tf.DataType_DT_FLOAT:
		for ; len(raw) > 0; raw = raw[width:] {
			values = append(values, float64(math.Float32frombits(binary.LittleEndian.Uint32(raw))))
		}
		for _, v := range t.GetFloatVal() {
			values = append(values, float64(v))
		}
	case tf.DataType_DT_DOUBLE:
		for ; len(raw) > 0; raw = raw[width:] {
			values = append(values, math.Float64frombits(binary.LittleEndian.Uint64(raw)))
		}
		values = append(values, t.GetDoubleVal()...)
	default:
		ints, known := Ints(n)
		for _, v := range ints {
			values = append(values, float64(v))
		}
		if !known {
			return nil, false
		}
	}
	return Fill(values, count)
}

// maxNumbers bounds the constants that Numbers reads.
const maxNumbers = 4096

// Fill repeats the last value until there are count values, as TensorFlow reads its value lists. An empty
// list stands for zeros.
func Fill[T any](values []T, count int64) ([]T, bool) {
	if int64(len(values)) > count {
		return nil, false
	}
	var last T
	if len(values) > 0 {
		last = values[len(values)-1]
	}
	for int64(len(values)) < count {
		values = append(values, last)
	}
	return values, true
}

// Int returns the value of a Const with one integer.
func Int(n *tf.NodeDef) (int64, bool) {
	v, ok := Ints(n)
	if !ok || len(v) != 1 {
		return 0, false
	}
	return v[0], true
}

// Strings returns the values of a string Const. It reads a list of values, or TensorFlow's packed form: all
// lengths, then all bytes. The caller must not change the values.
func Strings(n *tf.NodeDef) ([][]byte, bool) {
	t := Tensor(n)
	if t.GetDtype() != tf.DataType_DT_STRING {
		return nil, false
	}
	count, ok := ElementCount(t.GetTensorShape())
	if !ok {
		return nil, false
	}
	if raw := t.GetTensorContent(); len(raw) > 0 {
		return UnpackStrings(raw, count)
	}
	if count > int64(len(t.GetStringVal()))+1<<20 {
		return nil, false
	}
	return Fill(slices.Clip(t.GetStringVal()), count)
}

// UnpackStrings returns the strings of a packed string tensor.
func UnpackStrings(raw []byte, count int64) ([][]byte, bool) {
	if count > int64(len(raw)) {
		return nil, false
	}
	sizes := make([]uint64, 0, count)
	for int64(len(sizes)) < count {
		size, n := binary.Uvarint(raw)
		if n <= 0 || size > math.MaxUint32 {
			return nil, false
		}
		raw = raw[n:]
		sizes = append(sizes, size)
	}
	values := make([][]byte, 0, count)
	for _, size := range sizes {
		if size > uint64(len(raw)) {
			return nil, false
		}
		values = append(values, raw[:size])
		raw = raw[size:]
	}
	return values, len(raw) == 0
}

// ValueCount is the number of values that the lists of a tensor contain. Two entries make one complex value.
func ValueCount(t *tf.TensorProto) int {
	return max(len(t.GetHalfVal()), len(t.GetFloatVal()), len(t.GetDoubleVal()), len(t.GetIntVal()), len(t.GetStringVal()),
		len(t.GetScomplexVal())/2, len(t.GetInt64Val()), len(t.GetBoolVal()), len(t.GetDcomplexVal())/2,
		len(t.GetResourceHandleVal()), len(t.GetVariantVal()), len(t.GetUint32Val()), len(t.GetUint64Val()),
		len(t.GetFloat8Val()))
}

// Shape returns the shape with the given sizes.
func Shape(dims ...int64) *tf.TensorShapeProto {
	s := &tf.TensorShapeProto{}
	for _, d := range dims {
		s.Dim = append(s.Dim, &tf.TensorShapeProto_Dim{Size: d})
	}
	return s
}

// Int64Const returns a constant node with one int64.
func Int64Const(name string, value int64) *tf.NodeDef {
	return Const(name, &tf.TensorProto{Dtype: tf.DataType_DT_INT64, TensorShape: Shape(), Int64Val: []int64{value}})
}

// BoolConst returns a constant node with one Boolean.
func BoolConst(name string, value bool) *tf.NodeDef {
	return Const(name, &tf.TensorProto{Dtype: tf.DataType_DT_BOOL, TensorShape: Shape(), BoolVal: []bool{value}})
}

// Const returns a constant node with a tensor.
func Const(name string, t *tf.TensorProto) *tf.NodeDef {
	return &tf.NodeDef{Name: name, Op: "Const", Attr: map[string]*tf.AttrValue{
		"dtype": {Value: &tf.AttrValue_Type{Type: t.GetDtype()}},
		"value": {Value: &tf.AttrValue_Tensor{Tensor: t}},
	}}
}
