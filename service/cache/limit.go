package cache

import (
	"context"
	"sync"
	"time"

	"github.com/pecan-ml/pecan/service/internal/clock"
)

// limit bounds the bytes that are written in a second. Writers wait in turn. The zero value has no bound.
type limit struct {
	mu sync.Mutex
	// perSecond is a number of bytes; 0: no bound.
	perSecond float64
	// paid is the time at which all bytes so far may be written. waited is the sum of all waits.
	paid   time.Time
	waited time.Duration
}

// LimitWriting bounds the bytes that all writers of the directory write in a second, together; 0: no bound.
func (d *Dir) LimitWriting(perSecond int64) { d.limit.perSecond = float64(perSecond) }

// WriteWaited returns for how long writers have waited for the bound of LimitWriting.
func (d *Dir) WriteWaited() time.Duration {
	d.limit.mu.Lock()
	defer d.limit.mu.Unlock()
	return d.limit.waited
}

// wait returns when this number of bytes may be written, or with an error when ctx ends.
func (l *limit) wait(ctx context.Context, bytes int) error {
	if l.perSecond <= 0 {
		return nil
	}
	cost := time.Duration(float64(bytes) / l.perSecond * float64(time.Second))
	l.mu.Lock()
	now := time.Now()
	if l.paid.Before(now) {
		l.paid = now
	}
	l.paid = l.paid.Add(cost)
	pause := l.paid.Sub(now)
	l.waited += pause
	l.mu.Unlock()
	if clock.Sleep(ctx, pause) {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.paid = l.paid.Add(-cost)
	l.waited -= max(0, pause-time.Since(now))
	return ctx.Err()
}
