package run

import (
	"context"
)

// exclusive is a lock for which one waits in line, and no longer than a context lives.
type exclusive chan struct{}

// lock is false when the context has ended; it may be so, too, when both were possible.
func (e exclusive) lock(ctx context.Context) bool {
	select {
	case e <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (e exclusive) unlock() { <-e }
