package window

import (
	"math"
	"sync"
	"sync/atomic"

	"github.com/pecan-ml/pecan/proto/reason"
)

// Window holds the ready elements of a stream that no reader has acknowledged, and the reader's position in
// them. It is bounded in bytes. The run appends; one channel of a connection takes.
type Window struct {
	mu sync.Mutex
	// room wakes the run.
	room    *sync.Cond
	entries []*Entry
	bytes   int64
	// all is the bytes of every window of the worker, and what their runs have reserved for the elements they
	// are producing.
	all *atomic.Int64
	// last is the size of the newest entry: the expected size of the next one. reserved is the reservation for
	// it.
	last, reserved int64
	// produced is the size of all entries so far.
	produced int64
	// Everything below acked has arrived. next is the index that the run appends next.
	acked, next uint64
	// No element below clean has failed, as far as elements were produced. recomputed counts elements that the
	// reader had already.
	clean, recomputed uint64
	// from is the index of the first element that the run produces.
	from   uint64
	ended  bool
	failed *reason.Error
	closed bool
	// remainder is set if nothing is released before close.
	remainder bool

	reader Reader
	// cursor is the index that the reader is sent next.
	cursor uint64
	// opened is set by the first reader. With prefetch, only the first entry is produced before that.
	opened, prefetch bool
	// productionStopped is set if no more elements are produced.
	productionStopped bool
	// onReaderWaits is called when a reader could take more than there is, and when that is over.
	onReaderWaits func(bool)
	readerWaits   bool
	phase         phase
}

// Start is where a run begins to fill a window.
type Start struct {
	// From is the index of the first element that the run produces. The reader has all elements below Acked.
	From, Acked uint64
	// Prefetch is set if only the first entry is produced before the first reader comes.
	Prefetch bool
}

// New makes the window of a run. Its bytes count in all. onReaderWaits is called when a reader could take more than
// there is, and when that is over.
func New(all *atomic.Int64, onReaderWaits func(bool), at Start) *Window {
	w := &Window{all: all, onReaderWaits: onReaderWaits, clean: math.MaxUint64, from: at.From, next: at.From, acked: at.Acked, prefetch: at.Prefetch}
	w.room = sync.NewCond(&w.mu)
	return w
}

// NewRemainder makes a window for remainders. Nothing in it is released before it is closed.
func NewRemainder(all *atomic.Int64) *Window {
	w := New(all, nil, Start{})
	w.remainder = true
	return w
}

// Append adds an entry at w.next. The entry is released at once if the reader has it already. Append returns
// false if the window is closed.
func (w *Window) Append(e *Entry) bool {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		e.Release()
		return false
	}
	w.next = e.end()
	if !w.remainder && w.phase == idle {
		w.setPhase(computing)
	}
	if e.Failure != nil {
		w.clean = min(w.clean, e.First)
	}
	if !w.remainder && e.First < w.acked {
		w.recomputed += min(e.end(), w.acked) - e.First
	}
	if !w.remainder && e.end() <= w.acked {
		w.mu.Unlock()
		e.Release()
		return true
	}
	w.entries = append(w.entries, e)
	// Both change in one step. Otherwise another run could take the room in between.
	w.all.Add(e.size - w.reserved)
	w.bytes, w.reserved = w.bytes+e.size, 0
	w.last = e.size
	w.produced += e.size
	reader := w.reader
	w.mu.Unlock()
	if reader != nil {
		reader.Wake()
	}
	return true
}

// Skip records that n elements were run and dropped.
func (w *Window) Skip(n uint64) {
	w.mu.Lock()
	w.next += n
	w.recomputed += n
	w.mu.Unlock()
}

// Finish ends the window, with an error if failure is not nil.
func (w *Window) Finish(failure *reason.Error) {
	w.mu.Lock()
	if failure != nil {
		w.failed = failure
	} else {
		w.ended = true
	}
	reader := w.reader
	w.setReaderWaits(false)
	w.setPhase(idle)
	w.reserve(0)
	w.mu.Unlock()
	if reader != nil {
		reader.Wake()
	}
}

