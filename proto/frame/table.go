package frame

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
)

// DTString is tensorflow.DataType DT_STRING, the one dtype whose bytes are not the tensor's memory.
const DTString = 7

// Tensor describes one component of one element, or of all elements of a columnar frame.
type Tensor struct {
	DType uint32
	// Dims has the dimensions of one element, without the leading dimension of a columnar frame.
	Dims []uint64
	// Bytes is the size in the payload.
	Bytes uint64
	// Offset is the position in the payload, a multiple of Align; 0 for a tensor without bytes. It is computed, not sent.
	Offset uint64
}

// Table describes the layout of the elements in the payload of a DATA frame.
type Table struct {
	// Slot is the shared memory slot of a frame with the Shared flag.
	Slot uint64
	// Components is the number of components of an element.
	Components int
	// Rows has Components tensors for each element, or once for a columnar frame.
	Rows []Tensor
	// Size is the end of the last component, the least size of the payload.
	Size uint64
}

// AlignUp rounds n up to a multiple of Align.
func AlignUp(n uint64) uint64 { return (n + Align - 1) &^ (Align - 1) }

// AppendTable appends the table as the metadata of a frame with the given flags.
func AppendTable(dst []byte, flags Flags, t *Table) []byte {
	if flags&Shared != 0 {
		dst = binary.LittleEndian.AppendUint64(dst, t.Slot)
	}
	dst = binary.LittleEndian.AppendUint32(dst, uint32(t.Components))
	dst = binary.LittleEndian.AppendUint32(dst, 0)
	for i := range t.Rows {
		row := &t.Rows[i]
		dst = binary.LittleEndian.AppendUint32(dst, row.DType)
		dst = binary.LittleEndian.AppendUint32(dst, uint32(len(row.Dims)))
		dst = binary.LittleEndian.AppendUint64(dst, row.Bytes)
		for _, dim := range row.Dims {
			dst = binary.LittleEndian.AppendUint64(dst, dim)
		}
	}
	return dst
}

// ParseTable parses the table of a DATA frame and checks it. Sizes of fixed-width dtypes match the dimensions, and offsets
// do not overflow. The payload (RawLen of the header) contains all components. It reuses the memory of t.
func ParseTable(h Header, meta []byte, t *Table) error {
	t.Rows, t.Slot, t.Size = t.Rows[:0], 0, 0
	if h.Flags&Shared != 0 {
		if len(meta) < 8 {
			return corrupt("element table of %d bytes has no slot", len(meta))
		}
		t.Slot = binary.LittleEndian.Uint64(meta)
		meta = meta[8:]
	}
	if len(meta) < 8 {
		return corrupt("element table of %d bytes", len(meta))
	}
	components := binary.LittleEndian.Uint32(meta)
	if binary.LittleEndian.Uint32(meta[4:]) != 0 {
		return corrupt("reserved bytes of the element table that are not zero")
	}
	meta = meta[8:]
	if components > MaxComponents {
		return corrupt("%d components, limit %d", components, MaxComponents)
	}
	t.Components = int(components)
	elements, copies := uint64(h.Count), uint64(1)
	if h.Flags&Columns != 0 {
		elements, copies = 1, uint64(h.Count)
	}
	rows := elements * uint64(components)
	if rows*16 > uint64(len(meta)) {
		return corrupt("element table of %d bytes for %d tensors", len(meta), rows)
	}
	// The metadata that has arrived bounds both allocations: each row takes 16 bytes, the rest can only be dimensions.
	if uint64(cap(t.Rows)) < rows {
		t.Rows = make([]Tensor, 0, rows)
	}
	dims := make([]uint64, 0, (uint64(len(meta))-rows*16)/8)
	offset := uint64(0)
	for range rows {
		if len(meta) < 16 {
			return corrupt("element table ends early")
		}
		tensor := Tensor{DType: binary.LittleEndian.Uint32(meta), Bytes: binary.LittleEndian.Uint64(meta[8:]), Offset: offset}
		rank := binary.LittleEndian.Uint32(meta[4:])
		meta = meta[16:]
		if rank > maxRank || uint64(rank)*8 > uint64(len(meta)) {
			return corrupt("rank %d", rank)
		}
		at := len(dims)
		if rank > 0 && at+int(rank) > cap(dims) {
			return corrupt("element table ends early")
		}
		for i := range int(rank) {
			dims = append(dims, binary.LittleEndian.Uint64(meta[i*8:]))
		}
		tensor.Dims = dims[at:len(dims):len(dims)]
		meta = meta[rank*8:]
		if err := checkSize(&tensor, copies); err != nil {
			return err
		}
		if tensor.Bytes == 0 {
			// A tensor without bytes needs no space in the payload, not even the gap before it.
			tensor.Offset = 0
		} else {
			t.Size = offset + tensor.Bytes
			offset = AlignUp(t.Size)
		}
		if offset > MaxPayload {
			return corrupt("payload of more than %d bytes", uint64(MaxPayload))
		}
		t.Rows = append(t.Rows, tensor)
	}
	if len(meta) != 0 {
		return corrupt("%d bytes after the element table", len(meta))
	}
	// A gap may follow the last component. A longer payload would only waste memory.
	if t.Size > h.RawLen || h.RawLen > AlignUp(t.Size)+Align {
		return corrupt("payload of %d bytes, but its table describes %d", h.RawLen, t.Size)
	}
	return nil
}

