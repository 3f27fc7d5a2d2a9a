package window

import (
	"sync/atomic"

	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/worker/payload"
)

// entryOverhead is the assumed memory cost of an entry beside its payload.
const entryOverhead = 512

// Entry is what one frame carries: consecutive elements, one failed element, or the end.
type Entry struct {
	First uint64
	Count uint32
	// size counts against the bounds of the window.
	size int64
	Body payload.Body
	// Failure is the error of the one element of this entry; nil for data.
	Failure *reason.Error
	refs    atomic.Int32
}

// NewEntry makes an entry of count elements from first on, whose body has size bytes. The caller holds the one reference.
func NewEntry(first uint64, count int, size int64, b payload.Body) *Entry {
	e := &Entry{First: first, Count: uint32(count), size: size + entryOverhead, Body: b}
	e.refs.Store(1)
	return e
}

// NewFailure makes the entry of an element that failed.
func NewFailure(first uint64, failure *reason.Error) *Entry {
	e := &Entry{First: first, Count: 1, size: int64(len(failure.Message)) + entryOverhead, Failure: failure}
	e.refs.Store(1)
	return e
}

func (e *Entry) end() uint64 { return e.First + uint64(e.Count) }

func (e *Entry) retain() { e.refs.Add(1) }

// Release drops a reference. The last one releases the body.
func (e *Entry) Release() {
	if e.refs.Add(-1) == 0 && e.Body != nil {
		e.Body.Release()
	}
}
