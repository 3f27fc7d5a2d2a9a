package payload

import (
	"fmt"
	"hash/crc32"
	"io"
	"unsafe"

	"github.com/pecan-ml/pecan/native/tf"
	"github.com/pecan-ml/pecan/proto/frame"
	"github.com/pecan-ml/pecan/proto/reason"
)

// maxRemainder bounds one batch that a peer claims to have kept back.
const maxRemainder = 8 << 30

// ReadElements reads the payload of a DATA frame, neither shared nor compressed, into tensors.
func ReadElements(in io.Reader, h frame.Header, meta []byte) ([][]*tf.Tensor, error) {
	var table frame.Table
	if err := frame.ParseTable(h, meta, &table); err != nil {
		return nil, err
	}
	if h.Flags&(frame.Shared|frame.Snappy|frame.Columns) != 0 || h.PayloadLen > maxRemainder || table.Size > h.PayloadLen {
		return nil, reason.New(reason.FrameCorrupt, "read remainder: flags %#x with a payload of %d bytes", uint16(h.Flags), h.PayloadLen)
	}
	payload := make([]byte, h.PayloadLen)
	if _, err := io.ReadFull(in, payload); err != nil {
		return nil, err
	}
	if h.Flags&frame.Checksum != 0 && crc32.Checksum(payload, frame.Castagnoli) != h.PayloadCRC {
		return nil, reason.New(reason.FrameCorrupt, "read remainder: payload checksum differs")
	}
	var elements [][]*tf.Tensor
	for at := 0; table.Components > 0 && at < len(table.Rows); at += table.Components {
		element := make([]*tf.Tensor, 0, table.Components)
		for i := range table.Rows[at : at+table.Components] {
			tensor, err := Tensor(&table.Rows[at+i], payload)
			if err != nil {
				tf.ReleaseAll(element)
				return elements, err
			}
			element = append(element, tensor)
		}
		elements = append(elements, element)
	}
	return elements, nil
}

// Tensor makes the tensor of one row of an element table. It copies the row.
func Tensor(row *frame.Tensor, payload []byte) (*tf.Tensor, error) {
	bytes := payload[row.Offset : row.Offset+row.Bytes]
	if row.DType != frame.DTString {
		return tf.NewTensor(tf.DataType(row.DType), dimsOf(row), bytes)
	}
	if n, ok := frame.Elements(row.Dims); !ok || n*8 > row.Bytes {
		return nil, fmt.Errorf("read remainder: a string tensor of %d values in %d bytes", n, row.Bytes)
	}
	return tf.NewStrings(dimsOf(row), bytes)
}

// smallTensor is the size below which a copy is cheaper than a reference.
const smallTensor = 4 << 10

// Memory is memory that counts its holders.
type Memory interface {
	Retain()
	Release()
}

// Shared makes the tensor of one row of a payload that lies in memory outside of Go's heap. The tensor shares the memory, unless the
// row is small.
func Shared(memory Memory, row *frame.Tensor, payload []byte) (*tf.Tensor, error) {
	bytes := payload[row.Offset : row.Offset+row.Bytes]
	if row.DType == frame.DTString || len(bytes) < smallTensor || uintptr(unsafe.Pointer(unsafe.SliceData(bytes)))%frame.Align != 0 {
		return Tensor(row, payload)
	}
	memory.Retain()
	return tf.Share(tf.DataType(row.DType), dimsOf(row), bytes, memory.Release)
}

func dimsOf(row *frame.Tensor) []int64 {
	dims := make([]int64, len(row.Dims))
	for i, dim := range row.Dims {
		dims[i] = int64(dim)
	}
	return dims
}
