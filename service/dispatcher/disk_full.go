package dispatcher

import (
	"context"
	"sync"
	"time"

	"github.com/pecan-ml/pecan/proto/reason"
)

// diskGate is shut while the disk has no space for records. Pending decisions wait and are not released, and no
// new ones are taken. The core's time stands still meanwhile, so nobody times out. Running streams continue.
type diskGate struct {
	mu sync.Mutex
	// why the gate is shut, and since when; nil if it is open.
	why   *reason.Error
	since time.Duration
	// changed is closed and replaced when the gate changes.
	changed chan struct{}
}

func newDiskGate() *diskGate { return &diskGate{changed: make(chan struct{})} }

// state returns why the gate is shut (nil if it is open), and a channel that is closed when that changes.
func (g *diskGate) state() (*reason.Error, <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.why, g.changed
}

// set shuts or opens the gate, and reports whether that is a change.
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

// coreTime returns the core's time. It stands still while the gate is shut.
func (g *diskGate) coreTime(now time.Duration) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.why != nil {
		return g.since
	}
	return now
}

// waitForDisk waits until the gate is open. It returns false if the dispatcher stops or ctx ends first.
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

// holdBack puts decisions that the disk has no space for back in front of all others.
func (d *Dispatcher) holdBack(entries []*entry, cause error) {
	d.mu.Lock()
	d.pending = append(entries, d.pending...)
	d.mu.Unlock()
	why := diskFull()
	if d.diskGate.set(why, d.deps.Clock.Now()) {
		d.deps.Log.Error("the disk is full: nothing new starts until space is freed", "error", cause)
	}
}

// diskFull is the error for peers. It does not reveal the path of the store.
func diskFull() *reason.Error {
	return reason.New(reason.StoreFull, "the disk of the dispatcher's work directory has less space than its reserve: running streams continue, and nothing new starts until space is freed; the dispatcher's log has details")
}

// diskHasRoom opens the gate after a write.
func (d *Dispatcher) diskHasRoom() {
	if d.diskGate.set(nil, 0) {
		d.deps.Log.Info("the disk has space again")
	}
}
