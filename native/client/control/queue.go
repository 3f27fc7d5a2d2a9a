package control

import (
	"context"
	"sync"

	"github.com/pecan-ml/pecan/native/client/wait"
)

// call is something to tell the dispatcher in the background.
type call struct {
	do func(context.Context) error
	// keep: repeat while the dispatcher is away, for as long as the session lives. Otherwise it is tried once.
	retry bool
	// mark, if not nil, is closed when its turn comes; there is nothing to do then.
	reached chan struct{}
}

// callQueue tells the dispatcher one thing after the other, in order: that a stream was received comes before that
// the epoch is closed, whatever fails between.
type callQueue struct {
	link  *Link
	mu    sync.Mutex
	calls []call
	busy  bool
	wake  chan struct{}
	idle  chan struct{}
}

func newCallQueue(l *Link) *callQueue {
	return &callQueue{link: l, wake: make(chan struct{}, 1), idle: make(chan struct{}, 1)}
}

func (q *callQueue) add(c call) {
	q.mu.Lock()
	q.calls = append(q.calls, c)
	q.mu.Unlock()
	wait.Signal(q.wake)
}

// marker gives a channel that is closed when everything that was added before is done.
func (q *callQueue) marker() <-chan struct{} {
	mark := make(chan struct{})
	q.add(call{reached: mark})
	return mark
}

func (q *callQueue) run() {
	ctx := q.link.ctx
	for {
		q.mu.Lock()
		if len(q.calls) == 0 {
			q.calls, q.busy = nil, false
			q.mu.Unlock()
			wait.Signal(q.idle)
			select {
			case <-ctx.Done():
				return
			case <-q.wake:
			}
			continue
		}
		next := q.calls[0]
		q.calls, q.busy = q.calls[1:], true
		q.mu.Unlock()
		if !q.perform(ctx, next) {
			return
		}
	}
}

// perform makes one call; false when the session ended.
func (q *callQueue) perform(ctx context.Context, c call) bool {
	if c.reached != nil {
		close(c.reached)
		return true
	}
	var pause wait.Backoff
	for {
		limited, cancel := context.WithTimeout(ctx, CallTimeout)
		err := c.do(limited)
		cancel()
		if ctx.Err() != nil {
			return false
		}
		q.link.Observe(err)
		if err == nil || !c.retry || !IsOutage(err) {
			if err != nil {
				q.link.log.Debug("dispatcher refused a report", "error", err)
			}
			return true
		}
		if !pause.Wait(ctx) {
			return false
		}
	}
}

// flush waits until everything that was added is done, or ctx ends.
func (q *callQueue) flush(ctx context.Context) {
	for {
		q.mu.Lock()
		done := len(q.calls) == 0 && !q.busy
		q.mu.Unlock()
		if done {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-q.idle:
		}
	}
}
