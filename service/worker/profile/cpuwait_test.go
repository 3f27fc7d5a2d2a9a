package profile

import (
	"math"
	"testing"
	"time"
)

func TestTimeBeyondThatOfAllCoresIsWaiting(t *testing.T) {
	w, now := cpuWait{}, time.Unix(1000, 0)
	w.begin(now)
	step := func(after time.Duration, all, counted, want float64) {
		t.Helper()
		now = now.Add(after)
		if got := w.update(now, all, counted, 2); math.Abs(got-want) > 1e-9 {
			t.Errorf("after %.3g s of all steps and %.3g s that count: waited %.3g s, want %.3g s", all, counted, got, want)
		}
	}
	step(time.Second, 2, 2, 0)
	// Four threads on two cores wait for half of their time, and a half of them counts.
	step(time.Second, 6, 4, 1)
	// A short interval waits for the next one.
	step(100*time.Millisecond, 7, 5, 1)
	step(900*time.Millisecond, 10, 8, 3)
	// Idle cores do not make up for it.
	step(10*time.Second, 11, 9, 3)
	// A pause without a stream does not count as time of the cores.
	now = now.Add(time.Hour)
	w.begin(now)
	step(time.Second, 15, 13, 5)
}
