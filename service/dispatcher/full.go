package dispatcher

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pecan-ml/pecan/proto/reason"
)

// gate is shut while the disk has no room for records. Decisions that were taken wait for it, nobody is told of them, and no more are taken; for
// the core that time does not pass, so nobody is timed out for it. What workers run goes on.
type gate struct {
	mu sync.Mutex
	// why it is shut, and since when; nil: it is open.
	why   *reason.Error
	since time.Duration
	// changed is closed and replaced whenever it is shut or opened.
	changed chan struct{}
}

func newGate() *gate { return &gate{changed: make(chan struct{})} }

// look gives why the gate is shut, or nil, and what is closed when that changes.
func (g *gate) look() (*reason.Error, <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.why, g.changed
}

// set shuts the gate or opens it, and tells whether that is a change.
func (g *gate) set(why *reason.Error, now time.Duration) bool {
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

// time is the core's: it stands still while the gate is shut.
func (g *gate) time(now time.Duration) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.why != nil {
		return g.since
	}
	return now
}

// pass waits until the gate is open; false when the dispatcher stops or ctx ends before.
func (d *Dispatcher) pass(ctx context.Context) bool {
	for {
		why, changed := d.gate.look()
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

// hold puts decisions that the disk has no room for back in front of all others.
func (d *Dispatcher) hold(entries []*entry, cause error) {
	d.mu.Lock()
	d.pending = append(entries, d.pending...)
	d.mu.Unlock()
	why := diskFull()
	if d.gate.set(why, d.deps.Clock.Now()) {
		d.deps.Log.Error("the disk is full: nothing new is begun until there is room", "error", cause)
	}
}

// diskFull tells a peer what is the matter without telling it where the store lies.
func diskFull() *reason.Error {
	return reason.New(reason.StoreFull, "the disk of the dispatcher's work directory has less room than is kept in reserve: what is being read goes on, and nothing new is begun until somebody makes room; the dispatcher's log says more")
}

// release opens the gate after a write.
func (d *Dispatcher) release() {
	if d.gate.set(nil, 0) {
		d.deps.Log.Info("the disk has room again")
	}
}

// isFull is 1 while the gate is shut.
func (m *metrics) isFull(out chan<- prometheus.Metric) {
	value := 0.0
	if why, _ := m.d.gate.look(); why != nil {
		value = 1
	}
	out <- prometheus.MustNewConstMetric(m.full, prometheus.GaugeValue, value)
}
