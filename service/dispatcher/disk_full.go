package dispatcher

import (
	"context"
	"sync"
	"time"

	"github.com/pecan-ml/pecan/proto/reason"
)

// diskGate is shut while the disk has no room for records. Decisions that were taken wait for it, nobody is told of them, and no more are taken; for
// the core that time does not pass, so nobody is timed out for it. What workers run goes on.
type diskGate struct {
	mu sync.Mutex
	// why it is shut, and since when; nil: it is open.
	why   *reason.Error
	since time.Duration
	// changed is closed and replaced whenever it is shut or opened.
	changed chan struct{}
}

func newDiskGate() *diskGate { return &diskGate{changed: make(chan struct{})} }

// state gives why the gate is shut, or nil, and what is closed when that changes.
func (g *diskGate) state() (*reason.Error, <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.why, g.changed
}

// set shuts the gate or opens it, and tells whether that is a change.
func (g *diskGate) set(why *reason.Error, now time.Duration) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if (g.why == nil) == (why == nil) {
		return false
	}
	g.why, g.since = why, now
	close(g.changed)
	g.changed = make(chan struct{})
	return true
}

// coreTime is the core's: it stands still while the gate is shut.
func (g *diskGate) coreTime(now time.Duration) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.why != nil {
		return g.since
	}
	return now
}

// waitForDisk waits until the gate is open; false when the dispatcher stops or ctx ends before.
func (d *Dispatcher) waitForDisk(ctx context.Context) bool {
	for {
		why, changed := d.diskGate.state()
		if why == nil {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		case <-d.stopping:
			return false
		}
	}
}

// holdBack puts decisions that the disk has no room for back in front of all others.
func (d *Dispatcher) holdBack(entries []*entry, cause error) {
	d.mu.Lock()
	d.pending = append(entries, d.pending...)
	d.mu.Unlock()
	why := diskFull()
	if d.diskGate.set(why, d.deps.Clock.Now()) {
		d.deps.Log.Error("the disk is full: nothing new starts until space is freed", "error", cause)
	}
}

// diskFull tells a peer what is the matter without telling it where the store lies.
func diskFull() *reason.Error {
	return reason.New(reason.StoreFull, "the disk of the dispatcher's work directory has less space than its reserve: running streams continue, and nothing new starts until space is freed; the dispatcher's log has details")
}

// diskHasRoom opens the gate after a write.
func (d *Dispatcher) diskHasRoom() {
	if d.diskGate.set(nil, 0) {
		d.deps.Log.Info("the disk has space again")
	}
}
