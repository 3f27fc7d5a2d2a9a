package wait

import (
	"context"
	"math/rand/v2"
	"time"
)

// Backoff waits longer after each failure. Jitter prevents that many clients return at the same time.
type Backoff struct{ last time.Duration }

const (
	FirstPause = 20 * time.Millisecond
	maxPause   = 2 * time.Second
)

// Next returns the length of the next pause.
func (b *Backoff) Next() time.Duration {
	b.last = min(max(FirstPause, b.last*2), maxPause)
	return b.last/2 + rand.N(b.last/2+1)
}

// Reset makes the next pause the shortest one.
func (b *Backoff) Reset() { b.last = 0 }

// Wait pauses. It returns false if ctx ended.
func (b *Backoff) Wait(ctx context.Context) bool {
	return Sleep(ctx, b.Next())
}

// Signal wakes one waiter, and never blocks.
func Signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
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
