package op

// #cgo CFLAGS: -I${SRCDIR}/../../build/native/tensorflow/include
// #cgo LDFLAGS: -L${SRCDIR}/../../build/native/tensorflow -l:libtensorflow_cc.so.2 -l:libtensorflow_framework.so.2
// #include "ops.h"
import "C"

import (
	"fmt"
	"runtime/cgo"
	"runtime/debug"
	"sync"
	"time"
	"unsafe"

	"google.golang.org/grpc/codes"

	"github.com/pecan-ml/pecan/native/buffer"
	"github.com/pecan-ml/pecan/native/client"
	"github.com/pecan-ml/pecan/native/client/element"
	"github.com/pecan-ml/pecan/proto/frame"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// Below this many bytes a copy is cheaper than a reference that a deallocator has to release.
const smallTensor = 4 << 10

// maxWait limits one call of a kernel.
const maxWait = 100 * time.Millisecond

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

// iteration is the state behind an iteration tensor. TensorFlow calls the kernels of one iteration one after the other.
type iteration struct {
	job   *Job
	inner Iteration

	mu sync.Mutex
	// over is set if its end was returned, or no caller is left.
	over bool
	// broken is the error that ended it before its end.
	broken *reason.Error
	// unacknowledged is the newest Ctrl-C that the process's own handler had not seen at the end of the last
	// wait. reported is the newest one that was returned to the caller; 0 for none.
	unacknowledged, reported uint64
	// slices counts the waits in a row without a result. explainedAt is the slice at which the last explanation was
	// given.
	slices      int
	explainedAt int
}

func newIteration(job *Job) (*iteration, error) {
	if !job.retain() {
		return nil, reason.New(reason.Closed, "the dataset's job was closed already")
	}
	inner, err := job.config.Open()
	if err != nil {
		job.Release()
		return nil, err
	}
	return &iteration{job: job, inner: inner, reported: uint64(C.pecan_unacknowledged_interrupt())}, nil
}

func (it *iteration) close() {
	it.mu.Lock()
	it.over = true
	it.mu.Unlock()
	// No caller is left that could receive an error.
	_ = it.inner.Close()
	it.job.Release()
}

// element dequeues one element, and block dequeues elements. Both wait for at most maxWait.
func (it *iteration) element() (*element.Elements, client.Status, error) {
	if it.over || it.broken != nil {
		return it.nothingMore()
	}
	elements, status, err := it.inner.NextElement(maxWait)
	return it.settle(elements, status, err, 0)
}

func (it *iteration) block() (*element.Elements, client.Status, error) {
	if it.over || it.broken != nil {
		return it.nothingMore()
	}
	elements, status, err := it.inner.NextBlock(max(1, it.job.blockElements), maxWait)
	return it.settle(elements, status, err, 1)
}

// nothingMore is the result of every later call. After an error, that result is the error again and never the end.
// After an end, a repeat() would begin the next epoch, and a cache() would take the elements so far for the complete
// dataset. A training loop would believe that it has read everything. The error has code CANCELLED, because
// TensorFlow's ignore_errors() calls again forever after every other code.
func (it *iteration) nothingMore() (*element.Elements, client.Status, error) {
	if it.broken == nil {
		return nil, client.End, nil
	}
	return nil, client.Broken, reason.WithCode(it.broken.Reason, codes.Canceled, it.broken.Message)
}

// ended marks an error after which no element follows. resume.py searches errors for the words that ended appends. They
// say that this error counts for no element.
func ended(err error) *reason.Error {
	own := reason.From(err)
	return reason.WithCode(own.Reason, own.Code(), own.Message+"; the iterator ends with this error, before the end of its pass")
}

// settle examines the result of a wait: whether the element matches the spec, whether the user interrupted
// the wait, and whether the iteration continues.
func (it *iteration) settle(elements *element.Elements, status client.Status, err error, leading int) (*element.Elements, client.Status, error) {
	if status == client.Ready {
		it.slices, it.explainedAt = 0, 0
		if it.unacknowledged != 0 {
			// Between elements that arrive one by one the handler can run, unless one call requests all of
			// them.
			it.unacknowledged = uint64(C.pecan_unacknowledged_interrupt())
		}
		if err := it.job.check(elements, leading); err != nil {
			elements.Release()
			return nil, client.Failed, err
		}
		return elements, status, nil
	}
	switch {
	case status == client.NotYet:
		it.slices++
		it.explain()
		if it.interrupted() {
			return nil, client.Failed, reason.New(reason.Interrupted, "interrupted while waiting for the next element")
		}
		if err := it.sessionBroken(); err != nil {
			it.broken = ended(err)
			return nil, client.Broken, it.broken
		}
	case status == client.End:
		it.over = true
	case status == client.Broken:
		it.broken = ended(err)
		return nil, status, it.broken
	}
	return nil, status, err
}

// A wait is explained after warnAfter, or after computingAfter if workers are only computing, which is
// normal. It is explained again each time it has become twice as long.
const (
	warnAfter      = 2 * time.Second
	computingAfter = 10 * time.Second
)

func (it *iteration) explain() {
	if it.slices < max(int(warnAfter/maxWait), 2*it.explainedAt) || it.job.config.Warn == nil {
		return
	}
	why, computing := it.inner.Waiting()
	if why == "" || computing && it.slices < int(computingAfter/maxWait) {
		return
	}
	it.explainedAt = it.slices
	waited := (time.Duration(it.slices) * maxWait).Round(time.Second)
	it.job.config.Warn(fmt.Sprintf("no element for %v: %s", waited, why))
}

// interrupted reports whether there was a Ctrl-C that the process's own handler sees only after this wait.
// The handler runs between two steps of Python's main thread, so it has not run although a whole slice has
// passed. A Ctrl-C while the main thread was elsewhere does not concern this wait.
func (it *iteration) interrupted() bool {
	before := it.unacknowledged
	it.unacknowledged = uint64(C.pecan_unacknowledged_interrupt())
	if before == 0 || it.unacknowledged == 0 || it.unacknowledged == it.reported {
		return false
	}
	it.reported = it.unacknowledged
	return true
}

// sessionBroken returns why no more elements will arrive, or nil.
func (it *iteration) sessionBroken() error {
	if it.job.config.Broken == nil {
		return nil
	}
	return it.job.config.Broken()
}

//export pecanNext
func pecanNext(context *C.TF_OpKernelContext, kernel *C.pecan_kernel) {
	withIteration(context, func(it *iteration) {
		elements, status, err := it.element()
		switch status {
		case client.NotYet:
			if C.pecan_output_bool(context, 0, false) {
				nothing(context, kernel, 1, nil)
			}
		case client.Ready:
			if !C.pecan_output_bool(context, 0, true) {
				elements.Release()
				return
			}
			setOutputs(context, kernel, 1, elements)
		default:
			finish(context, status, err)
		}
	})
}

//export pecanNextBlock
func pecanNextBlock(context *C.TF_OpKernelContext, kernel *C.pecan_kernel) {
	withIteration(context, func(it *iteration) {
		elements, status, err := it.block()
		switch status {
		case client.NotYet:
			nothing(context, kernel, 0, it.job.config.Components)
		case client.Ready:
			setOutputs(context, kernel, 0, elements)
		default:
			finish(context, status, err)
		}
	})
}

//export pecanRelease
func pecanRelease(owner C.uintptr_t) {
	handle := cgo.Handle(owner)
	buf := handle.Value().(*buffer.Buffer)
	handle.Delete()
	buf.Release()
}

//export pecanDrop
func pecanDrop(handle C.uintptr_t) { drop(uintptr(handle)) }

// setOutputs sets the tensors as outputs, beginning with output first, and releases the elements.
func setOutputs(context *C.TF_OpKernelContext, kernel *C.pecan_kernel, first int, elements *element.Elements) {
	defer elements.Release()
	if int(kernel.outputs) != len(elements.Tensors) {
		fail(context, reason.New(reason.ElementSpec, "an element of %d components for an operation with %d outputs", len(elements.Tensors), int(kernel.outputs)))
		return
	}
	types := unsafe.Slice((*int32)(kernel.dtypes), int(kernel.outputs))
	for i := range elements.Tensors {
		tensor := &elements.Tensors[i]
		if types[i] != int32(tensor.DType) {
			fail(context, reason.New(reason.ElementSpec, "component %d is %s where the graph expects %s", i, frame.DTypeName(tensor.DType), frame.DTypeName(uint32(types[i]))))
			return
		}
		if !setTensor(context, C.int(first+i), tensor, elements.Buffer()) {
			return
		}
	}
}

func setTensor(context *C.TF_OpKernelContext, index C.int, tensor *element.Tensor, buf *buffer.Buffer) bool {
	rank := C.int(len(tensor.Dims))
	dims := (*C.int64_t)(unsafe.SliceData(tensor.Dims))
	data, bytes := unsafe.Pointer(unsafe.SliceData(tensor.Data)), C.size_t(len(tensor.Data))
	if tensor.DType == frame.DTString {
		lengths := unsafe.Pointer(unsafe.SliceData(tensor.Lengths))
		return bool(C.pecan_output_strings(context, index, dims, rank, C.int64_t(tensor.Strings()), lengths, data, bytes))
	}
	var owner C.uintptr_t
	if len(tensor.Data) > smallTensor && uintptr(data)%buffer.Align == 0 {
		owner = C.uintptr_t(cgo.NewHandle(buf.Retain()))
	}
	return bool(C.pecan_output(context, index, C.int32_t(tensor.DType), dims, rank, data, bytes, owner))
}

// nothing returns the result "not yet": tensors without values. A block has no elements then, so the graph's
// unbatch skips it. The graph's filter drops other tensors, whatever their shape.
func nothing(context *C.TF_OpKernelContext, kernel *C.pecan_kernel, first int, components []*pecanv1.ComponentSpec) {
	for i, dtype := range unsafe.Slice((*int32)(kernel.dtypes), int(kernel.outputs)) {
		dims := []int64{0}
		if components != nil {
			dims = append(dims, components[i].GetDims()...)
		}
		if !setTensor(context, C.int(first+i), &element.Tensor{DType: uint32(dtype), Dims: dims}, nil) {
			return
		}
	}
}

// withIteration locks the iteration whose handle is the kernel's first input, and calls f with it.
func withIteration(context *C.TF_OpKernelContext, f func(it *iteration)) {
	defer guard(context)
	handle, ok := input(context, 0)
	if !ok {
		return
	}
	it, err := lookup[*iteration](handle)
	if err != nil {
		fail(context, err)
		return
	}
	it.mu.Lock()
	defer it.mu.Unlock()
	f(it)
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

// fail turns an error into a TensorFlow status, whose codes are gRPC's. OUT_OF_RANGE is reserved for the end:
// an element's error with that code would silently end the epoch.
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

// guard turns a panic into an error, because a panic must not reach the C frames below.
func guard(context *C.TF_OpKernelContext) {
	if cause := recover(); cause != nil {
		fail(context, reason.New(reason.Internal, "defect in pecan's operation: %v\n%s", cause, debug.Stack()))
	}
}

// HandleInterrupts lets Ctrl-C end a wait for elements. The installed handler still runs. Call HandleInterrupts
// again after another handler was installed.
func HandleInterrupts() { C.pecan_handle_interrupts() }

// AcknowledgeInterrupts records that the process's own handler runs, and that it informs the interrupted callers.
func AcknowledgeInterrupts() { C.pecan_acknowledge_interrupts() }

// Live counts the tensors and handles that TensorFlow holds now, for leak checks.
func Live() int64 { return int64(C.pecan_live()) }
