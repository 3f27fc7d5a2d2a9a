package payload

import (
	"encoding/binary"

	"github.com/pecan-ml/pecan/native/tf"
	"github.com/pecan-ml/pecan/proto/frame"
)

// Packed is a run of small elements of any shape.
type Packed struct {
	Payload, Table []byte
	Components     int
	// pack is given back to home; nil when payload and table were copied out of it.
	Pack *tf.Pack
	Home *Pool[*tf.Pack]
}

func (p *Packed) Frame(from int) Parts {
	row, at := p.locate(from)
	out := Parts{Components: p.Components, Rows: p.Table[row:]}
	if at = frame.AlignUp(at); at < uint64(len(p.Payload)) {
		out.Segments, out.Raw = [][]byte{p.Payload[at:]}, uint64(len(p.Payload))-at
	}
	return out
}

// locate gives where the row of the element n begins in the table, and where the element before it ends in the payload.
// It steps over row by row: only a reader that comes back in the middle, and copies of small runs, ask for it.
func (p *Packed) locate(n int) (row int, at uint64) {
	for range n * p.Components {
		rank := binary.LittleEndian.Uint32(p.Table[row+4:])
		at = frame.AlignUp(at) + binary.LittleEndian.Uint64(p.Table[row+8:])
		row += 16 + 8*int(rank)
	}
	return row, at
}

// Copy gives elements [from, to) in memory of their own.
func (p *Packed) Copy(from, to int) *Packed {
	row, begin := p.locate(from)
	rowEnd, end := p.locate(to)
	begin = min(frame.AlignUp(begin), end)
	return &Packed{
		Payload: append([]byte(nil), p.Payload[begin:end]...), Table: append([]byte(nil), p.Table[row:rowEnd]...), Components: p.Components,
	}
}

func (p *Packed) Release() {
	if p.Pack != nil {
		p.Home.Put(p.Pack)
	}
}
