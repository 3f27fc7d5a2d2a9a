package epoch

import (
	"time"
)

// received reports whether no more elements will arrive. e.mu is held.
func (e *Epoch) received() bool {
	if e.noMoreStreams {
		return e.streams.reading == 0
	}
	return e.final && e.streams.ended >= int(e.total)
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
	near := e.received()
	if expected := e.Consumer.Job.Expected(); !near && expected >= 0 && e.accepted > 0 {
		left := float64(expected) - float64(e.accepted)
		elapsed := time.Since(e.first).Seconds()
		near = left*elapsed <= prefetchTime.Seconds()*float64(e.accepted)
	}
	e.prefetchAsked = near
	return near
}
