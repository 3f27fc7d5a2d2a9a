// Package pace measures how fast a trainer takes elements and how long it waits for them, in sub-windows of about half a
// second. The dispatcher decides on workers by these figures, so they have to be those of the training loop.
//
// A sub-window begins and ends when an element is taken. A trainer that takes many elements at once, as with a batch
// downstream of distribute(), therefore has whole batches in each. A sub-window is longer than usual if a step is.
//
// A sub-window may go on over the end of an epoch, because epochs may be shorter than it. The time from the last element of an
// epoch to the first one of the next is a pause: the training loop did not spend it on steps, so it does not count.
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
	// begun is the begin of the current sub-window, zero without one. It moves with each pause, so that pauses do not count. taken
	// is when the last element was taken, and paused is the sum of the pauses in the sub-window. interrupted is set during one.
	begun, taken time.Time
	paused       time.Duration
	interrupted  bool
	elements     uint64
	waited       time.Duration
	queued       float64
	looks        int
	lookedAt     time.Time
}

type subWindow struct {
	*pecanv1.SubWindow
	end time.Time
}

// Waited adds time in which the consumer waited and got nothing.
func (m *Meter) Waited(waited time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.interrupted {
		m.waited += waited
	}
}

// Took adds elements that the consumer got at the time now, after it waited for some time. queue returns the number of
// elements that are ready.
func (m *Meter) Took(now time.Time, elements int, waited time.Duration, queue func() int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := m.taken
	m.taken = now
	switch {
	case m.begun.IsZero():
		m.begin(now)
		return
	case m.interrupted:
		// The first element of an epoch ends the pause.
		m.interrupted = false
		m.paused += now.Sub(before)
		m.begun = m.begun.Add(now.Sub(before))
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
	m.begun, m.paused, m.elements, m.waited, m.queued, m.looks, m.lookedAt = now, 0, 0, 0, 0, 0, time.Time{}
}

func (m *Meter) end(now time.Time) {
	m.number++
	seconds := now.Sub(m.begun).Seconds()
	done := &pecanv1.SubWindow{
		Number: m.number, Seconds: seconds, Elements: m.elements, WaitedS: min(m.waited.Seconds(), seconds), Queue: m.queued / float64(max(m.looks, 1)),
		PausedS: m.paused.Seconds(),
	}
	if m.last = append(m.last, subWindow{done, now}); len(m.last) > kept {
		m.last = m.last[1:]
	}
	m.begin(now)
}

// Interrupt begins a pause: an epoch or an iteration has ended. The next element ends it.
func (m *Meter) Interrupt() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.interrupted = true
}

// Report returns the newest sub-windows, as a heartbeat at the time now sends them.
func (m *Meter) Report(now time.Time) (report []*pecanv1.SubWindow) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, each := range m.last {
		report = append(report, &pecanv1.SubWindow{
			Number: each.Number, AgeS: now.Sub(each.end).Seconds(), Seconds: each.Seconds, Elements: each.Elements, WaitedS: each.WaitedS,
			Queue: each.Queue, PausedS: each.PausedS,
		})
	}
	return report
}
