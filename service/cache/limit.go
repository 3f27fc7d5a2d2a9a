package cache

import (
	"sync"
	"time"
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

// wait returns when this number of bytes may be written.
func (l *limit) wait(bytes int) {
	if l.perSecond <= 0 {
		return
	}
	l.mu.Lock()
	now := time.Now()
	if l.paid.Before(now) {
		l.paid = now
	}
	l.paid = l.paid.Add(time.Duration(float64(bytes) / l.perSecond * float64(time.Second)))
	pause := l.paid.Sub(now)
	l.waited += pause
	l.mu.Unlock()
	time.Sleep(pause)
}
