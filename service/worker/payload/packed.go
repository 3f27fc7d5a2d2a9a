package payload

import (
	"encoding/binary"

	"github.com/pecan-ml/pecan/native/tf"
	"github.com/pecan-ml/pecan/proto/frame"
)

// Packed are small elements of any shape, one after the other.
type Packed struct {
	Payload, Table []byte
	Components     int
	// Pack is returned to Home; nil if Payload and Table were copied out of it.
	Pack *tf.Pack
	Home *Pool[*tf.Pack]
}

// Frame implements Body.
func (p *Packed) Frame(from int) Parts {
	row, at := p.locate(from)
	out := Parts{Components: p.Components, Rows: p.Table[row:]}
	if at = frame.AlignUp(at); at < uint64(len(p.Payload)) {
		out.Buffers, out.Raw = [][]byte{p.Payload[at:]}, uint64(len(p.Payload))-at
	}
	return out
}

// locate returns where the row of element n begins in the table, and where the element before it ends in the
// payload. It steps over every row. Only a reader that resumes inside the entry, and copies of short runs, need
// it.
func (p *Packed) locate(n int) (row int, at uint64) {
	for range n * p.Components {
		rank := binary.LittleEndian.Uint32(p.Table[row+4:])
		at = frame.AlignUp(at) + binary.LittleEndian.Uint64(p.Table[row+8:])
		row += 16 + 8*int(rank)
	}
	return row, at
}

// Copy returns elements [from, to) in their own memory.
func (p *Packed) Copy(from, to int) *Packed {
	row, begin := p.locate(from)
	rowEnd, end := p.locate(to)
	begin = min(frame.AlignUp(begin), end)
	return &Packed{
		Payload: append([]byte(nil), p.Payload[begin:end]...), Table: append([]byte(nil), p.Table[row:rowEnd]...), Components: p.Components,
	}
}

// Release implements Body.
func (p *Packed) Release() {
	if p.Pack != nil {
		p.Home.Put(p.Pack)
	}
}
