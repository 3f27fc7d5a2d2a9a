package op

// #cgo pkg-config: tensorflow
// #include "ops.h"
import "C"

import (
	"fmt"
	"runtime/cgo"
	"runtime/debug"
	"unsafe"

	"google.golang.org/grpc/codes"

	"github.com/pecan-ml/pecan/native/buffer"
	"github.com/pecan-ml/pecan/native/client"
	"github.com/pecan-ml/pecan/proto/frame"
	"github.com/pecan-ml/pecan/proto/reason"
)

// Below this many bytes a copy is cheaper than a reference that comes back through a deallocator.
const smallTensor = 4 << 10

//export pecanJob
func pecanJob(context *C.TF_OpKernelContext) {
	defer guard(context)
	handle, ok := input(context, 0)
	if !ok {
		return
	}
	if _, err := lookup[*Job](handle); err != nil {
		fail(context, err)
		return
	}
	C.pecan_output_handle(context, 0, C.uintptr_t(handle))
}

//export pecanOpen
func pecanOpen(context *C.TF_OpKernelContext) {
	defer guard(context)
	handle, ok := input(context, 0)
	if !ok {
		return
	}
	job, err := lookup[*Job](handle)
	if err != nil {
		fail(context, err)
		return
	}
	it, err := newIteration(job)
	if err != nil {
		fail(context, err)
		return
	}
	C.pecan_output_handle(context, 0, C.uintptr_t(cgo.NewHandle(it)))
}

//export pecanWait
func pecanWait(context *C.TF_OpKernelContext) {
	defer guard(context)
	if it, ok := token(context); ok {
		it.mu.Lock()
		ready := it.await()
		it.mu.Unlock()
		C.pecan_output_bool(context, 0, C.bool(ready))
	}
}

//export pecanNext
func pecanNext(context *C.TF_OpKernelContext, kernel *C.pecan_kernel) {
	defer guard(context)
	it, ok := token(context)
	if !ok {
		return
	}
	it.mu.Lock()
	defer it.mu.Unlock()
	if !it.await() {
		fail(context, reason.New(reason.Internal, "the next element was asked for before it was there"))
		return
	}
	rows, status, err := it.take()
	if status == client.Ready {
		err = it.job.check(rows, 0)
	}
	if err != nil || status == client.End {
		rows.Release()
		finish(context, status, err)
		return
	}
	give(context, kernel, rows)
}

//export pecanNextBlock
func pecanNextBlock(context *C.TF_OpKernelContext, kernel *C.pecan_kernel) {
	defer guard(context)
	it, ok := token(context)
	if !ok {
		return
	}
	it.mu.Lock()
	defer it.mu.Unlock()
	if !it.over {
		it.pending, it.status, it.err = it.inner.NextBlock(max(1, it.job.blockRows), MaxWait)
		if !it.settle() {
			noRows(context, kernel, it.job)
			return
		}
	}
	rows, status, err := it.take()
	if status == client.Ready {
		err = it.job.check(rows, 1)
	}
	if err != nil || status == client.End {
		rows.Release()
		finish(context, status, err)
		return
	}
	give(context, kernel, rows)
}

//export pecanRelease
func pecanRelease(owner C.uintptr_t) {
	handle := cgo.Handle(owner)
	block := handle.Value().(*buffer.Block)
	handle.Delete()
	block.Release()
}

//export pecanDrop
func pecanDrop(handle C.uintptr_t) { drop(uintptr(handle)) }

// give hands the tensors over and gives the rows back.
func give(context *C.TF_OpKernelContext, kernel *C.pecan_kernel, rows *client.Rows) {
	defer rows.Release()
	if int(kernel.outputs) != len(rows.Tensors) {
		fail(context, reason.New(reason.ElementSpec, "an element of %d components for an operation with %d outputs", len(rows.Tensors), int(kernel.outputs)))
		return
	}
	types := unsafe.Slice((*int32)(kernel.dtypes), int(kernel.outputs))
	for i := range rows.Tensors {
		tensor := &rows.Tensors[i]
		if types[i] != int32(tensor.DType) {
			fail(context, reason.New(reason.ElementSpec, "component %d has dtype %d where the graph expects %d", i, tensor.DType, types[i]))
			return
		}
		if !giveTensor(context, C.int(i), tensor, rows.Block()) {
			return
		}
	}
}

