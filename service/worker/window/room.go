package window

// firstReserve is the most that is put by for a stream's first element: it may fill a shuffle buffer for minutes, and the
// closing stream waits for all others.
const firstReserve = 8 << 20

func (w *Window) charge(bytes int64) {
	w.bytes += bytes
	w.all.Add(bytes)
}

// reserve puts bytes by in place of what was put by before. w.mu is held.
func (w *Window) reserve(bytes int64) {
	w.all.Add(bytes - w.reserved)
	w.reserved = bytes
}

// tryReserve puts bytes by if all windows together stay within limit. w.mu is held.
func (w *Window) tryReserve(bytes, limit int64) bool {
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

// underWay is the room left free for the element that a graph begins while its last one is fetched. Where few elements
// fit at all, using what there is matters more.
func (w *Window) underWay(limit int64) int64 {
	if w.last > limit/8 {
		return 0
	}
	return w.last
}

// WaitRoom blocks until the run may produce: the window is empty, or it is below its share and what it makes next, taken
// to be as large as the last, fits into the limit of all windows together; and a stream that was leased ahead of need
// and has made its first elements was opened. The room is put by until the entry comes, since many runs may ask for the
// last of it at once. False: the window is closed. What other windows give up wakes nobody here: a window that
// is not empty is woken by its own reader. rest is called once before it blocks, without a lock.
func (w *Window) WaitRoom(limit, streams func() int64, rest func()) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reserve(0)
	for !w.closed {
		switch {
		case w.leaving:
			return true
		case w.prefetch && !w.opened && w.next > 0:
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

// SetPrefetch tells whether the stream is still leased ahead of need.
func (w *Window) SetPrefetch(on bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.prefetch = on
	w.room.Broadcast()
}
