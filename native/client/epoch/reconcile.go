package epoch

import (
	"time"

	"github.com/pecan-ml/pecan/native/client/wait"
)

// wake wakes all goroutines that may have something to do now.
func (e *Epoch) wake(openAhead bool) {
	wait.Signal(e.Notify)
	wait.Signal(e.kick)
	if openAhead {
		e.Consumer.Job.Prefetch(e)
	}
}

// pump keeps a channel open for every stream that can be read, until the epoch is closed.
func (e *Epoch) pump() {
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

// reconcile opens all channels that can be opened. It returns when to look again; 0 means only after an
// event.
func (e *Epoch) reconcile(now time.Time) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.active || e.closed || e.err != nil {
		return 0
	}
	var next time.Duration
	for at := e.streams.pending.Front(); at != nil; {
		st := at.Value.(*stream)
		at = at.Next()
		if pause := st.retryAt.Sub(now); pause > 0 {
			if next == 0 || pause < next {
				next = pause
			}
			continue
		}
		open, steady := e.mayOpen(st)
		if !open {
			continue
		}
		st.rotates = !steady
		err := e.openChannel(st)
		e.settle(st)
		if err != nil {
			e.err = err
			wait.Signal(e.Notify)
			return 0
		}
	}
	e.promote()
	return next
}

// promote gives steady credit to streams that rotate: to those that are read in turn, and to others while few channels
// have it. e.mu is held.
func (e *Epoch) promote() {
	s := &e.streams
	for _, st := range s.byNumber {
		if s.open == s.steady {
			return
		}
		room := s.steady < e.steadyAhead()
		if !room && !e.options.Deterministic {
			return
		}
		if st.receiver != nil && st.rotates && (room || e.options.Deterministic && e.inTurn(st.number)) {
			e.steady(st)
		}
	}
}

// maxBegun bounds the streams that have begun and of which something is left, so that positions stay small.
const maxBegun = 4096

// mayOpen reports whether another channel may be opened, and whether it has steady credit. A stream that is read in turn
// may always be opened: nothing else can be dequeued before it. e.mu is held.
func (e *Epoch) mayOpen(st *stream) (open, steady bool) {
	if e.options.Deterministic && e.inTurn(st.number) {
		return true, true
	}
	begun := e.streams.begun + len(e.streams.resumed)
	return st.tally.begun || begun < maxBegun, e.streams.steady < e.steadyAhead()
}
