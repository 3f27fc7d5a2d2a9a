package window

// Produced is the size of all entries that were ever appended.
func (w *Window) Produced() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.produced
}

// WaitsForRoom reports whether the run has produced something and waits for room, or for a reader.
func (w *Window) WaitsForRoom() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.phase == blocked
}

// Skippable returns how many elements, from the next one on, the reader already has. The run need not produce them.
func (w *Window) Skippable() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.remainder || w.acked <= w.next {
		return 0
	}
	return w.acked - w.next
}

// lowest is the first index that the window holds, or else the first one that the run appends. The run may be skipping
// elements below acked right now.
func (w *Window) lowest() uint64 {
	if len(w.entries) > 0 {
		return w.entries[0].First
	}
	return max(w.next, w.acked)
}

// Holds reports whether a reader gets every element from an index on.
func (w *Window) Holds(index uint64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lowest() <= index && index <= w.next
}

// Load returns the window's part of a heartbeat.
func (w *Window) Load() (produced, acked uint64, bytes int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.next, w.acked, w.bytes
}

// Span returns the index at which the run began, and the next index.
func (w *Window) Span() (from, next uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.from, w.next
}

// Restart makes the run continue from a checkpoint at an index that its reader has reached. Another run produced
// the elements before it. All that is known of them is that none below clean has failed.
func (w *Window) Restart(index, clean uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.from, w.next = index, index
	if clean < index {
		w.clean = clean
	}
}

// Wanted is the index that the reader wants next, as far as is known.
func (w *Window) Wanted() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return max(w.acked, w.from)
}

// ReaderWaits reports whether the reader is waiting.
func (w *Window) ReaderWaits() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.readerWaits
}

// CleanProduced is the index up to which all elements were produced and none failed.
func (w *Window) CleanProduced() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return min(w.next, w.clean)
}

// CleanBelow is the index up to which all elements have arrived and none failed.
func (w *Window) CleanBelow() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return min(w.acked, w.next, w.clean)
}

// StopProduction stops production. It reports whether nothing is left for a reader.
func (w *Window) StopProduction() (empty bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.productionStopped {
		w.productionStopped = true
		w.room.Broadcast()
	}
	return w.reader == nil || len(w.entries) == 0
}

// ProductionStopped reports whether StopProduction was called.
func (w *Window) ProductionStopped() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.productionStopped
}

// DropReader detaches the reader without a message: the reader looks for the stream where the dispatcher says.
func (w *Window) DropReader() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reader = nil
	w.setReaderWaits(false)
}

// Recomputed returns how many elements were produced that the reader had already, and the index of the run's
// first element.
func (w *Window) Recomputed() (again, from uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.recomputed, w.from
}
