package element

import (
	"github.com/pecan-ml/pecan/native/buffer"
	"github.com/pecan-ml/pecan/proto/frame"
)

// bufferPool provides buffers for payloads.
type bufferPool interface {
	Get(n int) (*buffer.Buffer, error)
}

// SameShape reports whether the entry's next element has the shape of elements that were dequeued as a block.
func (en *Entry) SameShape(elements *Elements) bool {
	if en.Err != nil || en.Table.Components != len(elements.Tensors) {
		return false
	}
	row := 0
	if !en.Columnar {
		row = en.At * en.Table.Components
	}
	for c := range elements.Tensors {
		tensor, have := &en.Table.Rows[row+c], &elements.Tensors[c]
		if tensor.DType != have.DType || len(tensor.Dims) != len(have.Dims)-1 {
			return false
		}
		for i, dim := range tensor.Dims {
			if have.Dims[i+1] != int64(dim) {
				return false
			}
		}
	}
	return true
}

// Size returns how many bytes the values of elements take.
func Size(elements *Elements) int {
	n := 0
	for i := range elements.Tensors {
		n += len(elements.Tensors[i].Data) + len(elements.Tensors[i].Lengths)
	}
	return n
}

// Gather copies elements of one shape into one buffer, and releases the originals.
func Gather(pool bufferPool, pieces []*Elements) (*Elements, error) {
	defer func() {
		for _, piece := range pieces {
			piece.Release()
		}
	}()
	first := pieces[0]
	total, count := uint64(0), 0
	for _, piece := range pieces {
		count += piece.Count
	}
	for c := range first.Tensors {
		for _, piece := range pieces {
			total += uint64(len(piece.Tensors[c].Data))
		}
		total = frame.AlignUp(total)
		for _, piece := range pieces {
			total += uint64(len(piece.Tensors[c].Lengths))
		}
		total = frame.AlignUp(total)
	}
	buf, err := pool.Get(int(total))
	if err != nil {
		return nil, err
	}
	elements := &Elements{Epoch: first.Epoch, Stream: first.Stream, Index: first.Index, Count: count, Tensors: make([]Tensor, len(first.Tensors)), buffer: buf, Spans: first.Spans}
	at := 0
	join := func(part func(*Elements) []byte) []byte {
		start := at
		for _, piece := range pieces {
			at += copy(buf.Bytes()[at:], part(piece))
		}
		joined := buf.Bytes()[start:at:at]
		at = int(frame.AlignUp(uint64(at)))
		return joined
	}
	for c := range first.Tensors {
		tensor := &elements.Tensors[c]
		tensor.DType = first.Tensors[c].DType
		tensor.Dims = append([]int64{int64(count)}, first.Tensors[c].Dims[1:]...)
		tensor.Data = join(func(r *Elements) []byte { return r.Tensors[c].Data })
		if tensor.DType == frame.DTString {
			tensor.Lengths = join(func(r *Elements) []byte { return r.Tensors[c].Lengths })
		}
	}
	return elements, nil
}
