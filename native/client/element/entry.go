package element

import (
	"encoding/binary"

	"github.com/pecan-ml/pecan/native/buffer"
	"github.com/pecan-ml/pecan/proto/frame"
)

// Entry is one accepted frame, or one failed element, in a stream's queue.
type Entry struct {
	// First is the index of element 0. At is the next element to dequeue.
	First    uint64
	Elements int
	At       int
	// Bytes is the entry's part of the memory budget. Arrived is its part of the channel's credit.
	Bytes   uint64
	Arrived uint64
	// Err is set for a failed element.
	Err error

	Buffer   *buffer.Buffer
	Table    *frame.Table
	Columnar bool
	Checked  bool
	// Strings holds, per component of a columnar frame, where the bytes of element At begin; nil without strings.
	Strings []uint64
}

// Index returns the index of the next element.
func (en *Entry) Index() uint64 { return en.First + uint64(en.At) }

func (en *Entry) Remaining() int { return en.Elements - en.At }

// Skip drops elements that were delivered before.
func (en *Entry) Skip(elements int) {
	if !en.Columnar || en.Strings == nil {
		en.At += elements
		return
	}
	var ignored Tensor
	for c := range en.Table.Rows {
		if en.Table.Rows[c].DType == frame.DTString {
			en.sliceStrings(c, elements, &ignored)
		}
	}
	en.At += elements
}

// Cut returns the next n elements of a frame without copying them. n is 1 unless the frame is columnar. With lead
// the tensors get a leading dimension of n.
func (en *Entry) Cut(n int, lead bool) *Elements {
	components := en.Table.Components
	row := 0
	if !en.Columnar {
		row = en.At * components
	}
	rank := 0
	for c := range components {
		rank += len(en.Table.Rows[row+c].Dims) + 1
	}
	elements := &Elements{Index: en.Index(), Count: n, Tensors: make([]Tensor, components)}
	dims := make([]int64, 0, rank)
	data := en.Buffer.Bytes()
	for c := range components {
		source, tensor := &en.Table.Rows[row+c], &elements.Tensors[c]
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
		case en.Columnar:
			width := source.Bytes / uint64(en.Elements)
			from := source.Offset + uint64(en.At)*width
			tensor.Data = data[from : from+uint64(n)*width]
		default:
			tensor.Data = data[source.Offset : source.Offset+source.Bytes]
		}
	}
	en.At += n
	if en.Remaining() == 0 {
		elements.buffer, en.Buffer = en.Buffer, nil
	} else {
		elements.buffer = en.Buffer.Retain()
	}
	return elements
}

// sliceStrings finds the lengths and the bytes of n elements of a string component, and advances past them.
// Lengths were checked against the payload when the frame was accepted.
func (en *Entry) sliceStrings(row, n int, tensor *Tensor) {
	source := &en.Table.Rows[row]
	data := en.Buffer.Bytes()[source.Offset : source.Offset+source.Bytes]
	per, _ := frame.Elements(source.Dims)
	total, first, at := per, uint64(0), uint64(0)
	if en.Columnar {
		total, first, at = per*uint64(en.Elements), per*uint64(en.At), en.Strings[row]
	}
	tensor.Lengths = data[first*8 : (first+per*uint64(n))*8]
	size := uint64(0)
	for i := 0; i < len(tensor.Lengths); i += 8 {
		size += binary.LittleEndian.Uint64(tensor.Lengths[i:])
	}
	tensor.Data = data[total*8+at : total*8+at+size]
	if en.Columnar {
		en.Strings[row] = at + size
	}
}

// Release frees the memory of elements that were not dequeued.
func (en *Entry) Release() {
	en.Buffer.Release()
	en.Buffer = nil
}
