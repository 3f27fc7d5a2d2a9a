package autoplacement_test

import (
	"strings"
	"testing"

	"github.com/pecan-ml/pecan/policies/autoplacement"
	"github.com/pecan-ml/pecan/policies/autoscale"
)

// job is a job without noise: trainers that take an element every demand seconds, and workers with fixed rates.
type job struct {
	demand, remote, local float64
	trainers              int
	plan                  uint64
	available             int
	// network bounds the elements per second of all remote workers, which then wait for room; 0 does not.
	network float64
}

func (j job) window(at configuration) autoscale.Window {
	n := max(j.trainers, 1)
	remote := j.remote
	if j.network > 0 {
		remote = min(remote, j.network/float64(max(at.Remote, 1)))
	}
	capacity := remote*float64(at.Remote) + j.local*float64(at.Local)
	elementTime := max(j.demand, float64(n)/capacity)
	busy := float64(n) / elementTime / capacity
	w := autoscale.Window{Workers: at, Settled: true, Plan: j.plan, Hosts: []autoscale.Host{{ID: "trainer", Load: 0.5}}}
	for range n {
		w.Consumers = append(w.Consumers, autoscale.Consumer{
			Host: "trainer", ElementTimes: []float64{elementTime, elementTime, 3 * elementTime}, Waits: []float64{1 - j.demand/elementTime},
		})
	}
	for range at.Remote {
		w.Fleet = append(w.Fleet, autoscale.Worker{Busy: busy * remote / j.remote, Elements: busy * remote})
	}
	for range at.Local {
		w.Fleet = append(w.Fleet, autoscale.Worker{Local: true, Busy: busy, Elements: busy * j.local})
	}
	return w
}

// run gives a policy windows of the workers that it wants, and returns the last decision.
func (j job) run(p autoscale.Policy, g autoscale.Goal, at *configuration, windows int) (d autoscale.Decision) {
	for range windows {
		if j.available > 0 {
			at.Remote = min(at.Remote, j.available)
		}
		d = p.Next(g, j.window(*at))
		*at = d.Target
	}
	return d
}

// cheapest is a goal in which local workers are cheaper than remote ones, and not free.
var cheapest = autoscale.Goal{
	Prices: autoscale.Prices{Trainer: 4.96, Remote: 0.427319, Local: 0.2},
	Limits: autoscale.Limits{Max: workers(20, 8)},
}

func TestSearchFindsTheCheapestWorkersWithoutNoise(t *testing.T) {
	within := func(l autoscale.Limits) autoscale.Goal { g := cheapest; g.Limits = l; return g }
	objective := func(o autoscale.Objective, budget float64) autoscale.Goal {
		g := cheapest
		g.Objective, g.Budget = o, budget
		return g
	}
	unpriced := cheapest
	unpriced.Prices = autoscale.Prices{}
	for _, c := range []struct {
		name string
		j    job
		g    autoscale.Goal
		want configuration
	}{
		{"spare processors first", job{demand: 0.1, remote: 1, local: 1}, cheapest, workers(2, 8)},
		{"local workers are too slow", job{demand: 0.1, remote: 2, local: 0.1}, cheapest, workers(5, 0)},
		{"one worker is enough", job{demand: 1, remote: 3, local: 3}, cheapest, workers(0, 1)},
		{"the trainer is faster than all workers", job{demand: 0.01, remote: 1, local: 1}, cheapest, workers(20, 8)},
		{"no local workers allowed", job{demand: 0.1, remote: 1, local: 1}, within(autoscale.Limits{Max: workers(20, 0)}), workers(10, 0)},
		{"no remote workers allowed", job{demand: 0.1, remote: 1, local: 1}, within(autoscale.Limits{Max: workers(0, 8)}), workers(0, 8)},
		{"a minimum above the need", job{demand: 1, remote: 3, local: 3}, within(autoscale.Limits{Min: workers(3, 1), Max: workers(5, 2)}), workers(3, 1)},
		{"two trainers need twice as many", job{demand: 0.2, remote: 1, local: 1, trainers: 2}, func() autoscale.Goal { g := cheapest; g.Trainers = 2; return g }(), workers(2, 8)},
		{"the network lets three workers through", job{demand: 0.1, remote: 1, local: 0.001, network: 3}, cheapest, workers(3, 0)},
		{"the network lets five workers through beside local ones", job{demand: 0.05, remote: 1, local: 0.5, network: 5}, cheapest, workers(5, 8)},
		{"time", job{demand: 0.1, remote: 1, local: 1}, objective(autoscale.Time, 0), workers(2, 8)},
		{"budget for five workers", job{demand: 0.1, remote: 1, local: 0.1}, func() autoscale.Goal { g := objective(autoscale.Budget, 7.2); g.Limits.Max.Local = 0; return g }(), workers(5, 0)},
		{"no prices", job{demand: 0.1, remote: 1, local: 1}, unpriced, workers(2, 8)},
	} {
		at := c.g.Limits.Clamp(workers(1, 1))
		d := c.j.run(autoplacement.NewSearch(), c.g, &at, 10)
		if d.Target != c.want || !d.Converged {
			t.Errorf("%s: ends at %v (%s: %s), want %v", c.name, d.Target, d.State, d.Reason, c.want)
		}
		if says := strings.Contains(d.Reason, "without prices"); says == c.g.Priced() {
			t.Errorf("%s: %q says that prices are missing: %v", c.name, d.Reason, says)
		}
	}
}

