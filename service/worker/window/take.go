package window

import (
	"github.com/pecan-ml/pecan/proto/reason"
)

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