// Elements returns the number of values of a tensor, or false if it overflows.
func Elements(dims []uint64) (uint64, bool) {
	n, zero := uint64(1), false
	for _, dim := range dims {
		if dim == 0 {
			zero = true
			continue
		}
		hi, lo := bits.Mul64(n, dim)
		if hi != 0 || lo > math.MaxInt64 {
			return 0, false
		}
		n = lo
	}
	if zero {
		return 0, true
	}
	return n, true
}

func checkSize(t *Tensor, copies uint64) error {
	if t.Bytes > MaxPayload {
		return corrupt("component of %d bytes", t.Bytes)
	}
	n, ok := Elements(t.Dims)
	hi, total := bits.Mul64(n, copies)
	if !ok || hi != 0 || total > MaxPayload {
		return corrupt("shape %v overflows", t.Dims)
	}
	if t.DType == DTString {
		if total*8 > t.Bytes {
			return corrupt("string tensor of %d values in %d bytes", total, t.Bytes)
		}
		return nil
	}
	width := Width(t.DType)
	if width == 0 {
		return corrupt("dtype %d cannot be sent", t.DType)
	}
	// int4 and smaller dtypes take a byte per value, as in TensorFlow's host memory.
	if total*width != t.Bytes {
		return corrupt("shape %v of dtype %d in %d bytes, expected %d", t.Dims, t.DType, t.Bytes, total*width)
	}
	return nil
}

// Width returns the bytes of one value of a fixed-width dtype in host memory; 0 for every other dtype.
func Width(dtype uint32) uint64 {
	switch dtype {
	case 4, 6, 10, 11, 12, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33:
		// uint8 int8 bool qint8 quint8, the float8 family, int4 uint4 int2 uint2 float4_e2m1fn
		return 1
	case 5, 17, 14, 19, 15, 16:
		// int16 uint16 bfloat16 half qint16 quint16
		return 2
	case 1, 3, 13, 22:
		// float int32 qint32 uint32
		return 4
	case 2, 8, 9, 23:
		// double complex64 int64 uint64
		return 8
	case 18:
		// complex128
		return 16
	}
	return 0
}

// names has TensorFlow's names of the dtypes, by number.
var names = [...]string{
	1: "float32", 2: "float64", 3: "int32", 4: "uint8", 5: "int16", 6: "int8", 7: "string", 8: "complex64", 9: "int64", 10: "bool",
	11: "qint8", 12: "quint8", 13: "qint32", 14: "bfloat16", 15: "qint16", 16: "quint16", 17: "uint16", 18: "complex128", 19: "float16",
	20: "resource", 21: "variant", 22: "uint32", 23: "uint64", 24: "float8_e5m2", 25: "float8_e4m3fn", 26: "float8_e4m3fnuz",
	27: "float8_e4m3b11fnuz", 28: "float8_e5m2fnuz", 29: "int4", 30: "uint4", 31: "int2", 32: "uint2", 33: "float4_e2m1fn",
}

// DTypeName returns the name of a dtype for messages.
func DTypeName(dtype uint32) string {
	if int64(dtype) < int64(len(names)) && names[dtype] != "" {
		return names[dtype]
	}
	return fmt.Sprintf("dtype %d", dtype)
}
