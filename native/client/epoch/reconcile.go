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
		e.Consumer.Job.Prefetch()
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
			wait.Signal(e.Notify)
			return 0
		}
	}
	return next
}
