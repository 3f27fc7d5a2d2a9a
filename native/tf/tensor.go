package tf

// #include <stdlib.h>
// #include "tensorflow.h"
import "C"

import (
	"encoding/binary"
	"errors"
	"runtime/cgo"
	"unsafe"
)

// DataType is a tensorflow.DataType number.
type DataType uint32

// Dtypes that this package uses by name.
const (
	Float    DataType = 1
	Int32    DataType = 3
	UInt8    DataType = 4
	String   DataType = 7
	Int64    DataType = 9
	Resource DataType = 20
	Variant  DataType = 21
)

// Tensor holds one tensor of TensorFlow. Its memory is valid until Release.
type Tensor struct {
	c     *C.TF_Tensor
	dtype DataType
	dims  []int64
	data  []byte
}

// LiveTensors returns the number of tensors that this process holds now.
func LiveTensors() int64 { return int64(C.pecan_live_tensors()) }

func adopt(t *C.pecan_tensor) *Tensor {
	tensor := &Tensor{c: t.tensor, dtype: DataType(t.dtype)}
	if rank := int(t.rank); rank > 0 {
		tensor.dims = make([]int64, rank)
		for i := range tensor.dims {
			if i < C.PECAN_INLINE_DIMS {
				tensor.dims[i] = int64(t.dims[i])
			} else {
				tensor.dims[i] = int64(C.TF_Dim(t.tensor, C.int(i)))
			}
		}
	}
	if t.data != nil {
		tensor.data = unsafe.Slice((*byte)(t.data), int(t.bytes))
	}
	return tensor
}

// NewTensor copies data into a new tensor of a fixed-width dtype.
func NewTensor(dtype DataType, dims []int64, data []byte) (*Tensor, error) {
	c := C.pecan_new_tensor(C.int32_t(dtype), dimsPointer(dims), C.int(len(dims)), C.size_t(len(data)))
	if c == nil {
		return nil, errors.New("make tensor: there is no memory")
	}
	var described C.pecan_tensor
	C.pecan_describe(c, &described)
	tensor := adopt(&described)
	copy(tensor.data, data)
	return tensor, nil
}

// Share makes a tensor of a fixed-width dtype from data that it does not copy. data lies outside of Go's heap and is aligned to 64
// bytes. Share calls release once, when TensorFlow needs data no more, also if it returns an error. TensorFlow never writes into data.
func Share(dtype DataType, dims []int64, data []byte, release func()) (*Tensor, error) {
	c := C.pecan_share_tensor(C.int32_t(dtype), dimsPointer(dims), C.int(len(dims)), unsafe.Pointer(unsafe.SliceData(data)),
		C.size_t(len(data)), C.uintptr_t(cgo.NewHandle(release)))
	if c == nil {
		return nil, errors.New("make tensor: the data do not have its shape")
	}
	var described C.pecan_tensor
	C.pecan_describe(c, &described)
	return adopt(&described), nil
}

//export pecanReleaseShared
func pecanReleaseShared(owner C.uintptr_t) {
	handle := cgo.Handle(owner)
	release := handle.Value().(func())
	handle.Delete()
	release()
}

// NewStrings creates a string tensor from its wire form: lengths, then bytes.
func NewStrings(dims []int64, payload []byte) (*Tensor, error) {
	n := int64(1)
	for _, dim := range dims {
		n *= dim
	}
	c := C.pecan_new_strings(dimsPointer(dims), C.int(len(dims)), C.int64_t(n),
		(*C.char)(unsafe.Pointer(unsafe.SliceData(payload))), C.size_t(len(payload)))
	if c == nil {
		return nil, errors.New("make string tensor: the payload does not hold its strings, or there is no memory")
	}
	var described C.pecan_tensor
	C.pecan_describe(c, &described)
	return adopt(&described), nil
}

func dimsPointer(dims []int64) *C.int64_t {
	return (*C.int64_t)(unsafe.Pointer(unsafe.SliceData(dims)))
}

// DType returns the tensor's dtype.
func (t *Tensor) DType() DataType { return t.dtype }

// Dims returns the sizes of its dimensions; nil for a scalar.
func (t *Tensor) Dims() []int64 { return t.dims }

// Data returns the memory of a fixed-width tensor without a copy.
func (t *Tensor) Data() []byte { return t.data }

// Elements returns the number of values.
func (t *Tensor) Elements() int64 {
	n := int64(1)
	for _, dim := range t.dims {
		n *= dim
	}
	return n
}

// WireSize returns the number of bytes that the tensor takes in a payload.
func (t *Tensor) WireSize() int64 {
	if t.dtype == String {
		return int64(C.pecan_strings_size(t.c))
	}
	return int64(len(t.data))
}

// PackStrings writes a string tensor's lengths and bytes to dst, which has WireSize bytes.
func (t *Tensor) PackStrings(dst []byte) {
	C.pecan_strings_pack(t.c, (*C.char)(unsafe.Pointer(unsafe.SliceData(dst))))
}

// StringSegments returns a string tensor in payload form without copying the strings: first the lengths, then
// one slice per string of TensorFlow's own memory.
func (t *Tensor) StringSegments() [][]byte {
	n := int(t.Elements())
	lengths := make([]byte, 8*n)
	segments := make([][]byte, 1, n+1)
	segments[0] = lengths
	for i := range n {
		var size C.size_t
		data := C.pecan_string_at(t.c, C.int64_t(i), &size)
		binary.LittleEndian.PutUint64(lengths[8*i:], uint64(size))
		if size > 0 {
			segments = append(segments, unsafe.Slice((*byte)(unsafe.Pointer(data)), int(size)))
		}
	}
	return segments
}

// Release returns the tensor to TensorFlow. Call it once.
func (t *Tensor) Release() {
	C.pecan_delete_tensor(t.c)
	t.c, t.data = nil, nil
}

// ReleaseAll releases every tensor of an element.
func ReleaseAll(tensors []*Tensor) {
	for _, t := range tensors {
		t.Release()
	}
}
