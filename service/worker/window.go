package worker

import (
	"math"
	"sync"
	"sync/atomic"

	"github.com/pecan-ml/pecan/proto/reason"
)

// firstReserve is the most that is put by for a stream's first element: it may fill a shuffle buffer for minutes, and the
// closing stream waits for all others.
const firstReserve = 8 << 20

// window is the ready elements of a stream that no reader has acknowledged, bounded in bytes, and the place of the reader
// in them. The run appends, one channel of a connection takes.
type window struct {
	mu sync.Mutex
	// room wakes the run.
	room    *sync.Cond
	entries []*entry
	bytes   int64
	// all is the bytes of every window of the worker, and what their runs have put by for the elements they are making.
	all *atomic.Int64
	// last is the size of the newest entry: what the next one is expected to take. reserved is put by for it.
	last, reserved int64
	// made is the size of all entries so far.
	made int64
	// acked: everything below has arrived. next: the index that the run appends next.
	acked, next uint64
	// clean: no element below has failed, as far as it was made. again is how many elements were made that the reader had already.
	clean, again uint64
	// from is the index of the first element that the run makes.
	from   uint64
	ended  bool
	failed *reason.Error
	closed bool
	// keep: nothing is given up before close (remainders).
	keep bool

	reader *channel
	// cursor is the index that the reader is sent next.
	cursor uint64
	// opened is set by the first reader. ahead: only the first entry is made before that.
	opened, ahead bool
	// leaving: nothing more is made.
	leaving bool
	// starved is called when a reader could take more than there is, and when that is over.
	starved func(bool)
	hungry  bool
}

func newWindow(all *atomic.Int64, starved func(bool)) *window {
	w := &window{all: all, starved: starved, clean: math.MaxUint64}
	w.room = sync.NewCond(&w.mu)
	return w
}

// append adds an entry at w.next; it is dropped at once when the reader has it already. False: the window is closed.
func (w *window) append(e *entry) bool {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		e.release()
		return false
	}
	w.next = e.end()
	if e.failure != nil {
		w.clean = min(w.clean, e.first)
	}
	if !w.keep && e.first < w.acked {
		w.again += min(e.end(), w.acked) - e.first
	}
	if !w.keep && e.end() <= w.acked {
		w.mu.Unlock()
		e.release()
		return true
	}
	w.entries = append(w.entries, e)
	// In one step, or another run would take the room between the two.
	w.all.Add(e.size - w.reserved)
	w.bytes, w.reserved = w.bytes+e.size, 0
	w.last = e.size
	w.made += e.size
	reader := w.reader
	w.mu.Unlock()
	reader.wake()
	return true
}

func (w *window) charge(bytes int64) {
	w.bytes += bytes
	w.all.Add(bytes)
}

// reserve puts bytes by in place of what was put by before. w.mu is held.
func (w *window) reserve(bytes int64) {
	w.all.Add(bytes - w.reserved)
	w.reserved = bytes
}

// tryReserve puts bytes by if all windows together stay within limit. w.mu is held.
func (w *window) tryReserve(bytes, limit int64) bool {
	for {
		all := w.all.Load()
		if all+bytes > limit {
			return false
		}
		if w.all.CompareAndSwap(all, all+bytes) {
			w.reserved += bytes
			return true
		}
	}
}

// skipped tells that n elements were run and dropped.
func (w *window) skipped(n uint64) {
	w.mu.Lock()
	w.next += n
	w.again += n
	w.mu.Unlock()
}

// finish ends the window: with an error when failure is not nil.
func (w *window) finish(failure *reason.Error) {
	w.mu.Lock()
	if failure != nil {
		w.failed = failure
	} else {
		w.ended = true
	}
	reader := w.reader
	w.setHungry(false)
	w.reserve(0)
	w.mu.Unlock()
	reader.wake()
}

// underWay is the room left free for the element that a graph begins while its last one is fetched. Where few elements
// fit at all, using what there is matters more.
func (w *window) underWay(limit int64) int64 {
	if w.last > limit/8 {
		return 0
	}
	return w.last
}

// waitRoom blocks until the run may produce: the window is empty, or it is below its share and what it makes next, taken
// to be as large as the last, fits into the limit of all windows together; and a stream that was leased ahead of need
// and has made its first elements was opened. The room is put by until the entry comes, since many runs may ask for the
// last of it at once. False: the window is closed. What other windows give up wakes nobody here: a window that
// is not empty is woken by its own reader. rest is called once before it blocks, without a lock.
func (w *window) waitRoom(limit, streams func() int64, rest func()) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reserve(0)
	for !w.closed {
		switch {
		case w.leaving:
			return true
		case w.ahead && !w.opened && w.next > 0:
		case len(w.entries) == 0 && w.last == 0:
			// Nothing is known of its elements, and the first may be long in coming.
			w.reserve(min(firstReserve, limit()/max(1, streams())))
			return true
		case len(w.entries) == 0:
			w.reserve(w.last)
			return true
		case w.bytes < limit()/max(1, streams()) && w.tryReserve(w.last, limit()-w.underWay(limit())):
			return true
		}
		if rest != nil {
			w.mu.Unlock()
			rest()
			rest = nil
			w.mu.Lock()
			continue
		}
		w.room.Wait()
	}
	return false
}

