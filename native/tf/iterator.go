package tf

// #include <stdlib.h>
// #include "tensorflow.h"
import "C"

import (
	"errors"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"
)

// ErrCancelled is the result of every call on a cancelled iterator. After a cancel not even the end of the
// sequence is trusted, because TensorFlow may report it without having reached it.
var ErrCancelled = errors.New("the iterator was cancelled")

// Iterator runs one dataset graph.
type Iterator struct {
	c          *C.pecan_iterator
	components int
	// C reads hurry and writes progress during a fill, so both are pinned. Go may access them at any time.
	hurry     *atomic.Int32
	progress  *atomic.Int64
	pins      runtime.Pinner
	cancelled atomic.Bool
	// metering lets one thread at a time read the meters.
	metering sync.Mutex
	// calls is held for reading by every call into TensorFlow, and for writing by Close.
	calls  sync.RWMutex
	closed bool
	// fetching lets one thread at a time fetch elements. It holds the memory for one element and its status.
	// Both belong to C, so that a fetch is one call into C without pointers to check.
	fetching sync.Mutex
	element  *C.pecan_tensor
	status   status
	// loan is what the iterator is lent in; nil if it is not. lent is what came of it, which fetching protects.
	loan atomic.Pointer[Loan]
	lent lent
	// given and failed count the elements of the current stream: those that were returned or skipped, and the errors.
	given, failed atomic.Uint64
	// streams supplies the streams of a pooled iterator under the handle source; nil for other iterators.
	streams *streams
	source  int64
}

// NewIterator builds the dataset of a serialised GraphDef. Its elements have components of the given dtypes.
func (c *Context) NewIterator(graph []byte, types []DataType) (*Iterator, error) {
	if len(graph) == 0 || len(types) == 0 {
		return nil, errors.New("make iterator: an empty graph or no components")
	}
	list := make([]C.int32_t, len(types))
	for i, t := range types {
		list[i] = C.int32_t(t)
	}
	s := newStatus()
	defer s.free()
	it := C.pecan_new_iterator(c.c, unsafe.Pointer(&graph[0]), C.size_t(len(graph)), &list[0], C.int(len(list)), s.c)
	if err := s.err(); err != nil {
		return nil, err
	}
	out := &Iterator{
		c: it, components: len(types), hurry: new(atomic.Int32), progress: new(atomic.Int64),
		element: (*C.pecan_tensor)(C.calloc(C.size_t(len(types)), C.sizeof_pecan_tensor)), status: newStatus(),
	}
	out.pins.Pin(out.hurry)
	out.pins.Pin(out.progress)
	C.pecan_share(it, (*C.int32_t)(unsafe.Pointer(out.hurry)), (*C.int64_t)(unsafe.Pointer(out.progress)))
	return out, nil
}

// Components returns the number of tensors in an element.
func (it *Iterator) Components() int { return it.components }

// Next returns one element, io.EOF at the end, ErrCancelled after a cancel, and an *Error for a failed
// element. After an *Error the iterator continues with the next element.
func (it *Iterator) Next() ([]*Tensor, error) {
	var element []*Tensor
	err := it.fetch(func() C.TF_Code {
		code := C.pecan_next(it.c, it.element, it.status.c)
		if code == C.TF_OK {
			element = it.adoptAll()
			it.given.Add(1)
		}
		return code
	})
	return element, err
}

// adoptAll takes over the element that was fetched.
func (it *Iterator) adoptAll() []*Tensor { return adoptAll(unsafe.Slice(it.element, it.components)) }

// adoptAll takes over the tensors of an element.
func adoptAll(fetched []C.pecan_tensor) []*Tensor {
	tensors := make([]*Tensor, len(fetched))
	for i := range tensors {
		tensors[i] = adopt(&fetched[i])
	}
	return tensors
}

// Skip computes and drops up to n elements, and returns how many.
func (it *Iterator) Skip(n int64) (int64, error) {
	var done C.int64_t
	err := it.fetch(func() C.TF_Code { return C.pecan_skip(it.c, C.int64_t(n), &done, it.status.c) })
	it.given.Add(uint64(done))
	return int64(done), err
}

