package cachefill

import (
	"time"

	"github.com/pecan-ml/pecan/native/tf"
	"github.com/pecan-ml/pecan/proto/frame"
	"github.com/pecan-ml/pecan/service/cache"
	"github.com/pecan-ml/pecan/service/worker/payload"
)

// Small elements travel in packs at a cached step, because a call from a graph costs about as much as a hundred
// small elements.
const (
	packRows  = 1024
	packBytes = 64 << 10
	// packLinger is how long a pack waits for its next element.
	packLinger = 500 * time.Microsecond
)

// keptBack is the flag of a chunk with a short batch that the stream keeps back for the closing stream.
const keptBack = uint32(frame.Remainder)

// upstream yields the elements of the graph upstream of a cached step: one by one, or many in a pack.
type upstream struct {
	it     *tf.Iterator
	packed bool
	block  *tf.Block
	// misfit is an element that does not fit the block. failed is the error after the last pack.
	misfit []*tf.Tensor
	failed error
}

// pulled is the result of one pull: the tensors for the graph, and the same elements as a chunk of a segment.
// The chunk is valid until the next pull, or until the tensors are given away.
type pulled struct {
	tensors []*tf.Tensor
	chunk   cache.Chunk
}

// next returns the next elements. If elements are small and have one size, it fetches many at once. misfit and failed keep
// what ended such a block until the next call.
func (u *upstream) next() (*pulled, error) {
	switch {
	case u.misfit != nil:
		element := u.misfit
		u.misfit = nil
		return asPack(element)
	case u.failed != nil:
		err := u.failed
		u.failed = nil
		return nil, err
	case u.block != nil:
		return u.fill()
	}
	element, err := u.it.Next()
	if err != nil {
		return nil, err
	}
	if !u.packed {
		return asElement(element), nil
	}
	rows := min(packRows, packBytes/int(max(sizeOf(element), 1)))
	if block, err := tf.NewBlock(element, max(rows, 1)); err == nil {
		u.block = block
	}
	return asPack(element)
}

func sizeOf(element []*tf.Tensor) (sum int64) {
	for _, t := range element {
		sum += t.WireSize()
	}
	return sum
}

// fill fetches a pack. If the element after it has another shape or failed, it is kept for the next call.
func (u *upstream) fill() (*pulled, error) {
	rows, odd, err := u.it.FillBlock(u.block, tf.Pace{MaxElements: packRows, Linger: packLinger, Hurry: packLinger})
	if rows == 0 {
		if odd != nil {
			u.failed = err
			return asPack(odd)
		}
		return nil, err
	}
	u.misfit, u.failed = odd, err
	columns := make([]column, len(u.block.Columns))
	for i := range columns {
		c := &u.block.Columns[i]
		columns[i] = column{c.DType, c.Dims, u.block.Rows(i, 0, rows)}
	}
	return asRows(rows, columns)
}

func (u *upstream) close() {
	if u.misfit != nil {
		tf.ReleaseAll(u.misfit)
	}
	if u.block != nil {
		u.block.Free()
	}
}

// tableOf is an element table in the form of docs/formats/frame.md.
func tableOf(components int, rows []byte) []byte {
	return append(frame.AppendTable(nil, 0, &frame.Table{Components: components}), rows...)
}

func asElement(element []*tf.Tensor) *pulled {
	body := payload.NewSingle(element)
	return &pulled{tensors: element, chunk: cache.Chunk{Count: 1, Meta: tableOf(len(element), body.Parts.Rows), Payload: body.Parts.Buffers}}
}

// asPack makes a pack of one element of fixed width.
func asPack(element []*tf.Tensor) (*pulled, error) {
	defer tf.ReleaseAll(element)
	columns := make([]column, len(element))
	for i, t := range element {
		columns[i] = column{t.DType(), t.Dims(), t.Data()}
	}
	return asRows(1, columns)
}

// column is one component of several rows, each of shape dims.
type column struct {
	dtype tf.DataType
	dims  []int64
	data  []byte
}

// asRows makes a pack from columns, whose data it copies.
func asRows(rows int, columns []column) (*pulled, error) {
	out := &pulled{chunk: cache.Chunk{Count: rows, Flags: uint32(frame.Columns)}}
	var p payload.Builder
	var table []byte
	for _, c := range columns {
		tensor, err := tf.NewTensor(c.dtype, append([]int64{int64(rows)}, c.dims...), c.data)
		if err != nil {
			tf.ReleaseAll(out.tensors)
			return nil, err
		}
		out.tensors = append(out.tensors, tensor)
		p.Align()
		p.Add(tensor.Data())
		table = payload.AppendRow(table, c.dtype, c.dims, uint64(len(c.data)))
	}
	out.chunk.Meta, out.chunk.Payload = tableOf(len(columns), table), p.Buffers
	return out, nil
}

// tensorsOf makes the tensors of a chunk, whose memory is block. They share that memory if the chunk is at least half of it. A tensor
// of one small chunk of many would keep the whole block, for example in the buffer of a shuffle.
func tensorsOf(chunk *cache.Chunk, block cache.Block, table *frame.Table) ([]*tf.Tensor, error) {
	data := chunk.Payload[0]
	h := frame.Header{Type: frame.Data, Flags: frame.Flags(chunk.Flags &^ keptBack), Count: uint32(chunk.Count), RawLen: uint64(len(data))}
	if err := frame.ParseTable(h, chunk.Meta, table); err != nil {
		return nil, err
	}
	tensorOf := payload.Tensor
	if 2*len(data) >= len(block.Bytes()) {
		tensorOf = func(row *frame.Tensor, data []byte) (*tf.Tensor, error) { return payload.Shared(block, row, data) }
	}
	var out []*tf.Tensor
	for i := range table.Rows {
		row := table.Rows[i]
		if h.Flags&frame.Columns != 0 {
			row.Dims = append([]uint64{uint64(chunk.Count)}, row.Dims...)
		}
		tensor, err := tensorOf(&row, data)
		if err != nil {
			tf.ReleaseAll(out)
			return nil, err
		}
		out = append(out, tensor)
	}
	return out, nil
}
