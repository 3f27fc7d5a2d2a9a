package client

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

// retryPause waits longer from failure to failure, with jitter, so that many clients do not come back in step.
type retryPause struct{ last time.Duration }

const (
	firstPause = 20 * time.Millisecond
	maxPause   = 2 * time.Second
)

// next is the length of the next pause.
func (p *retryPause) next() time.Duration {
	p.last = min(max(firstPause, p.last*2), maxPause)
	return p.last/2 + rand.N(p.last/2+1)
}

// reset makes the next pause the shortest again.
func (p *retryPause) reset() { p.last = 0 }

// wait pauses; false when ctx ended.
func (p *retryPause) wait(ctx context.Context) bool {
	return pauseFor(ctx, p.next())
}

// call is something to tell the dispatcher in the background.
type call struct {
	do func(context.Context) error
	// keep: repeat while the dispatcher is away, for as long as the session lives. Otherwise it is tried once.
	keep bool
	// mark, if not nil, is closed when its turn comes; there is nothing to do then.
	mark chan struct{}
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
	nudge(q.wake)
}

// behind gives a channel that is closed when everything that was added before is done.
func (q *callQueue) behind() <-chan struct{} {
	mark := make(chan struct{})
	q.add(call{mark: mark})
	return mark
}

// nudge wakes one waiter without ever blocking.
func nudge(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (q *callQueue) run() {
	ctx := q.link.ctx
	for {
		q.mu.Lock()
		if len(q.calls) == 0 {
			q.calls, q.busy = nil, false
			q.mu.Unlock()
			nudge(q.idle)
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
	if c.mark != nil {
		close(c.mark)
		return true
	}
	var pause retryPause
	for {
		limited, cancel := context.WithTimeout(ctx, callTimeout)
		err := c.do(limited)
		cancel()
		if ctx.Err() != nil {
			return false
		}
		q.link.observe(err)
		if err == nil || !c.keep || !isOutage(err) {
			if err != nil {
				q.link.log.Debug("dispatcher refused a report", "error", err)
			}
			return true
		}
		if !pause.wait(ctx) {
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
