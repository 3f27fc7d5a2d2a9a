package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"time"
)

// errParentGone is the cause of a context that WatchParent ended.
var errParentGone = errors.New("the parent process has ended")

// parentPoll bounds how long a child outlives its parent if another process holds the parent's end of the pipe.
const parentPoll = 200 * time.Millisecond

// WatchParent returns a context that ends when stdin reaches its end or the parent's process id changes. A parent keeps the write end of
// the child's stdin open and never writes. The child then ends with the parent, also after SIGKILL. The process id covers the case that
// another process inherited the pipe.
func WatchParent(ctx context.Context, stdin io.Reader) (context.Context, context.CancelFunc) {
	return watchParent(ctx, stdin, os.Getppid)
}

func watchParent(ctx context.Context, stdin io.Reader, parent func() int) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	first := parent()
	go func() {
		// Nobody waits for this goroutine: a blocked read of stdin ends with the process at the latest.
		_, _ = io.Copy(io.Discard, stdin)
		cancel(errParentGone)
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
					cancel(errParentGone)
					return
				}
			}
		}
	}()
	return ctx, func() { cancel(context.Canceled) }
}
