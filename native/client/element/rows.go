package element

import (
	"encoding/binary"

	"github.com/pecan-ml/pecan/native/buffer"
)

// Span is consecutive rows of one stream.
type Span struct {
	Stream uint32
	First  uint64
	Rows   uint64
}

// Tensor is one component. Its memory belongs to the Rows it came in.
type Tensor struct {
	// DType is the tensorflow.DataType number.
	DType uint32
	// Dims has the rows' dimension first when it came from NextBlock.
	Dims []int64
	// Data holds the values as TensorFlow keeps them; of strings, the bytes of one after the other.
	Data []byte
	// Lengths holds, for strings only, the length of each (u64, little endian). Their sum is len(Data).
	Lengths []byte
}

// Strings is the number of strings in a string tensor.
func (t *Tensor) Strings() int { return len(t.Lengths) / 8 }

// StringLength is the length of string i of a string tensor.
func (t *Tensor) StringLength(i int) int { return int(binary.LittleEndian.Uint64(t.Lengths[i*8:])) }

// Rows are one element or some consecutive elements of a stream, in memory that stays valid until Release. Who wants
// tensors to outlive the Rows retains Block for each.
type Rows struct {
	Epoch  uint64
	Stream uint32
	// Index of the first row in its stream. For rows gathered from several frames or streams, of the first one.
	Index   uint64
	Count   int
	Tensors []Tensor

	block *buffer.Block
	// pieces are what rows gathered from several frames are made of, the first included; nil for one.
	Spans []Span
}

// Block is the counted memory behind all tensors; nil when they have no bytes.
func (r *Rows) Block() *buffer.Block { return r.block }

// Release gives the caller's reference back. Idempotent.
func (r *Rows) Release() {
	if r == nil || r.block == nil {
		return
	}
	block := r.block
	r.block = nil
	block.Release()
}
