package clock

import (
	"context"
	"time"
)

// Clock is a monotonic clock.
type Clock interface {
	// Now returns the time since a fixed origin. It never goes back, and changes of the wall clock do not affect it.
	Now() time.Duration
	// NewTicker returns a channel with a tick about every period until stop is called. A tick is dropped if nobody receives it.
	NewTicker(period time.Duration) (ticks <-chan time.Time, stop func())
}

// System returns the clock of this process.
func System() Clock { return system{origin: time.Now()} }

type system struct{ origin time.Time }

func (s system) Now() time.Duration { return time.Since(s.origin) }

func (s system) NewTicker(period time.Duration) (<-chan time.Time, func()) {
	ticker := time.NewTicker(period)
	return ticker.C, ticker.Stop
}

// Sleep waits for d. It returns false if ctx ended first.
func Sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
