package element

import (
	"encoding/binary"

	"github.com/pecan-ml/pecan/native/buffer"
)

// Span is a range of consecutive elements of one stream.
type Span struct {
	Stream   uint32
	First    uint64
	Elements uint64
}

// Tensor is one component. Its memory belongs to its Elements.
type Tensor struct {
	// DType is the number of the tensorflow.DataType.
	DType uint32
	// Dims begins with the number of elements if NextBlock returned the tensor.
	Dims []int64
	// Data holds the values in TensorFlow's layout; for strings, their bytes one after the other.
	Data []byte
	// Lengths holds the length of each string (u64, little endian); it is empty for other types. The lengths
	// add up to len(Data).
	Lengths []byte
}

// Strings returns the number of strings in a string tensor.
func (t *Tensor) Strings() int { return len(t.Lengths) / 8 }

// StringLength returns the length of string i of a string tensor.
func (t *Tensor) StringLength(i int) int { return int(binary.LittleEndian.Uint64(t.Lengths[i*8:])) }

// Elements are one element or several consecutive elements of a stream. Their memory stays valid until Release. A
// holder of tensors that outlive the Elements retains Buffer for each of them.
type Elements struct {
	Epoch  uint64
	Stream uint32
	// Index of the first element in its stream. For elements gathered from several frames or streams: that of the
	// first one.
	Index   uint64
	Count   int
	Tensors []Tensor

	buffer *buffer.Buffer
	// Spans are the ranges that gathered elements consist of, including the first; nil for elements of one frame.
	Spans []Span
}

// Buffer returns the counted memory of all tensors; nil when they have no bytes.
func (r *Elements) Buffer() *buffer.Buffer { return r.buffer }

// Release drops the caller's reference. Idempotent.
func (r *Elements) Release() {
	if r == nil || r.buffer == nil {
		return
	}
	buf := r.buffer
	r.buffer = nil
	buf.Release()
}
