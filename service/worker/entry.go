package worker

import (
	"encoding/binary"
	"sync/atomic"

	"google.golang.org/protobuf/proto"

	"github.com/pecan-ml/pecan/native/tf"
	"github.com/pecan-ml/pecan/proto/frame"
	"github.com/pecan-ml/pecan/proto/reason"
)

// entryOverhead is what an entry is taken to cost in memory beside its payload.
const entryOverhead = 512

// bigString is the size from which strings are sent from TensorFlow's memory instead of being copied.
const bigString = 32 << 10

// zeros fills the gaps between components.
var zeros [frame.Align]byte

// entry is what travels in one frame: consecutive elements, one element that failed, or the end.
type entry struct {
	first uint64
	count uint32
	// size is what the window is charged.
	size int64
	body body
	// failure of the one element of this entry; nil for data.
	failure *reason.Error
	refs    atomic.Int32
}

// body is the elements of a data entry. frame gives what travels of them from the from-th on: flags, the rows of the
// element table, and the payload in pieces.
type body interface {
	frame(from int) parts
	release()
}

// parts is a DATA frame taken apart. The slices are valid while the entry is held.
type parts struct {
	flags      frame.Flags
	components int
	rows       []byte
	segments   [][]byte
	raw        uint64
}

func newEntry(first uint64, count int, size int64, b body) *entry {
	e := &entry{first: first, count: uint32(count), size: size + entryOverhead, body: b}
	e.refs.Store(1)
	return e
}

func newFailure(first uint64, failure *reason.Error) *entry {
	e := &entry{first: first, count: 1, size: int64(len(failure.Message)) + entryOverhead, failure: failure}
	e.refs.Store(1)
	return e
}

func (e *entry) end() uint64 { return e.first + uint64(e.count) }

func (e *entry) retain() { e.refs.Add(1) }

func (e *entry) release() {
	if e.refs.Add(-1) == 0 && e.body != nil {
		e.body.release()
	}
}

// failureMeta is the meta data of the ERROR frame.
func failureMeta(failure *reason.Error) []byte {
	meta, err := proto.Marshal(failure.Detail())
	if err != nil {
		// Only invalid UTF-8 in TensorFlow's message can do that.
		detail := failure.Detail()
		detail.Message = "an error whose message is not valid UTF-8"
		meta, _ = proto.Marshal(detail)
	}
	return meta
}

// payload puts components one after the other at multiples of frame.Align.
type payload struct {
	segments [][]byte
	at       uint64
}

func (p *payload) align() {
	if gap := frame.AlignUp(p.at) - p.at; gap > 0 {
		p.segments = append(p.segments, zeros[:gap])
		p.at += gap
	}
}

func (p *payload) add(piece []byte) {
	if len(piece) > 0 {
		p.segments = append(p.segments, piece)
		p.at += uint64(len(piece))
	}
}

func appendRow(dst []byte, dtype tf.DataType, dims []int64, bytes uint64) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, uint32(dtype))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(dims)))
	dst = binary.LittleEndian.AppendUint64(dst, bytes)
	for _, dim := range dims {
		dst = binary.LittleEndian.AppendUint64(dst, uint64(dim))
	}
	return dst
}

// single is one element, sent from TensorFlow's own memory.
type single struct {
	tensors []*tf.Tensor
	parts   parts
}

// newSingle takes the tensors over.
func newSingle(tensors []*tf.Tensor) *single {
	s := &single{tensors: tensors, parts: parts{components: len(tensors)}}
	var p payload
	for _, t := range tensors {
		p.align()
		begin := p.at
		switch {
		case t.DType() != tf.String:
			p.add(t.Data())
		case t.WireSize() >= bigString*t.Elements():
			for _, piece := range t.StringSegments() {
				p.add(piece)
			}
		default:
			packed := make([]byte, t.WireSize())
			t.PackStrings(packed)
			p.add(packed)
		}
		s.parts.rows = appendRow(s.parts.rows, t.DType(), t.Dims(), p.at-begin)
	}
	s.parts.segments, s.parts.raw = p.segments, p.at
	return s
}

func (s *single) frame(int) parts { return s.parts }

func (s *single) release() { tf.ReleaseAll(s.tensors) }

// columns is a run of elements of one shape, laid out by component.
type columns struct {
	block *tf.Block
	// own holds the components when the elements were copied out of the block, which was used again then.
	own  [][]byte
	rows int
	home *pool[*tf.Block]
}

func (c *columns) frame(from int) parts {
	out := parts{flags: frame.Block, components: len(c.block.Columns)}
	var p payload
	for i := range c.block.Columns {
		column := &c.block.Columns[i]
		p.align()
		begin := p.at
		if c.own != nil {
			p.add(c.own[i][from*column.Width:])
		} else {
			p.add(c.block.Rows(i, from, c.rows))
		}
		out.rows = appendRow(out.rows, column.DType, column.Dims, p.at-begin)
	}
	out.segments, out.raw = p.segments, p.at
	return out
}

func (c *columns) release() {
	if c.own == nil {
		c.home.put(c.block)
	}
}

// packed is a run of small elements of any shape.
type packed struct {
	payload, table []byte
	components     int
	// pack is given back to home; nil when payload and table were copied out of it.
	pack *tf.Pack
	home *pool[*tf.Pack]
}

func (p *packed) frame(from int) parts {
	row, at := p.locate(from)
	out := parts{components: p.components, rows: p.table[row:]}
	if at = frame.AlignUp(at); at < uint64(len(p.payload)) {
		out.segments, out.raw = [][]byte{p.payload[at:]}, uint64(len(p.payload))-at
	}
	return out
}

// locate gives where the row of the element n begins in the table, and where the element before it ends in the payload.
// It steps over row by row: only a reader that comes back in the middle, and copies of small runs, ask for it.
func (p *packed) locate(n int) (row int, at uint64) {
	for range n * p.components {
		rank := binary.LittleEndian.Uint32(p.table[row+4:])
		at = frame.AlignUp(at) + binary.LittleEndian.Uint64(p.table[row+8:])
		row += 16 + 8*int(rank)
	}
	return row, at
}

// copy gives elements [from, to) in memory of their own.
func (p *packed) copy(from, to int) *packed {
	row, begin := p.locate(from)
	rowEnd, end := p.locate(to)
	begin = min(frame.AlignUp(begin), end)
	return &packed{
		payload: append([]byte(nil), p.payload[begin:end]...), table: append([]byte(nil), p.table[row:rowEnd]...), components: p.components,
	}
}

func (p *packed) release() {
	if p.pack != nil {
		p.home.put(p.pack)
	}
}