// madeSoFar is the size of all entries that were ever appended.
func (w *window) madeSoFar() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.made
}

// setAhead tells whether the stream is still leased ahead of need.
func (w *window) setAhead(on bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ahead = on
	w.room.Broadcast()
}

// behind is how many elements the reader has of those that the run has not made yet.
func (w *window) behind() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.keep || w.acked <= w.next {
		return 0
	}
	return w.acked - w.next
}

// attach makes c the reader, from the index start on, and gives the reader it takes the place of. False: what the reader
// wants is no longer held, the stream has to run again.
func (w *window) attach(c *channel, start uint64) (old *channel, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.keep && start < w.lowest() {
		return nil, false
	}
	old, w.reader = w.reader, c
	w.cursor, w.opened = start, true
	w.trim(start)
	w.room.Broadcast()
	return old, true
}

// newerReader tells whether the reader was asked for after c was.
func (w *window) newerReader(c *channel) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.reader != nil && w.reader.asked > c.asked
}

// lowest is the first index that is held or sure to come: what is below acked may be passed over by the run right now.
func (w *window) lowest() uint64 {
	if len(w.entries) > 0 {
		return w.entries[0].first
	}
	return max(w.next, w.acked)
}

// holds tells whether a reader gets everything from an index on.
func (w *window) holds(index uint64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lowest() <= index && index <= w.next
}

// detach forgets the reader if it is c.
func (w *window) detach(c *channel) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.reader == c {
		w.reader = nil
		w.setHungry(false)
	}
}

// acknowledge gives up what is below index. Only the reader's own word counts.
func (w *window) acknowledge(c *channel, index uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.reader == c && index <= w.cursor {
		w.trim(index)
	}
}

func (w *window) trim(index uint64) {
	if w.keep {
		return
	}
	w.acked = max(w.acked, index)
	n := 0
	for n < len(w.entries) && w.entries[n].end() <= w.acked {
		w.charge(-w.entries[n].size)
		w.entries[n].release()
		w.entries[n] = nil
		n++
	}
	if n > 0 {
		w.entries = w.entries[n:]
		w.room.Broadcast()
	}
}

// taken is what take found for the reader.
type taken struct {
	// entry is held for the caller; from is the first element of it that is wanted.
	entry *entry
	from  int
	// ended: the stream has count elements and all were taken.
	ended bool
	count uint64
	// failed: the stream has failed behind what was taken.
	failed *reason.Error
}

// take gives what c shall be sent next; the zero taken when there is nothing. mayData tells whether credit is left.
func (w *window) take(c *channel, mayData bool) taken {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.reader != c {
		return taken{}
	}
	if e := w.at(w.cursor); e != nil {
		if e.failure == nil && !mayData {
			return taken{}
		}
		out := taken{entry: e, from: int(w.cursor - e.first)}
		e.retain()
		w.cursor = e.end()
		w.setHungry(mayData && w.cursor >= w.next)
		return out
	}
	switch {
	case w.failed != nil:
		return taken{failed: w.failed}
	case w.ended && w.cursor >= w.next:
		return taken{ended: true, count: w.next}
	}
	w.setHungry(mayData)
	return taken{}
}

func (w *window) setHungry(on bool) {
	if w.hungry != on && w.starved != nil {
		w.hungry = on
		w.starved(on)
	}
}

// at finds the entry that holds index. Indices are contiguous, so it is near the cursor's place from the end: windows are
// short, and the search starts where the reader is.
func (w *window) at(index uint64) *entry {
	lo, hi := 0, len(w.entries)
	for lo < hi {
		mid := (lo + hi) / 2
		if w.entries[mid].end() <= index {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo < len(w.entries) && w.entries[lo].first <= index {
		return w.entries[lo]
	}
	return nil
}

// close drops everything and gives the reader that was attached.
func (w *window) close() *channel {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	for _, e := range w.entries {
		e.release()
	}
	reader := w.reader
	w.charge(-w.bytes)
	w.reserve(0)
	w.entries, w.reader = nil, nil
	w.room.Broadcast()
	return reader
}

// load is the figures of a heartbeat.
func (w *window) load() (produced, acked uint64, bytes int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.next, w.acked, w.bytes
}
