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

// ErrCancelled is what every call on a cancelled iterator gives: after a cancel not even the end of the sequence is
// believed, because TensorFlow may report it without having come there.
var ErrCancelled = errors.New("the iterator was cancelled")

// Iterator runs one dataset graph.
type Iterator struct {
	c          *C.pecan_iterator
	components int
	// hurry is read and progress written by C while it fills, so they are pinned; Go may touch them at any time.
	hurry     *atomic.Int32
	progress  *atomic.Int64
	pins      runtime.Pinner
	cancelled atomic.Bool
	// meters is the name under which the graph counts, once it was asked for.
	meters atomic.Pointer[string]
	// calls is held for reading by every call into TensorFlow, for writing by Close.
	calls  sync.RWMutex
	closed bool
	// fetching lets one thread at a time fetch elements.
	fetching sync.Mutex
}

// NewIterator builds the dataset of a serialised GraphDef whose elements have components of the given dtypes.
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
	out := &Iterator{c: it, components: len(types), hurry: new(atomic.Int32), progress: new(atomic.Int64)}
	out.pins.Pin(out.hurry)
	out.pins.Pin(out.progress)
	C.pecan_share(it, (*C.int32_t)(unsafe.Pointer(out.hurry)), (*C.int64_t)(unsafe.Pointer(out.progress)))
	return out, nil
}

// Components is the number of tensors in an element.
func (it *Iterator) Components() int { return it.components }

// Next gives one element, io.EOF at the end, ErrCancelled after a cancel, and an *Error for an element that failed; the
// iterator stands behind that element then.
func (it *Iterator) Next() ([]*Tensor, error) {
	var few [8]C.pecan_tensor
	out := few[:]
	if it.components > len(few) {
		out = make([]C.pecan_tensor, it.components)
	}
	s := newStatus()
	defer s.free()
	err := it.fetch(s, func() { C.pecan_next(it.c, &out[0], s.c) })
	if err != nil {
		return nil, err
	}
	return it.adoptAll(out), nil
}

func (it *Iterator) adoptAll(out []C.pecan_tensor) []*Tensor {
	tensors := make([]*Tensor, it.components)
	for i := range tensors {
		tensors[i] = adopt(&out[i])
	}
	return tensors
}

// Skip runs and drops up to n elements and gives how many.
func (it *Iterator) Skip(n int64) (int64, error) {
	s := newStatus()
	defer s.free()
	var done int64
	err := it.fetch(s, func() { done = int64(C.pecan_skip(it.c, C.int64_t(n), s.c)) })
	return done, err
}

func (it *Iterator) fetch(s status, f func()) error {
	it.fetching.Lock()
	defer it.fetching.Unlock()
	return it.call(s, f)
}

// call runs f unless the iterator is closed, and tells what its status means.
func (it *Iterator) call(s status, f func()) error {
	it.calls.RLock()
	defer it.calls.RUnlock()
	if it.closed || it.cancelled.Load() {
		return ErrCancelled
	}
	f()
	err := s.err()
	if err == nil {
		return nil
	}
	if it.cancelled.Load() {
		return ErrCancelled
	}
	if own := (*Error)(nil); errors.As(err, &own) && own.Code == CodeOutOfRange {
		return io.EOF
	}
	return err
}

// Hurry tells the fills that a reader waits, so that they hand over early.
func (it *Iterator) Hurry(on bool) {
	if on {
		it.hurry.Store(1)
	} else {
		it.hurry.Store(0)
	}
}

// Progress is how many rows the fill that is under way has written: they may be read before it returns.
func (it *Iterator) Progress() int { return int(it.progress.Load()) }

// Model gives the serialised ModelProto in which tf.data keeps what each node of the running iterator did. A cancelled
// iterator still tells.
func (it *Iterator) Model() ([]byte, error) {
	return it.told("read the iterator's model", func(s status) *C.TF_Buffer { return C.pecan_model(it.c, s.c) })
}

// Metered gives the serialised Summary of what the iterator's meters counted: BytesProducedStatsDataset nodes that count
// for the StatsAggregatorHandle of that name. Its resource is freed by Close.
func (it *Iterator) Metered(name string) ([]byte, error) {
	cName := C.CString(name)
	defer C.free(unsafe.Pointer(cName))
	it.meters.Store(&name)
	return it.told("read the iterator's meters", func(s status) *C.TF_Buffer { return C.pecan_meters(it.c, cName, s.c) })
}

func (it *Iterator) told(what string, ask func(status) *C.TF_Buffer) ([]byte, error) {
	s := newStatus()
	defer s.free()
	it.calls.RLock()
	defer it.calls.RUnlock()
	if it.closed {
		return nil, ErrCancelled
	}
	buffer := ask(s)
	if buffer == nil {
		return nil, wrap(what, s.err())
	}
	defer C.TF_DeleteBuffer(buffer)
	return C.GoBytes(unsafe.Pointer(buffer.data), C.int(buffer.length)), nil
}

// Cancel ends calls that are under way, and all calls to come, with ErrCancelled.
func (it *Iterator) Cancel() {
	it.calls.RLock()
	defer it.calls.RUnlock()
	if !it.closed && !it.cancelled.Swap(true) {
		C.pecan_cancel_iterator(it.c)
	}
}

// Close cancels, waits for calls under way and frees the iterator. It waits for ever when an operation of the graph does
// (a read from a dead mount).
func (it *Iterator) Close() {
	it.Cancel()
	it.calls.Lock()
	defer it.calls.Unlock()
	if !it.closed {
		it.closed = true
		if name := it.meters.Load(); name != nil {
			cName, s := C.CString(*name), newStatus()
			C.pecan_drop_meters(it.c, cName, s.c)
			s.free()
			C.free(unsafe.Pointer(cName))
		}
		C.pecan_delete_iterator(it.c)
		it.c = nil
		it.pins.Unpin()
	}
}
