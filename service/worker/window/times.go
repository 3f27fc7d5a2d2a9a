package window

import (
	"sync"
	"time"
)

// phase is what the run of a window does. A run that has produced nothing is idle: it may open files, or wait for other
// streams.
type phase int

const (
	idle phase = iota
	computing
	// blocked means that the run waits for room.
	blocked
)

// times are the sums over all windows of the process: how many runs are in each phase, and for how long.
var times struct {
	mu    sync.Mutex
	since time.Time
	runs  [blocked + 1]int
	spent [blocked + 1]time.Duration
}

// Times returns two sums over all runs since the process started: how long they have computed, and how long they have waited
// for room.
func Times() (computed, waited time.Duration) {
	times.mu.Lock()
	defer times.mu.Unlock()
	addTimes()
	return times.spent[computing], times.spent[blocked]
}

// addTimes adds the time since the last change. times.mu is held.
func addTimes() {
	now := time.Now()
	for p, n := range times.runs {
		times.spent[p] += time.Duration(n) * now.Sub(times.since)
	}
	times.since = now
}

// setPhase notes what the window's run does from now on. w.mu is held.
func (w *Window) setPhase(to phase) {
	if w.phase == to {
		return
	}
	times.mu.Lock()
	defer times.mu.Unlock()
	addTimes()
	if w.phase != idle {
		times.runs[w.phase]--
	}
	if to != idle {
		times.runs[to]++
	}
	w.phase = to
}

// mayCompute notes that the run has room. w.mu is held.
func (w *Window) mayCompute() {
	if w.phase == blocked {
		w.setPhase(computing)
	}
}
