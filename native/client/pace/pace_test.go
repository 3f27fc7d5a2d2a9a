package pace

import (
	"math"
	"testing"
	"time"
)

func near(got, want float64) bool { return math.Abs(got-want) <= 0.001*want+1e-9 }

// take lets a consumer take bursts of elements with a step between them.
func take(m *Meter, at time.Time, bursts, burst int, step, waited time.Duration) time.Time {
	for range bursts {
		for i := range burst {
			wait := waited
			if i > 0 {
				wait = 0
			}
			m.Took(at, 1, wait, func() int { return 3 })
		}
		at = at.Add(step)
	}
	return at
}

func TestSubWindowsHaveTheTimeBetweenElementsAndTheShareWaited(t *testing.T) {
	for name, c := range map[string]struct {
		burst        int
		step, waited time.Duration
		// seconds is the length of each sub-window.
		seconds float64
	}{
		"short steps":                     {1, 10 * time.Millisecond, 4 * time.Millisecond, 0.5},
		"steps longer than a sub-window":  {1, 2 * time.Second, time.Second, 2},
		"batches downstream":              {32, 300 * time.Millisecond, 150 * time.Millisecond, 0.6},
		"batches, one in each sub-window": {8, 700 * time.Millisecond, 0, 0.7},
	} {
		m, begun := &Meter{}, time.Unix(1000, 0)
		now := take(m, begun, 1+int(5*time.Second/c.step), c.burst, c.step, c.waited)
		report := m.Report(now)
		if len(report) < 2 {
			t.Fatalf("%s: %d sub-windows", name, len(report))
		}
		for i, sub := range report {
			if !near(sub.Seconds, c.seconds) || !near(sub.Seconds/float64(sub.Elements), c.step.Seconds()/float64(c.burst)) ||
				!near(sub.WaitedS/sub.Seconds, c.waited.Seconds()/c.step.Seconds()) || sub.Queue != 3 {
				t.Errorf("%s: sub-window %v", name, sub)
			}
			if i > 0 && (sub.Number != report[i-1].Number+1 || !near(report[i-1].AgeS-sub.AgeS, c.seconds)) {
				t.Errorf("%s: %v follows %v", name, sub, report[i-1])
			}
		}
	}
}

func TestAReportRepeatsTheNewestSubWindowsOnly(t *testing.T) {
	m := &Meter{}
	now := take(m, time.Unix(1000, 0), 1001, 1, 10*time.Millisecond, 0)
	report := m.Report(now)
	if len(report) != kept || report[kept-1].Number != 20 {
		t.Errorf("%d sub-windows, the last is %v", len(report), report[len(report)-1])
	}
}

func TestAPauseIsNoStep(t *testing.T) {
	m := &Meter{}
	now := take(m, time.Unix(1000, 0), 61, 1, 10*time.Millisecond, 0)
	m.Interrupt()
	m.Waited(time.Second)
	now = take(m, now.Add(time.Minute), 61, 1, 10*time.Millisecond, 2*time.Millisecond)
	report := m.Report(now)
	if len(report) != 2 {
		t.Fatalf("%d sub-windows", len(report))
	}
	for i, sub := range report {
		// The second sub-window has 10 steps before the pause and 40 after it.
		if !near(sub.Seconds/float64(sub.Elements), 0.01) || !near(sub.WaitedS, 0.08*float64(i)) || !near(sub.PausedS, 60.01*float64(i)) {
			t.Errorf("sub-window %v", sub)
		}
	}
}

func TestEpochsShorterThanASubWindowAreMeasured(t *testing.T) {
	m, now := &Meter{}, time.Unix(1000, 0)
	for range 20 {
		now = take(m, now, 11, 1, 10*time.Millisecond, 4*time.Millisecond).Add(90 * time.Millisecond)
		m.Interrupt()
	}
	report := m.Report(now)
	if len(report) != 4 {
		t.Fatalf("%d sub-windows of 20 epochs of 0.1 s", len(report))
	}
	for i, sub := range report {
		// The first sub-window begins with an element, each other one with a pause.
		if !near(sub.Seconds, 0.5) || sub.Elements != 50 || !near(sub.WaitedS, 0.2) || !near(sub.PausedS, []float64{0.4, 0.5, 0.5, 0.5}[i]) {
			t.Errorf("sub-window %v", sub)
		}
	}
}

func TestFruitlessWaitsCount(t *testing.T) {
	m, now := &Meter{}, time.Unix(1000, 0)
	for range 7 {
		m.Took(now, 1, 5*time.Millisecond, func() int { return 0 })
		m.Waited(80 * time.Millisecond)
		now = now.Add(100 * time.Millisecond)
	}
	if report := m.Report(now); len(report) != 1 || !near(report[0].WaitedS, 0.425) {
		t.Errorf("sub-windows %v, want a wait of 0.425 s", report)
	}
}