// fetch runs f unless the iterator is closed, and returns the meaning of the status that f leaves in
// it.status.
func (it *Iterator) fetch(f func() C.TF_Code) error {
	it.fetching.Lock()
	defer it.fetching.Unlock()
	it.calls.RLock()
	defer it.calls.RUnlock()
	if it.closed || it.cancelled.Load() {
		return ErrCancelled
	}
	return it.result(f())
}

// result returns the meaning of a code, and of the status that came with it.
func (it *Iterator) result(code C.TF_Code) error {
	switch {
	case code == C.TF_OK:
		return nil
	case it.cancelled.Load():
		return ErrCancelled
	case code == CodeOutOfRange, it.streams != nil && it.streams.over.Load():
		return io.EOF
	}
	it.failed.Add(1)
	return it.status.err()
}

// Given returns how many elements of the current stream the iterator returned or skipped, and how many failed.
func (it *Iterator) Given() (elements, failed uint64) { return it.given.Load(), it.failed.Load() }

// Hurry tells fills whether a reader waits. They return early if so.
func (it *Iterator) Hurry(on bool) {
	if on {
		it.hurry.Store(1)
	} else {
		it.hurry.Store(0)
	}
}

// CanKeepToThread reports whether this version of TensorFlow has KeepToThread.
func CanKeepToThread() bool { return bool(C.pecan_one_thread(nil)) }

// KeepToThread makes ops that run on the thread of a fetch use no other threads. tf.data limits ops on its own threads in
// the same way, and some ops, such as BiasAddGrad, return other bits on several threads. Call it before the first fetch.
func (it *Iterator) KeepToThread() { C.pecan_one_thread(it.c) }

// Progress returns how many elements the running fill has written. These elements may be read before the fill returns.
func (it *Iterator) Progress() int { return int(it.progress.Load()) }

// Model returns the serialised ModelProto in which tf.data records the times of each node of the running
// iterator. It also works on a cancelled iterator.
func (it *Iterator) Model() ([]byte, error) {
	return it.readBuffer("read the iterator's model", func(s status) *C.TF_Buffer { return C.pecan_model(it.c, s.c) })
}

// Metered returns the serialised Summary of the iterator's meters: BytesProducedStatsDataset nodes that count
// for the StatsAggregatorHandle with that name. Every call of an iterator has the same name. Close frees its resource.
func (it *Iterator) Metered(name string) ([]byte, error) {
	cName := C.CString(name)
	defer C.free(unsafe.Pointer(cName))
	it.metering.Lock()
	defer it.metering.Unlock()
	return it.readBuffer("read the iterator's meters", func(s status) *C.TF_Buffer { return C.pecan_meters(it.c, cName, s.c) })
}

func (it *Iterator) readBuffer(what string, read func(status) *C.TF_Buffer) ([]byte, error) {
	s := newStatus()
	defer s.free()
	it.calls.RLock()
	defer it.calls.RUnlock()
	if it.closed {
		return nil, ErrCancelled
	}
	buffer := read(s)
	if buffer == nil {
		return nil, wrap(what, s.err())
	}
	defer C.TF_DeleteBuffer(buffer)
	return C.GoBytes(unsafe.Pointer(buffer.data), C.int(buffer.length)), nil
}

// Cancel ends running calls, and all later ones, with ErrCancelled.
func (it *Iterator) Cancel() {
	it.calls.RLock()
	defer it.calls.RUnlock()
	if !it.closed && !it.cancelled.Swap(true) {
		C.pecan_cancel_iterator(it.c)
	}
}

// Close cancels, waits for running calls and frees the iterator. It waits as long as an operation of the
// graph does, forever with a read from a dead mount.
func (it *Iterator) Close() {
	it.Cancel()
	elements, _, _ := it.Reclaim()
	for _, element := range elements {
		ReleaseAll(element)
	}
	it.calls.Lock()
	defer it.calls.Unlock()
	if !it.closed {
		it.closed = true
		C.pecan_delete_iterator(it.c)
		C.free(unsafe.Pointer(it.element))
		it.status.free()
		if it.streams != nil {
			RemoveSource(it.source)
			it.streams.drop()
		}
		it.c = nil
		it.pins.Unpin()
	}
}
