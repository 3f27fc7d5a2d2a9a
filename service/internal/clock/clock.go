// Package clock is the one way in which the service tells time: monotonic, and replaced in tests.
package clock

import (
	"context"
	"time"
)

// Clock is a monotonic clock. Now is the time since an origin that does not change while the process lives; it never
// goes back and wall-clock changes do not touch it.
type Clock interface {
	Now() time.Duration
	// NewTicker gives a channel on which a tick arrives about every period until stop is called. Ticks nobody took are dropped.
	NewTicker(period time.Duration) (ticks <-chan time.Time, stop func())
}

// System is the clock of this process.
func System() Clock { return system{origin: time.Now()} }

type system struct{ origin time.Time }

func (s system) Now() time.Duration { return time.Since(s.origin) }

func (s system) NewTicker(period time.Duration) (<-chan time.Time, func()) {
	ticker := time.NewTicker(period)
	return ticker.C, ticker.Stop
}

// Sleep waits for d. It returns false if ctx ended first.
func Sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
