package epoch

import (
	"time"
)

// received reports whether no more elements will arrive. e.mu is held.
func (e *Epoch) received() bool {
	if e.noMoreStreams {
		for _, st := range e.list {
			if st.reading() {
				return false
			}
		}
		return true
	}
	if !e.final || uint32(len(e.list)) < e.total {
		return false
	}
	for _, st := range e.list {
		if !st.ended {
			return false
		}
	}
	return true
}

// prefetchTime is how long before its predicted end an epoch prefetches the next one. Opening a stream takes
// tens of milliseconds, and filling a shuffle buffer takes longer.
const prefetchTime = 2 * time.Second

// nearlyDone returns true, once, when the next epoch should be opened: all elements have arrived or will
// arrive soon. e.mu is held.
func (e *Epoch) nearlyDone() bool {
	if e.prefetchAsked || !e.active || e.closed || e.err != nil || e.options.NoPrefetch {
		return false
	}
	near := e.received() || e.final && e.openStreams() == 0
	if expected := e.Consumer.Job.Expected(); !near && expected >= 0 && e.accepted > 0 {
		left := float64(expected) - float64(e.accepted)
		elapsed := time.Since(e.first).Seconds()
		near = left*elapsed <= prefetchTime.Seconds()*float64(e.accepted)
	}
	e.prefetchAsked = near
	return near
}

// openStreams counts streams that have not ended, including those that are not assigned yet. e.mu is held.
func (e *Epoch) openStreams() int {
	n := int(e.total) - len(e.list)
	for _, st := range e.list {
		if !st.ended {
			n++
		}
	}
	return n
}