func TestAWarmStartIsConfirmedInTwoWindows(t *testing.T) {
	j, at := job{demand: 0.1, remote: 1, local: 1}, workers(1, 1)
	first := autoplacement.NewSearch()
	if first.Result() != nil {
		t.Error("a search that has not begun has a result")
	}
	cold := j.run(first, cheapest, &at, 12)
	later := autoplacement.NewSearch()
	later.Known = first.Result()
	at = workers(2, 8)
	warm := j.run(later, cheapest, &at, 2)
	if !warm.Converged || warm.Target != cold.Target {
		t.Errorf("the warm start is at %v (%s), want %v", warm.Target, warm.Reason, cold.Target)
	}
	if !(warm.SearchCost < cold.SearchCost/100) || !(cold.SearchCost > 0) {
		t.Errorf("the warm search cost %v and the cold one %v", warm.SearchCost, cold.SearchCost)
	}
}

// The windows before the better configuration was known are part of the cost.
func TestTheCostOfASearchIncludesItsEarlierWindows(t *testing.T) {
	j, at, p := job{demand: 0.1, remote: 1, local: 1}, workers(1, 1), autoplacement.NewSearch()
	var scores []float64
	var d autoscale.Decision
	for range 12 {
		w := j.window(at)
		w.Seconds = 3
		scores = append(scores, cheapest.Score(at, w.ElementTime()))
		d = p.Next(cheapest, w)
		if at = d.Target; d.Converged {
			break
		}
	}
	found := cheapest.Score(at, j.window(at).ElementTime())
	cost, lost := 0.0, 0.0
	for _, score := range scores {
		cost += max(0, score-found)
		lost += 3 * max(0, score-found) / score
	}
	near := func(a, b float64) bool { return a > 0.98*b && a < 1.02*b }
	if !d.Converged || cost < found || d.SearchWindows != len(scores) || !near(d.SearchCost, cost) || !near(d.SearchLost, lost) {
		t.Errorf("%d windows cost %v and %v s, want %d, %v and %v s; a window of the best costs %v", d.SearchWindows, d.SearchCost, d.SearchLost, len(scores), cost, lost, found)
	}
}

