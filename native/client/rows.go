package client

import (
	"encoding/binary"

	"github.com/pecan-ml/pecan/native/buffer"
	"github.com/pecan-ml/pecan/proto/frame"
)

// Status is what Next found.
type Status int

// NotYet: nothing was ready in time, ask again. Ready: rows are there. End: the iteration is over. Failed: see the
// error; the iteration may be asked again, and goes on where it stood, or behind the element that failed. Broken: it is over by an error,
// before its end.
const (
	NotYet Status = iota
	Ready
	End
	Failed
	Broken
)

// String names the status.
func (s Status) String() string {
	return [...]string{"not yet", "ready", "end", "failed", "broken"}[s]
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
	pieces []piece
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

// entry is one accepted frame, or one failed element, in a stream's queue.
type entry struct {
	// first is the index of row 0; at is the next row to take.
	first uint64
	rows  int
	at    int
	// bytes is what the entry holds of the budget, arrived what it took of the channel's credit.
	bytes   uint64
	arrived uint64
	// err makes it a failed element.
	err error

	block   *buffer.Block
	table   *frame.Table
	isBlock bool
	checked bool
	// strings holds, per component of a block frame, where the bytes of row `at` start; nil without strings.
	strings []uint64
}

// index is the index of the next row.
func (en *entry) index() uint64 { return en.first + uint64(en.at) }

func (en *entry) left() int { return en.rows - en.at }

// skip leaves out rows that were delivered before.
func (en *entry) skip(rows int) {
	if !en.isBlock || en.strings == nil {
		en.at += rows
		return
	}
	var ignored Tensor
	for c := range en.table.Rows {
		if en.table.Rows[c].DType == frame.DTString {
			en.sliceStrings(c, rows, &ignored)
		}
	}
	en.at += rows
}

// take cuts the next n rows off a frame without copying them. n is 1 unless the frame is a block. With lead the
// tensors get a leading dimension of n.
func (en *entry) take(n int, lead bool) *Rows {
	components := en.table.Components
	row := 0
	if !en.isBlock {
		row = en.at * components
	}
	rank := 0
	for c := range components {
		rank += len(en.table.Rows[row+c].Dims) + 1
	}
	rows := &Rows{Index: en.index(), Count: n, Tensors: make([]Tensor, components)}
	dims := make([]int64, 0, rank)
	data := en.block.Bytes()
	for c := range components {
		source, tensor := &en.table.Rows[row+c], &rows.Tensors[c]
		start := len(dims)
		if lead {
			dims = append(dims, int64(n))
		}
		for _, dim := range source.Dims {
			dims = append(dims, int64(dim))
		}
		tensor.DType, tensor.Dims = source.DType, dims[start:len(dims):len(dims)]
		switch {
		case source.DType == frame.DTString:
			en.sliceStrings(row+c, n, tensor)
		case en.isBlock:
			width := source.Bytes / uint64(en.rows)
			from := source.Offset + uint64(en.at)*width
			tensor.Data = data[from : from+uint64(n)*width]
		default:
			tensor.Data = data[source.Offset : source.Offset+source.Bytes]
		}
	}
	en.at += n
	if en.left() == 0 {
		rows.block, en.block = en.block, nil
	} else {
		rows.block = en.block.Retain()
	}
	return rows
}

// sliceStrings finds the lengths and the bytes of n rows of a string component and moves on behind them. Lengths were
// checked against the payload when the frame was accepted.
func (en *entry) sliceStrings(row, n int, tensor *Tensor) {
	source := &en.table.Rows[row]
	data := en.block.Bytes()[source.Offset : source.Offset+source.Bytes]
	per, _ := frame.Elements(source.Dims)
	total, first, at := per, uint64(0), uint64(0)
	if en.isBlock {
		total, first, at = per*uint64(en.rows), per*uint64(en.at), en.strings[row]
	}
	tensor.Lengths = data[first*8 : (first+per*uint64(n))*8]
	size := uint64(0)
	for i := 0; i < len(tensor.Lengths); i += 8 {
		size += binary.LittleEndian.Uint64(tensor.Lengths[i:])
	}
	tensor.Data = data[total*8+at : total*8+at+size]
	if en.isBlock {
		en.strings[row] = at + size
	}
}

// release gives the memory of what was not taken back.
func (en *entry) release() {
	en.block.Release()
	en.block = nil
}
