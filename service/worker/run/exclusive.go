package run

import (
	"context"
)

// exclusive is a lock with a queue of waiters. Each waiter gives up when its context ends.
type exclusive chan struct{}

// lock returns false if the context ended first. If both happen at once, either result is possible.
func (e exclusive) lock(ctx context.Context) bool {
	select {
	case e <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (e exclusive) unlock() { <-e }
