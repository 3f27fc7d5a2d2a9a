package payload

import (
	"encoding/binary"

	"github.com/pecan-ml/pecan/native/tf"
	"github.com/pecan-ml/pecan/proto/frame"
)

// zeros fills the gaps between components.
var zeros [frame.Align]byte

// Body is the elements of a data entry. Frame returns what is sent of them from element from on: flags, the rows
// of the element table, and the payload in pieces.
type Body interface {
	Frame(from int) Parts
	Release()
}

// Parts are the parts of a DATA frame. The slices are valid while the entry is held.
type Parts struct {
	Flags      frame.Flags
	Components int
	Rows       []byte
	Buffers    [][]byte
	Raw        uint64
}

// Builder puts components one after the other at multiples of frame.Align.
type Builder struct {
	Buffers [][]byte
	at      uint64
}

// Align adds zeros up to the next multiple of frame.Align.
func (b *Builder) Align() {
	if gap := frame.AlignUp(b.at) - b.at; gap > 0 {
		b.Buffers = append(b.Buffers, zeros[:gap])
		b.at += gap
	}
}

// Add adds a piece without copying it.
func (b *Builder) Add(piece []byte) {
	if len(piece) > 0 {
		b.Buffers = append(b.Buffers, piece)
		b.at += uint64(len(piece))
	}
}

// AppendRow appends a row of an element table to dst.
func AppendRow(dst []byte, dtype tf.DataType, dims []int64, bytes uint64) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, uint32(dtype))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(dims)))
	dst = binary.LittleEndian.AppendUint64(dst, bytes)
	for _, dim := range dims {
		dst = binary.LittleEndian.AppendUint64(dst, uint64(dim))
	}
	return dst
}
