package window

// Produced is the size of all entries that were ever appended.
func (w *Window) Produced() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.produced
}

// Skippable is how many elements the reader has of those that the run has not made yet.
func (w *Window) Skippable() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.remainder || w.acked <= w.next {
		return 0
	}
	return w.acked - w.next
}

// lowest is the first index that is held or sure to come: what is below acked may be passed over by the run right now.
func (w *Window) lowest() uint64 {
	if len(w.entries) > 0 {
		return w.entries[0].First
	}
	return max(w.next, w.acked)
}

// Holds tells whether a reader gets everything from an index on.
func (w *Window) Holds(index uint64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lowest() <= index && index <= w.next
}

// Load is the figures of a heartbeat.
func (w *Window) Load() (produced, acked uint64, bytes int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.next, w.acked, w.bytes
}

// Span is the index at which the run began, and the next one.
func (w *Window) Span() (from, next uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.from, w.next
}

// Restart has the run go on from a checkpoint at an index that its reader has reached. What comes before was made by others: all that
// is known of it is that nothing below clean has failed.
func (w *Window) Restart(index, clean uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.from, w.next = index, index
	if clean < index {
		w.clean = clean
	}
}

// Wanted is what the reader wants next, as far as is known.
func (w *Window) Wanted() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return max(w.acked, w.from)
}

// IsHungry tells whether the reader waits.
func (w *Window) IsHungry() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.hungry
}

// CleanProduced is up to where everything was made and nothing has failed.
func (w *Window) CleanProduced() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return min(w.next, w.clean)
}

// CleanBelow is up to where everything has arrived and nothing has failed.
func (w *Window) CleanBelow() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return min(w.acked, w.next, w.clean)
}

// Leave has nothing more made, and tells whether there is nothing left for a reader.
func (w *Window) Leave() (empty bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.leaving {
		w.leaving = true
		w.room.Broadcast()
	}
	return w.reader == nil || len(w.entries) == 0
}

func (w *Window) IsLeaving() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.leaving
}

// DropReader lets the reader go without a word: it looks for the stream where the dispatcher says.
func (w *Window) DropReader() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reader = nil
	w.setHungry(false)
}

// Recomputed is how many elements were made that the reader had already, and the index of the first one that the run made.
func (w *Window) Recomputed() (again, from uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.recomputed, w.from
}