func TestAProbePaysForItselfInWhatIsLeftOfTheJob(t *testing.T) {
	// Two remote workers are 24.5 % cheaper than one. Two windows of a probe are 25 % of eight.
	j, g := job{demand: 0.1, remote: 7, local: 1}, cheapest
	g.Limits = autoscale.Limits{Min: workers(1, 0), Max: workers(2, 0)}
	for _, c := range []struct{ horizon, want int }{{0, 2}, {200, 2}, {10, 2}, {8, 1}, {1, 1}} {
		at, p := workers(1, 0), autoplacement.NewSearch()
		p.Horizon = c.horizon
		d := j.run(p, g, &at, 10)
		if d.Target != workers(c.want, 0) || !d.Converged {
			t.Errorf("with %d windows left, the search ends at %v (%s: %s), want %d remote workers", c.horizon, d.Target, d.State, d.Reason, c.want)
		}
		if c.want > 1 {
			continue
		}
		// The trainer begins further epochs.
		p.Horizon = 15
		if d = j.run(p, g, &at, 10); c.horizon == 8 && d.Target != workers(1, 0) {
			t.Errorf("with 15 windows left after %d, the search ends at %v (%s)", c.horizon, d.Target, d.Reason)
		}
		p.Horizon = 40
		if d = j.run(p, g, &at, 10); d.Target != workers(2, 0) || !d.Converged {
			t.Errorf("with 40 windows left after %d, the search ends at %v (%s: %s)", c.horizon, d.Target, d.State, d.Reason)
		}
	}
}

func TestUnusableWindowsChangeNothing(t *testing.T) {
	for _, c := range []struct {
		why    string
		change func(*autoscale.Window)
	}{
		{"reports of a trainer are missing", func(w *autoscale.Window) { w.Gap = true }},
		{"a training loop paused", func(w *autoscale.Window) { w.Gap, w.Paused = true, true }},
		{"other jobs began or ended on the workers", func(w *autoscale.Window) { w.Settled = false }},
		{"no trainer read for long enough", func(w *autoscale.Window) { w.Consumers = nil }},
		{"no trainer took elements", func(w *autoscale.Window) { w.Consumers[0].ElementTimes = []float64{0} }},
	} {
		p := autoplacement.NewSearch()
		j := job{demand: 0.1, remote: 1, local: 1}
		before := p.Next(cheapest, j.window(workers(1, 1))).Target
		unusable := j.window(workers(1, 1))
		change := c.change
		change(&unusable)
		for range 5 {
			if d := p.Next(cheapest, unusable); d.Target != before || d.Reason != "the window is not usable: "+c.why {
				t.Errorf("%s: the target changed to %v: %s", c.why, d.Target, d.Reason)
			}
		}
		unusable.Plan = 1
		if d := p.Next(cheapest, unusable); !strings.Contains(d.Reason, "the plan of the job changed; the window is not usable: "+c.why) {
			t.Errorf("%s, with another plan: %s", c.why, d.Reason)
		}
	}
}

// Trainers may take elements that were ready before a window. It then says nothing about workers, and ends no search.
func TestWindowsWithoutProductionEndNoSearch(t *testing.T) {
	p, j, at := autoplacement.NewSearch(), job{demand: 0.4, remote: 5, local: 5}, workers(1, 1)
	nothing := j.window(at)
	for i := range nothing.Fleet {
		nothing.Fleet[i].Busy, nothing.Fleet[i].Elements = 0.02, 0
	}
	for range 12 {
		if d := p.Next(cheapest, nothing); d.Converged || d.Target != at || p.Result() != nil {
			t.Fatalf("no worker has produced an element, and the decision is %v, converged %v: %s", d.Target, d.Converged, d.Reason)
		}
	}
	if d := j.run(p, cheapest, &at, 14); !d.Converged || d.Target != workers(0, 1) {
		t.Errorf("the decision is %v, converged %v: %s", d.Target, d.Converged, d.Reason)
	}
}

func TestMissingWorkersAreNotAwaitedForLong(t *testing.T) {
	j, at := job{demand: 0.1, remote: 2, local: 0.1, available: 3}, workers(1, 1)
	p := autoplacement.NewSearch()
	if d := j.run(p, cheapest, &at, 12); d.Target.Remote != 3 || !d.Converged {
		t.Errorf("wants %v (%s) of 3 remote workers, want all 3 of them", d.Target, d.Reason)
	}
	j.available = 0
	if d := j.run(p, cheapest, &at, 50); d.Target != workers(5, 0) || !d.Converged {
		t.Errorf("wants %v (%s) when enough exist again, want 5 remote", d.Target, d.Reason)
	}
}

