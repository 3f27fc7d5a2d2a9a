package autoplacement_test

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/pecan-ml/pecan/policies/autoplacement"
	"github.com/pecan-ml/pecan/policies/autoscale"
)

// outlier returns a window whose elements take longer by a factor.
func (j job) outlier(at configuration, factor float64) autoscale.Window {
	w := j.window(at)
	for i := range w.Consumers {
		c := &w.Consumers[i]
		for n := range c.ElementTimes {
			c.ElementTimes[n] *= factor
		}
		c.Waits = []float64{1 - (1-c.Waits[0])/factor}
	}
	for i := range w.Fleet {
		w.Fleet[i].Elements /= factor
	}
	return w
}

// pair is a goal with one or two remote workers. The second one costs 7.9 %.
func pair() autoscale.Goal {
	g := cheapest
	g.Limits = autoscale.Limits{Min: workers(1, 0), Max: workers(2, 0)}
	return g
}

// gaining is a job in which the price of an element falls by a share if a second remote worker serves.
func gaining(share float64) job {
	g := pair()
	return job{demand: 0.1, remote: (1 - share) * g.PerHour(workers(1, 0)) / g.PerHour(workers(2, 0)) / 0.1, local: 1}
}

func TestAGainBelowTheMarginChangesNothing(t *testing.T) {
	for share, want := range map[float64]configuration{0.015: workers(1, 0), 0.03: workers(2, 0)} {
		at := workers(1, 0)
		if d := gaining(share).run(autoplacement.NewSearch(), pair(), &at, 10); d.Target != want || !d.Converged {
			t.Errorf("a second worker gains %.1f %%: ends at %v (%s), want %v", 100*share, d.Target, d.Reason, want)
		}
	}
}

func TestASearchMeasuresItsChoiceTwice(t *testing.T) {
	j, p, g := job{demand: 0.1, remote: 20, local: 1}, autoplacement.NewSearch(), pair()
	if d := p.Next(g, j.window(workers(1, 0))); d.Converged || d.Target != workers(1, 0) {
		t.Errorf("after one window: %v, converged: %v", d.Target, d.Converged)
	}
	if d := p.Next(g, j.window(workers(1, 0))); !d.Converged || d.Target != workers(1, 0) {
		t.Errorf("after two windows: %v, converged: %v", d.Target, d.Converged)
	}
}

// A search that begins with an outlier compares everything with it. It measures it once more before it prefers others.
func TestASearchMeasuresAnOutlierOfTheBestAgain(t *testing.T) {
	j, p, g, at := gaining(-0.15), autoplacement.NewSearch(), pair(), workers(1, 0)
	p.Known = &autoplacement.Known{Workers: at, Remote: autoplacement.Curve{Rate: j.remote / 1.3, Exponent: 1}}
	at = p.Next(g, j.outlier(at, 1.3)).Target
	if d := j.run(p, g, &at, 10); d.Target != workers(1, 0) || !d.Converged {
		t.Errorf("ends at %v (%s), want 1 remote worker, which is 13 %% cheaper", d.Target, d.Reason)
	}
}

// A probe that is slower than predicted may be an outlier.
func TestASearchMeasuresASlowProbeAgain(t *testing.T) {
	j, p, at := job{demand: 0.1, remote: 2, local: 0.1}, autoplacement.NewSearch(), workers(1, 0)
	g := cheapest
	g.Limits.Max.Local = 0
	at = p.Next(g, j.window(at)).Target
	probe := at
	if d := p.Next(g, j.outlier(at, 1.3)); d.Target != probe || !strings.Contains(d.Reason, "slower than predicted") {
		t.Errorf("after a slow window of %v, %v is wanted: %s", probe, d.Target, d.Reason)
	}
}

