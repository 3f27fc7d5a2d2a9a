package window

// firstReserve bounds the reservation for a stream's first element. That element may fill a shuffle buffer for
// minutes, and the closing stream waits for all others.
const firstReserve = 8 << 20

func (w *Window) charge(bytes int64) {
	w.bytes += bytes
	w.all.Add(bytes)
}

// reserve replaces the reservation by bytes. The caller holds w.mu.
func (w *Window) reserve(bytes int64) {
	w.all.Add(bytes - w.reserved)
	w.reserved = bytes
}

// tryReserve reserves bytes if all windows together stay within limit. The caller holds w.mu.
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

// underWay is the room for the element that a graph begins while its last one is fetched. It is 0 for elements above an
// eighth of the limit, because few of those fit at all.
func (w *Window) underWay(limit int64) int64 {
	if w.last > limit/8 {
		return 0
	}
	return w.last
}

// WaitRoom blocks until the run may produce. The run may produce if the window is empty. It may also produce if the window
// is below its share, and the next element fits into the limit of all windows. The next element is assumed to be as large
// as the last one. A prefetched stream with a first element also waits until a reader opens it.
//
// The room is reserved until the entry comes, because several runs may want the last of it at once. Room that
// other windows release wakes no run here: a window that is not empty is woken by its own reader. rest is called
// once before WaitRoom blocks, without a lock. WaitRoom returns false if the window is closed.
func (w *Window) WaitRoom(limit, streams func() int64, rest func()) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reserve(0)
	for !w.closed {
		switch {
		case w.productionStopped:
			w.setPhase(idle)
			return true
		case w.prefetch && !w.opened && w.next > 0:
		case len(w.entries) == 0 && w.last == 0:
			// The size of its elements is unknown, and the first may take long.
			w.reserve(min(firstReserve, limit()/max(1, streams())))
			return true
		case len(w.entries) == 0:
			w.reserve(w.last)
			w.mayCompute()
			return true
		case w.bytes < limit()/max(1, streams()) && w.tryReserve(w.last, limit()-w.underWay(limit())):
			w.mayCompute()
			return true
		}
		if rest != nil {
			w.mu.Unlock()
			rest()
			rest = nil
			w.mu.Lock()
			continue
		}
		if w.phase == computing {
			w.setPhase(blocked)
		}
		w.room.Wait()
	}
	return false
}

// SetPrefetch sets whether the stream still belongs to a prefetched epoch that no client has adopted.
func (w *Window) SetPrefetch(on bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.prefetch = on
	w.room.Broadcast()
}