func TestWorkersThatLeaveAreAwaited(t *testing.T) {
	j, p := job{demand: 0.1, remote: 2, local: 0.1}, autoplacement.NewSearch()
	at := workers(1, 1)
	before := j.run(p, cheapest, &at, 12)
	for range 20 {
		if d := p.Next(cheapest, j.window(workers(7, 1))); d.Target != workers(5, 0) || !d.Converged || d.SearchWindows != before.SearchWindows {
			t.Fatalf("wants %v (%s) after %d windows of searches while workers leave, want 5 remote after %d", d.Target, d.Reason, d.SearchWindows, before.SearchWindows)
		}
	}
}

func TestASearchAmongThousandsOfWorkersEndsNearTheBestPrice(t *testing.T) {
	for _, enough := range []int{99, 101, 737, 2000, 9999} {
		j, g, at := job{demand: 1 / float64(enough), remote: 1, local: 0.01}, cheapest, workers(1, 1)
		// The trainer is so expensive that the best price is at its full speed.
		g.Limits.Max, g.Prices.Trainer = workers(10_000, 8), 1e5
		price := func(c configuration) float64 {
			return g.PerHour(c) * max(j.demand, 1/(j.remote*float64(c.Remote)+j.local*float64(c.Local)))
		}
		if d := j.run(autoplacement.NewSearch(), g, &at, 12); !d.Converged || price(d.Target) > 1.02*price(workers(enough, 0)) {
			t.Errorf("ends at %v (%s: %s), want about %d remote workers", d.Target, d.State, d.Reason, enough)
		}
	}
}

func TestSearchFollowsChangesWithoutNoise(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*job, *autoscale.Goal)
		want   configuration
	}{
		{"nothing", func(*job, *autoscale.Goal) {}, workers(5, 0)},
		{"the trainer is half as fast", func(j *job, _ *autoscale.Goal) { j.demand *= 2.5 }, workers(2, 0)},
		{"the trainer is twice as fast", func(j *job, _ *autoscale.Goal) { j.demand /= 2 }, workers(10, 0)},
		{"a trainer twice as fast, behind the network", func(j *job, _ *autoscale.Goal) { j.network, j.demand = 8, 0.05 }, workers(4, 0)},
		{"a plan with a third of the work", func(j *job, _ *autoscale.Goal) { j.plan, j.remote, j.local = 1, 3.4, 0.17 }, workers(3, 0)},
		{"a new limit", func(_ *job, g *autoscale.Goal) { g.Limits.Max.Remote = 4 }, workers(4, 0)},
		{"local workers cost nothing", func(_ *job, g *autoscale.Goal) { g.Prices.Local = 0 }, workers(5, 0)},
	} {
		j, g, at, p := job{demand: 0.1, remote: 2, local: 0.05}, cheapest, workers(1, 1), autoplacement.NewSearch()
		j.run(p, g, &at, 12)
		c.change(&j, &g)
		if d := j.run(p, g, &at, 10); d.Target != c.want || !d.Converged {
			t.Errorf("%s: ends at %v (%s: %s), want %v", c.name, d.Target, d.State, d.Reason, c.want)
		}
	}
}

func TestADecisionNamesItsCandidates(t *testing.T) {
	at := workers(1, 1)
	var d autoscale.Decision
	p := autoplacement.NewSearch()
	for d = (job{demand: 0.1, remote: 1, local: 1}).run(p, cheapest, &at, 1); !d.Converged; {
		d = job{demand: 0.1, remote: 1, local: 1}.run(p, cheapest, &at, 1)
	}
	if len(d.Candidates) < 2 || d.Candidates[0].Workers != d.Target || d.Candidates[0].Windows < 2 {
		t.Errorf("the candidates are %+v, want the chosen one first with its windows", d.Candidates)
	}
}