func TestASearchEndsAfterNineWindows(t *testing.T) {
	for seed := range uint64(100) {
		rng, at, p := rand.New(rand.NewPCG(seed, 4)), workers(1, 1), autoplacement.NewSearch()
		j, d := job{demand: 0.05, remote: 1, local: 0.5}, autoscale.Decision{}
		for n := 0; !d.Converged; n++ {
			if n == 9 {
				t.Fatalf("seed %d: the search has not ended after %d windows: %s", seed, n, d.Reason)
			}
			d = p.Next(cheapest, j.outlier(at, math.Exp(0.2*rng.NormFloat64())))
			at = d.Target
		}
	}
}

// A worker may start later than the others. Only after three windows counts its kind as bounded.
func TestAMissingWorkerIsAwaitedForTwoWindows(t *testing.T) {
	for missing, want := range map[int]configuration{2: workers(5, 0), 3: workers(3, 0)} {
		j, p, at := job{demand: 0.1, remote: 2, local: 0.1}, autoplacement.NewSearch(), workers(1, 1)
		j.run(p, cheapest, &at, 12)
		var d autoscale.Decision
		for range missing {
			d = p.Next(cheapest, j.window(workers(3, 0)))
		}
		if d.Target != want {
			t.Errorf("after %d windows without two of five workers, %v is wanted (%s), want %v", missing, d.Target, d.Reason, want)
		}
	}
}

// A provider that cannot give more is asked again and again, at longer and longer intervals.
func TestMissingWorkersAreTriedLessAndLess(t *testing.T) {
	j, p, at := job{demand: 0.1, remote: 2, local: 0.1, available: 3}, autoplacement.NewSearch(), workers(1, 1)
	var began []int
	for n := range 200 {
		if d := j.run(p, cheapest, &at, 1); strings.Contains(d.Reason, "wanted workers are missing") {
			began = append(began, n)
		}
	}
	if len(began) < 3 || len(began) > 4 {
		t.Fatalf("in 200 windows, workers were found to be missing in windows %v", began)
	}
	for i := 2; i < len(began); i++ {
		if before, after := began[i-1]-began[i-2], began[i]-began[i-1]; after < before*3/2 {
			t.Errorf("workers were found to be missing in windows %v", began)
		}
	}
}

// What was measured with an earlier plan says nothing about the costs with the next one.
func TestWindowsOfAnEarlierPlanDoNotCount(t *testing.T) {
	j, p, at := job{demand: 0.1, remote: 2, local: 0.05}, autoplacement.NewSearch(), workers(1, 1)
	j.run(p, cheapest, &at, 12)
	j.plan, j.remote, j.local = 1, 3.4, 0.17
	if d := p.Next(cheapest, j.window(at)); d.Target != workers(3, 0) {
		t.Errorf("after one window with a third of the work, %v is wanted (%s), want 3 remote", d.Target, d.Reason)
	}
}

// A plan with less work makes local workers faster, too, although none was measured with it.
func TestANewPlanChangesBothKindsOfWorkers(t *testing.T) {
	j, p, at := job{demand: 0.1, remote: 2, local: 0.3}, autoplacement.NewSearch(), workers(1, 1)
	if d := j.run(p, cheapest, &at, 12); d.Target != workers(5, 0) {
		t.Fatalf("ends at %v (%s), want 5 remote", d.Target, d.Reason)
	}
	j.plan, j.remote, j.local = 1, 80, 12
	if d := j.run(p, cheapest, &at, 10); d.Target != workers(0, 1) || !d.Converged {
		t.Errorf("with a fortieth of the work, ends at %v (%s), want 1 local", d.Target, d.Reason)
	}
}

func TestEachDecisionIsWithinNewLimits(t *testing.T) {
	j, p, at, g := job{demand: 0.1, remote: 2, local: 0.05}, autoplacement.NewSearch(), workers(1, 1), cheapest
	j.run(p, g, &at, 12)
	g.Limits.Max.Remote = 4
	for n := range 5 {
		if d := p.Next(g, j.window(at)); d.Target.Remote > 4 {
			t.Errorf("window %d with a limit of 4 remote workers: %v is wanted (%s)", n, d.Target, d.Reason)
		} else {
			at = d.Target
		}
	}
}
