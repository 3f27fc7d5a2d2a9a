package tf

// #include <stdlib.h>
// #include "tensorflow.h"
import "C"

import (
	"errors"
	"time"
	"unsafe"
)

// MaxShapeRank is the highest rank that fills compare in C. Tensors of a higher rank are fetched one by one.
const MaxShapeRank = C.PECAN_INLINE_DIMS

// Shape is the required shape of a component. Dims below 0 are unknown; Unknown also leaves the rank open.
type Shape struct {
	Unknown bool
	Dims    []int64
}

// Pace says when a fill returns: at MaxElements, after Linger, or after Hurry while a reader waits.
type Pace struct {
	MaxElements int
	Linger      time.Duration
	Hurry       time.Duration
}

func (p Pace) c() C.pecan_pace {
	return C.pecan_pace{max_rows: C.int64_t(p.MaxElements), linger_ns: C.int64_t(p.Linger), hurry_ns: C.int64_t(p.Hurry)}
}

func (s Shape) c() C.pecan_shape {
	if s.Unknown {
		return C.pecan_shape{rank: -1}
	}
	out := C.pecan_shape{rank: C.int32_t(len(s.Dims))}
	for i, dim := range s.Dims {
		out.dims[i] = C.int64_t(dim)
	}
	return out
}

// alloc returns memory outside of Go's heap, where C may keep pointers to it. It is aligned like payloads.
func alloc(n int) []byte {
	rounded := (max(n, 1) + 63) &^ 63
	p := C.aligned_alloc(64, C.size_t(rounded))
	if p == nil {
		panic("out of memory for a block of elements")
	}
	return unsafe.Slice((*byte)(p), n)
}

func free(b []byte) { C.free(unsafe.Pointer(unsafe.SliceData(b))) }

// Column is one component of a block: rows of fixed width, one after the other.
type Column struct {
	DType DataType
	Dims  []int64
	Width int
	data  []byte
}

// Block is memory for elements of one shape, stored by component.
type Block struct {
	Columns []Column
	Cap     int
	c       []C.pecan_column
}

// NewBlock allocates a block for up to rows elements with the shape of the given one.
func NewBlock(like []*Tensor, rows int) (*Block, error) {
	b := &Block{Columns: make([]Column, len(like)), Cap: rows, c: make([]C.pecan_column, len(like))}
	for i, t := range like {
		if t.dtype == String || len(t.dims) > MaxShapeRank {
			b.Free()
			return nil, errors.New("make block: only fixed-width components of a moderate rank can be blocks")
		}
		column := &b.Columns[i]
		*column = Column{DType: t.dtype, Dims: t.dims, Width: len(t.data), data: alloc(rows * len(t.data))}
		b.c[i] = C.pecan_column{
			shape: Shape{Dims: t.dims}.c(),
			width: C.size_t(column.Width),
			data:  (*C.char)(unsafe.Pointer(unsafe.SliceData(column.data))),
		}
	}
	return b, nil
}

// Clone allocates another block of the same shape.
func (b *Block) Clone() *Block {
	other := &Block{Columns: append([]Column(nil), b.Columns...), Cap: b.Cap, c: append([]C.pecan_column(nil), b.c...)}
	for i := range other.Columns {
		other.Columns[i].data = alloc(b.Cap * b.Columns[i].Width)
		other.c[i].data = (*C.char)(unsafe.Pointer(unsafe.SliceData(other.Columns[i].data)))
	}
	return other
}

// Rows returns the bytes of rows [from, to) of a component.
func (b *Block) Rows(component, from, to int) []byte {
	column := &b.Columns[component]
	return column.data[from*column.Width : to*column.Width]
}

// Free releases the memory.
func (b *Block) Free() {
	for i := range b.Columns {
		if b.Columns[i].data != nil {
			free(b.Columns[i].data)
			b.Columns[i].data = nil
		}
	}
}

// FillBlock fetches elements into the block from its start. It returns the number of elements written, and
// one more element if that has another shape. All of them are valid together with an error, which belongs to
// the element after them.
func (it *Iterator) FillBlock(b *Block, pace Pace) (count int, mismatch []*Tensor, err error) {
	pace.MaxElements = min(pace.MaxElements, b.Cap)
	return it.fill(func(p *C.pecan_pace, hasMismatch *C.int32_t) C.int64_t {
		return C.pecan_fill_columns(it.c, &b.c[0], p, it.element, hasMismatch, it.status.c)
	}, pace)
}

// Pack is a payload and its table in the layout of docs/formats/frame.md, for small elements of any shape.
type Pack struct {
	c       C.pecan_pack
	payload []byte
	table   []byte
}

// NewPack allocates a pack.
func NewPack(payloadCap, tableCap int) *Pack {
	p := &Pack{payload: alloc(payloadCap), table: alloc(tableCap)}
	p.c = C.pecan_pack{
		payload: (*C.char)(unsafe.Pointer(unsafe.SliceData(p.payload))), payload_cap: C.size_t(payloadCap),
		table: (*C.char)(unsafe.Pointer(unsafe.SliceData(p.table))), table_cap: C.size_t(tableCap),
	}
	return p
}

// Payload returns what was packed so far.
func (p *Pack) Payload() []byte { return p.payload[:p.c.payload_len] }

// Table returns the rows of the element table so far.
func (p *Pack) Table() []byte { return p.table[:p.c.table_len] }

// Memory returns the whole payload and table memory. A running fill has written the elements of its progress.
func (p *Pack) Memory() (payload, table []byte) { return p.payload, p.table }

// Reset empties the pack.
func (p *Pack) Reset() { p.c.payload_len, p.c.table_len = 0, 0 }

// Free releases the memory.
func (p *Pack) Free() {
	free(p.payload)
	free(p.table)
}

// Put copies one element into the pack. It returns false if the element does not fit.
func (p *Pack) Put(element []*Tensor) bool {
	described := make([]C.pecan_tensor, len(element))
	for i, t := range element {
		C.pecan_describe(t.c, &described[i])
	}
	return bool(C.pecan_put_pack(&p.c, &described[0], C.int(len(described))))
}

// FillPack is FillBlock for elements with strings or different shapes. Elements of at most maxElement bytes
// whose components have the given shapes go into the pack. Any other element ends the fill and is returned
// separately.
func (it *Iterator) FillPack(p *Pack, shapes []Shape, maxElement int, pace Pace) (count int, mismatch []*Tensor, err error) {
	if len(shapes) != it.components {
		return 0, nil, errors.New("fill pack: another number of shapes than of components")
	}
	list := make([]C.pecan_shape, len(shapes))
	for i := range shapes {
		list[i] = shapes[i].c()
	}
	return it.fill(func(pace *C.pecan_pace, hasMismatch *C.int32_t) C.int64_t {
		return C.pecan_fill_pack(it.c, &list[0], &p.c, C.size_t(maxElement), pace, it.element, hasMismatch, it.status.c)
	}, pace)
}

func (it *Iterator) fill(run func(*C.pecan_pace, *C.int32_t) C.int64_t, pace Pace) (count int, mismatch []*Tensor, err error) {
	p := pace.c()
	// The progress is reset to 0, so that a reader that looks before the next fill begins sees no elements
	// of this one.
	defer it.progress.Store(0)
	err = it.fetch(func() C.TF_Code {
		var hasMismatch C.int32_t
		count = int(run(&p, &hasMismatch))
		it.given.Add(uint64(count))
		if hasMismatch != 0 {
			mismatch = it.adoptAll()
			it.given.Add(1)
		}
		return C.TF_GetCode(it.status.c)
	})
	return count, mismatch, err
}
