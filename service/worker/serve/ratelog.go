package serve

import (
	"sync"
	"time"
)

// These bounds limit warnings about peers. Otherwise anybody who can connect could fill the disk with them.
const (
	warnBurst  = 10
	warnPeriod = 10 * time.Second
)

// rateLog counts warnings and passes a few of them in each period.
type rateLog struct {
	mu      sync.Mutex
	since   time.Time
	logged  int
	dropped int
}

// allow reports whether to log one more warning, and how many were dropped in the period before.
func (r *rateLog) allow(now time.Time) (dropped int, say bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.since.IsZero() || now.Sub(r.since) >= warnPeriod {
		dropped, r.since, r.logged, r.dropped = r.dropped, now, 0, 0
	}
	if r.logged >= warnBurst {
		r.dropped++
		return 0, false
	}
	r.logged++
	return dropped, true
}
