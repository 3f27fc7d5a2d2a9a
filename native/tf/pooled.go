package tf

import (
	"errors"
	"sync/atomic"
)

// errStreamOver is what the source of a pooled graph answers if it has no further stream. TensorFlow passes the
// error on to the caller, and asks the source again at the next call.
var errStreamOver = &Error{Code: codeAborted, Message: "the pooled iterator has no further stream"}

// codeAborted is a code that no step of a dataset takes for the end of its input.
const codeAborted = 10

// streams is the source of a pooled graph: it supplies the arguments of one stream after another. It uses only
// atomics, so the op never waits in it.
type streams struct {
	next atomic.Pointer[[]*Tensor]
	// over is set if the op asked for a stream when there was none. The last stream has ended.
	over atomic.Bool
}

// Pull implements Source.
func (s *streams) Pull() ([]*Tensor, error) {
	if next := s.next.Swap(nil); next != nil {
		return *next, nil
	}
	s.over.Store(true)
	return nil, errStreamOver
}

// drop releases arguments that no stream took.
func (s *streams) drop() {
	if next := s.next.Swap(nil); next != nil {
		ReleaseAll(*next)
	}
}

// NewPooled builds an iterator that runs many streams, one after another, so that TensorFlow instantiates the
// functions of their graph once. The function graph returns that graph: a flat_map over the arguments of the
// streams, which PecanPull reads under the given handle. The flat_map's function returns the dataset of a stream.
// Begin starts a stream. A stream ends with io.EOF, as other iterators do.
func (c *Context) NewPooled(graph func(source int64) ([]byte, error), types []DataType) (*Iterator, error) {
	s := new(streams)
	s.over.Store(true)
	handle := RegisterSource(s)
	serialised, err := graph(handle)
	if err == nil {
		var it *Iterator
		if it, err = c.NewIterator(serialised, types); err == nil {
			it.streams, it.source = s, handle
			return it, nil
		}
	}
	RemoveSource(handle)
	return nil, err
}

// Begin starts the next stream of a pooled iterator, and takes over its arguments. The stream before it must have
// ended. If the dataset of the stream cannot be built, the first element is an *Error and the second io.EOF.
func (it *Iterator) Begin(arguments []*Tensor) error {
	if it.Idle() {
		it.given.Store(0)
		it.failed.Store(0)
	}
	return it.Continue(arguments)
}

// Continue is Begin for a further part of the same stream: Given counts on.
func (it *Iterator) Continue(arguments []*Tensor) error {
	if !it.Idle() {
		ReleaseAll(arguments)
		return errors.New("begin a stream: the iterator is not pooled, was cancelled, or has a stream")
	}
	it.streams.over.Store(false)
	it.streams.next.Store(&arguments)
	return nil
}

// Pooled reports whether an iterator runs many streams.
func (it *Iterator) Pooled() bool { return it.streams != nil }

// Idle reports whether a pooled iterator can begin another stream.
func (it *Iterator) Idle() bool {
	return it.streams != nil && it.streams.over.Load() && !it.cancelled.Load()
}