// Attach makes c the reader, from the index start on, and returns the reader that it replaces. It returns false
// if the wanted elements are no longer held: the stream then has to run again.
func (w *Window) Attach(c Reader, start uint64) (old Reader, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.remainder && start < w.lowest() {
		return nil, false
	}
	old, w.reader = w.reader, c
	w.cursor, w.opened = start, true
	w.trim(start)
	w.room.Broadcast()
	return old, true
}

// NewerReader reports whether the current reader's OPEN came after c's.
func (w *Window) NewerReader(c Reader) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.reader != nil && w.reader.Asked() > c.Asked()
}

// Detach removes the reader if it is c.
func (w *Window) Detach(c Reader) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.reader == c {
		w.reader = nil
		w.setReaderWaits(false)
	}
}

// Acknowledge releases what is below index. Only the current reader may acknowledge.
func (w *Window) Acknowledge(c Reader, index uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.reader == c && index <= w.cursor {
		w.trim(index)
	}
}

func (w *Window) trim(index uint64) {
	if w.remainder {
		return
	}
	w.acked = max(w.acked, index)
	n := 0
	for n < len(w.entries) && w.entries[n].end() <= w.acked {
		w.charge(-w.entries[n].size)
		w.entries[n].Release()
		w.entries[n] = nil
		n++
	}
	if n > 0 {
		w.entries = w.entries[n:]
		w.room.Broadcast()
	}
}

// Close releases everything and returns the attached reader.
func (w *Window) Close() Reader {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.setPhase(idle)
	for _, e := range w.entries {
		e.Release()
	}
	reader := w.reader
	w.charge(-w.bytes)
	w.reserve(0)
	w.entries, w.reader = nil, nil
	w.room.Broadcast()
	return reader
}

// Taken is the result of Take.
type Taken struct {
	// Entry is retained for the caller. From is the first element of it that is wanted.
	Entry *Entry
	From  int
	// Ended is set if the stream has Count elements, and all were taken.
	Ended bool
	Count uint64
	// Failed means that the stream failed after the elements that were taken.
	Failed *reason.Error
	// Blocked is set if only credit lacks for the next frame.
	Blocked bool
}

// Take returns what c is sent next; the zero Taken if there is nothing. mayData reports whether credit is left.
func (w *Window) Take(c Reader, mayData bool) Taken {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.reader != c {
		return Taken{}
	}
	if e := w.at(w.cursor); e != nil {
		if e.Failure == nil && !mayData {
			return Taken{Blocked: true}
		}
		out := Taken{Entry: e, From: int(w.cursor - e.First)}
		e.retain()
		w.cursor = e.end()
		w.setReaderWaits(mayData && w.cursor >= w.next)
		return out
	}
	switch {
	case w.failed != nil:
		return Taken{Failed: w.failed}
	case w.ended && w.cursor >= w.next:
		return Taken{Ended: true, Count: w.next}
	}
	w.setReaderWaits(mayData)
	return Taken{}
}

// NextBytes returns the size of the next frame of c; 0 if it has no elements.
func (w *Window) NextBytes(c Reader) uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	e := w.at(w.cursor)
	if w.reader != c || e == nil || e.Failure != nil {
		return 0
	}
	return e.Body.Frame(int(w.cursor - e.First)).Raw
}

func (w *Window) setReaderWaits(on bool) {
	if w.readerWaits != on && w.onReaderWaits != nil {
		w.readerWaits = on
		w.onReaderWaits(on)
	}
}

// at returns the entry that holds index, by binary search.
func (w *Window) at(index uint64) *Entry {
	lo, hi := 0, len(w.entries)
	for lo < hi {
		mid := (lo + hi) / 2
		if w.entries[mid].end() <= index {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo < len(w.entries) && w.entries[lo].First <= index {
		return w.entries[lo]
	}
	return nil
}
