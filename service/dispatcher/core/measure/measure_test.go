package measure

import (
	"math"
	"testing"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

func near(got, want float64) bool { return math.Abs(got-want) <= 1e-6 }

func sub(number uint64, age, length float64, elements uint64, waited float64) *pecanv1.SubWindow {
	return &pecanv1.SubWindow{Number: number, AgeS: age, Seconds: length, Elements: elements, WaitedS: waited, Queue: 3}
}

func TestRepeatedSubWindowsCountOnce(t *testing.T) {
	c := &Consumer{}
	c.Add(10*time.Second, []*pecanv1.SubWindow{sub(1, 0.6, 0.5, 10, 0), sub(2, 0.1, 0.5, 10, 0.25)})
	c.Add(11*time.Second, []*pecanv1.SubWindow{sub(1, 1.6, 0.5, 10, 0), sub(2, 1.1, 0.5, 10, 0.25), sub(3, 0.6, 0.5, 20, 0.5), sub(4, 0.1, 0.5, 20, 0)})
	got := c.Since(0)
	if len(got) != 4 || c.Newest() != 10900*time.Millisecond || Gap(got) {
		t.Fatalf("sub-windows %v, a gap: %v", got, Gap(got))
	}
	for i, want := range []struct{ time, wait float64 }{{0.05, 0}, {0.05, 0.5}, {0.025, 1}, {0.025, 0}} {
		if !near(got[i].ElementTime(), want.time) || !near(got[i].Wait(), want.wait) {
			t.Errorf("sub-window %d has the element time %v and the wait %v, want %v", i+1, got[i].ElementTime(), got[i].Wait(), want)
		}
	}
	if since := c.Since(10 * time.Second); len(since) != 1 || since[0].End != c.Newest() {
		t.Errorf("since then: %v", since)
	}
	if m := Median(got, SubWindow.ElementTime); !near(m, 0.0375) {
		t.Errorf("the median is %v", m)
	}
	c.Add(12*time.Second, []*pecanv1.SubWindow{{Number: 5, Seconds: 0.5, Elements: 10, WaitedS: 0.25, PausedS: 1}})
	last := c.Since(0)[4]
	if last.Begin != 10500*time.Millisecond || !near(last.ElementTime(), 0.05) || !near(last.Wait(), 0.5) {
		t.Errorf("a sub-window with a pause: %v, %v s for an element, of which the share %v was waited", last, last.ElementTime(), last.Wait())
	}
}

func TestMissingReportsAndPausesAreGaps(t *testing.T) {
	for name, c := range map[string]struct {
		subs []*pecanv1.SubWindow
		gap  bool
	}{
		"in a row":             {[]*pecanv1.SubWindow{sub(1, 1.5, 0.5, 5, 0), sub(2, 1, 0.5, 5, 0), sub(3, 0.5, 0.5, 5, 0)}, false},
		"begins after a loss":  {[]*pecanv1.SubWindow{sub(7, 1, 0.5, 5, 0), sub(8, 0.5, 0.5, 5, 0)}, false},
		"a missing one":        {[]*pecanv1.SubWindow{sub(1, 1.5, 0.5, 5, 0), sub(3, 0.5, 0.5, 5, 0)}, true},
		"a pause":              {[]*pecanv1.SubWindow{sub(1, 6, 0.5, 5, 0), sub(2, 1, 5, 5, 0), sub(3, 0.5, 0.5, 5, 0)}, true},
		"a long wait":          {[]*pecanv1.SubWindow{sub(1, 6, 0.5, 5, 0), sub(2, 1, 5, 5, 4.8), sub(3, 0.5, 0.5, 5, 0)}, false},
		"a pause after a wait": {[]*pecanv1.SubWindow{sub(1, 6, 0.5, 5, 0), sub(2, 1, 5, 5, 1), sub(3, 0.5, 0.5, 5, 0)}, true},
		"long steps":           {[]*pecanv1.SubWindow{sub(1, 16, 8, 1, 0), sub(2, 8, 8, 1, 0), sub(3, 0, 8, 1, 0)}, false},
		"epochs in a row":      {[]*pecanv1.SubWindow{sub(1, 6, 0.5, 5, 0), {Number: 2, AgeS: 1, Seconds: 0.5, Elements: 5, PausedS: 0.4}}, false},
		"an evaluation":        {[]*pecanv1.SubWindow{sub(1, 6, 0.5, 5, 0), {Number: 2, AgeS: 1, Seconds: 0.5, Elements: 5, PausedS: 4}}, true},
	} {
		consumer := &Consumer{}
		consumer.Add(time.Minute, c.subs)
		if got := Gap(consumer.Since(0)); got != c.gap {
			t.Errorf("%s: a gap: %v", name, got)
		}
	}
}

func TestKeptSubWindowsAreBounded(t *testing.T) {
	c := &Consumer{}
	for n := range uint64(1000) {
		c.Add(time.Duration(n)*time.Second, []*pecanv1.SubWindow{sub(n+1, 0, 0.5, 1, 0)})
	}
	if got := c.Since(0); len(got) != keptSubWindows || got[0].Lost {
		t.Errorf("%d sub-windows are kept", len(got))
	}
}

func report(uptime, computed, blocked, cpu float64, sent uint64) *pecanv1.WorkerHeartbeat {
	return &pecanv1.WorkerHeartbeat{UptimeS: uptime, ComputedS: computed, BlockedS: blocked, CpuS: cpu, SentBytes: sent}
}

func TestRatesFollowTheWorkersOwnClock(t *testing.T) {
	w := &Worker{}
	if _, ok := w.Rates("a", 0); ok {
		t.Error("a worker without reports has rates")
	}
	w.Produced("a", 100)
	w.Add(10*time.Second, report(50, 20, 10, 5, 1000))
	if _, ok := w.Rates("a", 0); ok {
		t.Error("a worker with one report has rates")
	}
	w.Produced("a", 60)
	w.Produced("b", 20)
	// This heartbeat comes 500 ms late.
	w.Add(12500*time.Millisecond, report(52, 21.5, 12.5, 6, 9000))
	got, ok := w.Rates("a", 0)
	want := Rates{Busy: 1.5 / 4, CPU: 0.5, Elements: 30, Bytes: 4000, Share: 0.75}
	if !ok || !near(got.Busy, want.Busy) || !near(got.CPU, want.CPU) || !near(got.Elements, want.Elements) || !near(got.Bytes, want.Bytes) || !near(got.Share, want.Share) {
		t.Errorf("the rates are %+v, want %+v", got, want)
	}
	if _, ok := w.Rates("a", 11*time.Second); ok {
		t.Error("one report since then gives rates")
	}
	// A worker of an older version reports no times.
	w.Add(13*time.Second, &pecanv1.WorkerHeartbeat{CpuS: 9})
	if again, _ := w.Rates("a", 0); again != got {
		t.Errorf("a report without times changes the rates to %+v", again)
	}
	w.Add(14*time.Second, report(1, 0, 0, 0, 0))
	if _, ok := w.Rates("a", 0); ok {
		t.Error("the totals of two processes are compared")
	}
	w.Forget("a")
	w.Add(15*time.Second, report(2, 0, 0, 0, 0))
	if rates, ok := w.Rates("a", 0); !ok || rates.Elements != 0 || rates.Busy != 0 {
		t.Errorf("a forgotten job has %+v", rates)
	}
}

func TestStepsThatRunAheadInBuffersCountAsBusy(t *testing.T) {
	worked := func(sleep, parallel float64) []*pecanv1.NodeMetrics {
		return []*pecanv1.NodeMetrics{{Op: "SleepDataset", SelfCpuS: sleep}, {Op: "ParallelMapDatasetV2", SelfCpuS: parallel}}
	}
	w := &Worker{}
	w.Worked("a", worked(10, 100))
	w.Add(10*time.Second, report(50, 20, 10, 5, 0))
	w.Worked("a", worked(11, 150))
	// Two runs computed for 0.1 s and waited for 3.9 s, while the graphs filled their buffers.
	w.Add(12*time.Second, report(52, 20.1, 13.9, 5, 0))
	if got, ok := w.Rates("a", 0); !ok || !near(got.Busy, 0.25) {
		t.Errorf("the rates are %+v, want a busy share of 0.25", got)
	}
}
