package client

import (
	"slices"
	"time"
)

// stir wakes whoever may have something to do now.
func (e *epoch) stir(openAhead bool) {
	nudge(e.notify)
	nudge(e.kick)
	if openAhead {
		e.consumer.Job.Prefetch()
	}
}

// pump keeps a channel open for every stream that can be read, until the epoch is closed.
func (e *epoch) pump() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-e.ctx.Done():
			return
		case <-e.kick:
		case <-timer.C:
		}
		if next := e.reconcile(time.Now()); next > 0 {
			timer.Reset(next)
		}
	}
}

// reconcile opens what can be opened and says when to look again; 0 means not before something happens.
func (e *epoch) reconcile(now time.Time) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.active || e.closed || e.err != nil {
		return 0
	}
	e.countLive()
	var next time.Duration
	for _, st := range e.list {
		if !st.wanted() {
			continue
		}
		if pause := st.retryAt.Sub(now); pause > 0 {
			if next == 0 || pause < next {
				next = pause
			}
			continue
		}
		if err := e.openChannel(st); err != nil {
			e.err = err
			nudge(e.notify)
			return 0
		}
	}
	return next
}

// countLive finds how many streams share the budget. e.mu is held.
func (e *epoch) countLive() {
	e.live = 0
	for _, st := range e.list {
		if st.reading() {
			e.live++
		}
	}
}

// share is a stream's part of the budget. e.mu is held.
func (e *epoch) share() uint64 {
	return uint64(max(1, e.options.MaxOutstandingBytes/int64(max(1, e.live))))
}

// streamOf finds or makes a stream. e.mu is held.
func (e *epoch) streamOf(number uint32) *stream {
	if st := e.streams[number]; st != nil {
		return st
	}
	st := &stream{epoch: e, number: number}
	e.streams[number] = st
	at, _ := slices.BinarySearchFunc(e.list, number, func(st *stream, n uint32) int {
		return int(int64(st.number) - int64(n))
	})
	e.list = slices.Insert(e.list, at, st)
	return st
}

// received is true when no more elements will come. e.mu is held.
func (e *epoch) received() bool {
	if e.noMore {
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

// aheadTime is how long before the foreseen end of an epoch the next one is opened: opening a stream takes tens of
// milliseconds, filling a shuffle buffer more.
const aheadTime = 2 * time.Second

// nearlyDone tells, once, that the next epoch should be opened: everything has come or will have come soon. e.mu is held.
func (e *epoch) nearlyDone() bool {
	if e.askedAhead || !e.active || e.closed || e.err != nil || e.options.NoAhead {
		return false
	}
	near := e.received() || e.final && e.openStreams() == 0
	if expected := e.consumer.Job.Expected(); !near && expected >= 0 && e.accepted > 0 {
		left := float64(expected) - float64(e.accepted)
		elapsed := time.Since(e.first).Seconds()
		near = left*elapsed <= aheadTime.Seconds()*float64(e.accepted)
	}
	e.askedAhead = near
	return near
}

// openStreams counts streams that have not ended and not begun to be read. e.mu is held.
func (e *epoch) openStreams() int {
	n := int(e.total) - len(e.list)
	for _, st := range e.list {
		if !st.ended {
			n++
		}
	}
	return n
}
