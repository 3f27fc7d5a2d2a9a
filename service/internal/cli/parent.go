package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"time"
)

// ErrParentGone is the cause of a context that WatchParent ended.
var ErrParentGone = errors.New("the parent process is gone")

// parentPoll bounds how long a child outlives a parent that was killed while something else holds its end of the pipe.
const parentPoll = 200 * time.Millisecond

// WatchParent gives a context that ends when stdin reaches its end or the parent's process id changes. A parent
// that keeps the write end of the child's stdin open, and never writes, thereby takes the child along however it dies,
// SIGKILL included; the process id covers a pipe end that leaked into another process.
func WatchParent(ctx context.Context, stdin io.Reader) (context.Context, context.CancelFunc) {
	return watchParent(ctx, stdin, os.Getppid)
}

func watchParent(ctx context.Context, stdin io.Reader, parent func() int) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	first := parent()
	go func() {
		// Not waited for: a blocked read of stdin ends with the process at the latest.
		_, _ = io.Copy(io.Discard, stdin)
		cancel(ErrParentGone)
	}()
	go func() {
		ticker := time.NewTicker(parentPoll)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				if parent() != first {
					cancel(ErrParentGone)
					return
				}
			}
		}
	}()
	return ctx, func() { cancel(context.Canceled) }
}
