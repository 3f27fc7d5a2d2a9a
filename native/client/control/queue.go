package control

import (
	"context"
	"sync"

	"github.com/pecan-ml/pecan/native/client/wait"
)

// call is a background call to the dispatcher.
type call struct {
	do func(context.Context) error
	// retry is set if the call is repeated while the dispatcher is away, until the session ends. Otherwise it is tried
	// once.
	retry bool
	// reached, if not nil, is closed when the queue arrives at this entry, which makes no call.
	reached chan struct{}
}

// callQueue makes background calls one after the other. The report that a stream was received therefore
// arrives before the close of its epoch, even if calls between them fail.
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

// marker returns a channel that is closed when all earlier calls are done.
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

// perform makes one call. It returns false if the session ended.
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
				q.link.log.Debug("the dispatcher refused a report", "error", err)
			}
			return true
		}
		if !pause.Wait(ctx) {
			return false
		}
	}
}

// flush waits until all calls are done, or ctx ends.
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
