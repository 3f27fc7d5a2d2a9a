package window

import (
	"github.com/pecan-ml/pecan/proto/reason"
)

// Taken is what take found for the reader.
type Taken struct {
	// entry is held for the caller; from is the first element of it that is wanted.
	Entry *Entry
	From  int
	// ended: the stream has count elements and all were taken.
	Ended bool
	Count uint64
	// failed: the stream has failed behind what was taken.
	Failed *reason.Error
}

// Take gives what c shall be sent next; the zero taken when there is nothing. mayData tells whether credit is left.
func (w *Window) Take(c Reader, mayData bool) Taken {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.reader != c {
		return Taken{}
	}
	if e := w.at(w.cursor); e != nil {
		if e.Failure == nil && !mayData {
			return Taken{}
		}
		out := Taken{Entry: e, From: int(w.cursor - e.First)}
		e.retain()
		w.cursor = e.end()
		w.setHungry(mayData && w.cursor >= w.next)
		return out
	}
	switch {
	case w.failed != nil:
		return Taken{Failed: w.failed}
	case w.ended && w.cursor >= w.next:
		return Taken{Ended: true, Count: w.next}
	}
	w.setHungry(mayData)
	return Taken{}
}

func (w *Window) setHungry(on bool) {
	if w.hungry != on && w.onStarved != nil {
		w.hungry = on
		w.onStarved(on)
	}
}

// at finds the entry that holds index. Indices are contiguous, so it is near the cursor's place from the end: windows are
// short, and the search starts where the reader is.
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
