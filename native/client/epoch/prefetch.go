package epoch

import (
	"time"
)

// received is true when no more elements will come. e.mu is held.
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

// prefetchTime is how long before the foreseen end of an epoch the next one is opened: opening a stream takes tens of
// milliseconds, filling a shuffle buffer more.
const prefetchTime = 2 * time.Second

// nearlyDone tells, once, that the next epoch should be opened: everything has come or will have come soon. e.mu is held.
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

// openStreams counts streams that have not ended and not begun to be read. e.mu is held.
func (e *Epoch) openStreams() int {
	n := int(e.total) - len(e.list)
	for _, st := range e.list {
		if !st.ended {
			n++
		}
	}
	return n
}
