package tf

// #include "tensorflow.h"
import "C"

import (
	"errors"
	"unsafe"
)

// State is an iterator's state at one element: its buffers, positions and seeded shuffles. The iterator
// shares them until they are written. A State survives calls on the iterator, but not its Close.
type State struct {
	it     *Iterator
	handle *C.TFE_TensorHandle
}

// Save captures the state before the next element. It waits for elements that steps of the graph are
// computing. The state of a pooled iterator needs a stream that has begun: without one it would have no stream to continue.
func (it *Iterator) Save() (*State, error) {
	state := &State{it: it}
	if it.streams != nil && it.streams.next.Load() != nil {
		return nil, errors.New("save an iterator: its stream has no element yet")
	}
	err := it.fetch(func() C.TF_Code {
		state.handle = C.pecan_save(it.c, it.status.c)
		return C.TF_GetCode(it.status.c)
	})
	if err != nil {
		return nil, err
	}
	return state, nil
}

// Write passes the state's bytes to a function, which must not keep them. Elements may be fetched meanwhile.
func (s *State) Write(to func([]byte) error) error {
	status := newStatus()
	defer status.free()
	tensor, err := s.written(status)
	if err != nil {
		return err
	}
	defer C.TF_DeleteTensor(tensor)
	var length C.size_t
	data := C.pecan_string_at(tensor, 0, &length)
	return to(unsafe.Slice((*byte)(unsafe.Pointer(data)), int(length)))
}

func (s *State) written(status status) (*C.TF_Tensor, error) {
	s.it.calls.RLock()
	defer s.it.calls.RUnlock()
	if s.it.closed {
		return nil, ErrCancelled
	}
	tensor := C.pecan_write_state(s.it.c, s.handle, status.c)
	return tensor, wrap("write an iterator's state", status.err())
}

// Free releases the state.
func (s *State) Free() { C.TFE_DeleteTensorHandle(s.handle) }

// Restore puts a new iterator over an equal graph into a saved state. After an error the iterator is
// unusable.
func (it *Iterator) Restore(state []byte) error {
	if len(state) == 0 {
		return errors.New("restore an iterator: an empty state")
	}
	if it.streams != nil {
		// The state contains the arguments of its stream.
		it.streams.over.Store(false)
	}
	return it.fetch(func() C.TF_Code {
		C.pecan_restore(it.c, unsafe.Pointer(&state[0]), C.size_t(len(state)), it.status.c)
		return C.TF_GetCode(it.status.c)
	})
}
