// Package pace measures how fast a trainer takes elements and how long it waits for them, in sub-windows of about half a
// second. The dispatcher decides on workers by these figures, so they have to be those of the training loop.
//
// A sub-window begins and ends when an element is taken. A trainer that takes many elements at once, as with a batch
// downstream of distribute(), therefore has whole batches in each. A sub-window is longer than usual if a step is.
//
// The package reads no clock.
package pace

import (
	"sync"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

const (
	// length is the least length of a sub-window.
	length = 500 * time.Millisecond
	// kept is the number of sub-windows that a report repeats, so that lost heartbeats lose none.
	kept = 8
	// queuePeriod is the time between two looks at the queue.
	queuePeriod = 20 * time.Millisecond
)

// Meter measures what one consumer takes. The zero Meter is ready. It is safe for concurrent use.
type Meter struct {
	mu   sync.Mutex
	last []subWindow
	// number is the number of the newest sub-window.
	number uint64
	// begun is the begin of the current sub-window, zero without one. resumed is set if it is the first after an
	// interruption.
	begun    time.Time
	resumed  bool
	elements uint64
	waited   time.Duration
	queued   float64
	looks    int
	lookedAt time.Time
}

type subWindow struct {
	*pecanv1.SubWindow
	end time.Time
}

// Waited adds time in which the consumer waited and got nothing.
func (m *Meter) Waited(waited time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.waited += waited
}

// Took adds elements that the consumer got at the time now, after it waited for some time. queue returns the number of
// elements that are ready.
func (m *Meter) Took(now time.Time, elements int, waited time.Duration, queue func() int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.begun.IsZero() {
		m.begin(now)
		m.resumed = true
		return
	}
	m.elements += uint64(elements)
	m.waited += waited
	if now.Sub(m.lookedAt) >= queuePeriod {
		m.lookedAt = now
		m.queued += float64(queue())
		m.looks++
	}
	if now.Sub(m.begun) >= length {
		m.end(now)
	}
}

func (m *Meter) begin(now time.Time) {
	m.begun, m.resumed, m.elements, m.waited, m.queued, m.looks, m.lookedAt = now, false, 0, 0, 0, 0, time.Time{}
}

func (m *Meter) end(now time.Time) {
	m.number++
	seconds := now.Sub(m.begun).Seconds()
	done := &pecanv1.SubWindow{
		Number: m.number, Seconds: seconds, Elements: m.elements, WaitedS: min(m.waited.Seconds(), seconds), Queue: m.queued / float64(max(m.looks, 1)),
		Resumed: m.resumed,
	}
	if m.last = append(m.last, subWindow{done, now}); len(m.last) > kept {
		m.last = m.last[1:]
	}
	m.begin(now)
}

// Interrupt drops the current sub-window: an epoch or an iteration has ended. The training loop did not spend the time
// until the next element.
func (m *Meter) Interrupt() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.begun = time.Time{}
}

// Report returns the newest sub-windows, as a heartbeat at the time now sends them.
func (m *Meter) Report(now time.Time) (report []*pecanv1.SubWindow) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, each := range m.last {
		report = append(report, &pecanv1.SubWindow{
			Number: each.Number, AgeS: now.Sub(each.end).Seconds(), Seconds: each.Seconds, Elements: each.Elements, WaitedS: each.WaitedS,
			Queue: each.Queue, Resumed: each.Resumed,
		})
	}
	return report
}