func giveTensor(context *C.TF_OpKernelContext, index C.int, tensor *client.Tensor, block *buffer.Block) bool {
	rank := C.int(len(tensor.Dims))
	dims := (*C.int64_t)(unsafe.SliceData(tensor.Dims))
	data, bytes := unsafe.Pointer(unsafe.SliceData(tensor.Data)), C.size_t(len(tensor.Data))
	if tensor.DType == frame.DTString {
		lengths := unsafe.Pointer(unsafe.SliceData(tensor.Lengths))
		return bool(C.pecan_output_strings(context, index, dims, rank, C.int64_t(tensor.Strings()), lengths, data, bytes))
	}
	var owner C.uintptr_t
	if len(tensor.Data) > smallTensor && uintptr(data)%buffer.Align == 0 {
		owner = C.uintptr_t(cgo.NewHandle(block.Retain()))
	}
	return bool(C.pecan_output(context, index, C.int32_t(tensor.DType), dims, rank, data, bytes, owner))
}

// noRows is the answer "not yet": tensors without rows, which the graph's unbatch passes over.
func noRows(context *C.TF_OpKernelContext, kernel *C.pecan_kernel, job *Job) {
	for i, c := range job.components {
		dims := append([]int64{0}, c.GetDims()...)
		if i >= int(kernel.outputs) ||
			!bool(C.pecan_output(context, C.int(i), C.int32_t(c.GetDtype()), (*C.int64_t)(&dims[0]), C.int(len(dims)), nil, 0, 0)) {
			return
		}
	}
}

func token(context *C.TF_OpKernelContext) (*iteration, bool) {
	handle, ok := input(context, 0)
	if !ok {
		return nil, false
	}
	it, err := lookup[*iteration](handle)
	if err != nil {
		fail(context, err)
		return nil, false
	}
	return it, true
}

func input(context *C.TF_OpKernelContext, index int) (int64, bool) {
	var value C.int64_t
	ok := bool(C.pecan_input(context, C.int(index), &value))
	return int64(value), ok
}

func finish(context *C.TF_OpKernelContext, status client.Status, err error) {
	if status == client.End {
		failWith(context, codes.OutOfRange, "end of the iteration")
		return
	}
	fail(context, err)
}

// fail turns an error into a status of TensorFlow's, whose codes are gRPC's. OUT_OF_RANGE is kept for the end: an
// error of an element with that code would end the epoch without a word.
func fail(context *C.TF_OpKernelContext, err error) {
	own := reason.From(err)
	code := own.Code()
	if code == codes.OutOfRange || code == codes.OK {
		code = codes.InvalidArgument
	}
	failWith(context, code, fmt.Sprintf("%s [pecan:%s]", own.Message, own.Reason))
}

func failWith(context *C.TF_OpKernelContext, code codes.Code, message string) {
	C.pecan_fail(context, C.int(code), (*C.char)(unsafe.Pointer(unsafe.StringData(message))), C.size_t(len(message)))
}

// guard turns a panic into an error: it must not reach the C frames below.
func guard(context *C.TF_OpKernelContext) {
	if cause := recover(); cause != nil {
		fail(context, reason.New(reason.Internal, "defect in pecan's operation: %v\n%s", cause, debug.Stack()))
	}
}

// WatchInterrupts makes Ctrl-C end a wait for elements. Python's own handler, which must be installed already, still
// runs.
func WatchInterrupts() { C.pecan_watch_interrupts() }

// Live counts tensors and handles that TensorFlow holds now, for leak checks.
func Live() int64 { return int64(C.pecan_live()) }
