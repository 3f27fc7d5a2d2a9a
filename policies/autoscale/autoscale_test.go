package autoscale_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/pecan-ml/pecan/policies/autoscale"
)

// window returns a measurement window in which every sub-window has the same time.
func window(remote int, elementTime, queue float64) autoscale.Window {
	return autoscale.Window{
		Workers: autoscale.Configuration{Remote: remote}, Settled: true,
		Consumers: []autoscale.Consumer{{ElementTimes: []float64{elementTime, elementTime}, Queue: queue}},
	}
}

// follow runs a policy on the times for 1, 2 … remote workers and returns the remote workers of each window.
func follow(p autoscale.Policy, g autoscale.Goal, times []float64, windows int) (path []int) {
	at := 1
	for range windows {
		path = append(path, at)
		at = min(p.Next(g, window(at, times[at-1], 1)).Target.Remote, len(times))
	}
	return path
}

var unbounded = autoscale.Goal{Prices: autoscale.Published, Limits: autoscale.Limits{Max: autoscale.Configuration{Remote: 100, Local: 10}}}

func TestCachewConvergesOnThePublishedCurvesAsPublished(t *testing.T) {
	for _, c := range []struct {
		name  string
		p     autoscale.Policy
		times []float64
		want  int
	}{
		// The step from 4 to 5 workers gains 7.2 % in the first curve and loses 0.8 % in the second.
		{"first curve, 3 %", autoscale.CachewPaper(), []float64{1735, 875, 650, 555, 515, 505, 497, 497}, 5},
		{"second curve, 3 %", autoscale.CachewPaper(), []float64{1437, 697, 430, 388, 391, 390}, 4},
		{"first curve, 7 %", autoscale.CachewCode(), []float64{1735, 875, 650, 555, 515, 505, 497, 497}, 5},
		{"second curve, 7 %", autoscale.CachewCode(), []float64{1437, 697, 430, 388, 391, 390}, 4},
		{"ResNet on a TPU v2-8, 3 %", autoscale.CachewPaper(), []float64{199, 98, 66, 50, 40, 33, 28, 25, 22.6, 19.6, 18.7, 17.4, 19.3}, 12},
	} {
		path := follow(c.p, unbounded, c.times, 20)
		if got := path[len(path)-1]; got != c.want {
			t.Errorf("%s: converged to %d workers by %v, want %d", c.name, got, path, c.want)
		}
	}
}

func TestConvergedCachewSearchesAgainWhenTheTimeGrows(t *testing.T) {
	for _, c := range []struct {
		name  string
		p     autoscale.Policy
		queue float64
		want  int
	}{
		{"paper", autoscale.CachewPaper(), 1, 3},
		{"paper, empty queue", autoscale.CachewPaper(), 0, 3},
		{"code", autoscale.CachewCode(), 1, 3},
		{"code, empty queue: its fault", autoscale.CachewCode(), 0, 2},
	} {
		for _, w := range []autoscale.Window{window(1, 10, c.queue), window(2, 5, c.queue), window(3, 5, c.queue)} {
			c.p.Next(unbounded, w)
		}
		at := 0
		for range 21 {
			at = max(at, c.p.Next(unbounded, window(2, 9, c.queue)).Target.Remote)
		}
		if at != c.want {
			t.Errorf("%s: wants %d workers, want %d", c.name, at, c.want)
		}
	}
}

// A cache that is complete, for example, changes what an element costs. Nothing of the earlier plan counts then.
func TestCachewStartsAtOneWorkerWhenThePlanChanges(t *testing.T) {
	for name, p := range map[string]*autoscale.Cachew{"paper": autoscale.CachewPaper(), "code": autoscale.CachewCode()} {
		times := []float64{20, 10, 5, 4, 4, 4}
		if path := follow(p, unbounded, times, 12); path[11] != 4 {
			t.Fatalf("%s: converged over %v, want 4 workers", name, path)
		}
		w := window(4, 1, 1)
		w.Plan = 1
		if d := p.Next(unbounded, w); d.Target.Remote != 1 || d.Converged || !strings.Contains(d.Reason, "plan") {
			t.Errorf("%s: with another plan, %d workers are wanted (converged: %v, %q), want 1", name, d.Target.Remote, d.Converged, d.Reason)
		}
		// With the new plan, a second worker is enough.
		at := 1
		var path []int
		for range 8 {
			path = append(path, at)
			w = window(at, max(1, 2/float64(at)), 1)
			w.Plan = 1
			at = p.Next(unbounded, w).Target.Remote
		}
		if !slices.Equal(path, []int{1, 2, 3, 2, 2, 2, 2, 2}) {
			t.Errorf("%s: with another plan the search went over %v, want 1, 2, 3 and then 2 workers", name, path)
		}
	}
}

func TestHPAFollowsTheFormulaOfKubernetes(t *testing.T) {
	for _, c := range []struct {
		name      string
		now       int
		use       float64
		want      int
		afterward int
	}{
		{"within the tolerance", 4, 0.85, 4, 4},
		{"above it", 4, 1, 5, 5},
		{"at most twice as many at once", 10, 8, 20, 20},
		{"at most four more at once", 1, 8, 5, 5},
		{"shrinks only after the stabilisation time", 4, 0.4, 4, 2},
	} {
		h := autoscale.NewHPA()
		w := window(c.now, 1, 0)
		for range c.now {
			w.Fleet = append(w.Fleet, autoscale.Worker{CPU: c.use})
		}
		// An earlier recommendation keeps the number.
		if c.want == c.now {
			busy := w
			busy.Fleet = nil
			for range c.now {
				busy.Fleet = append(busy.Fleet, autoscale.Worker{CPU: h.Target})
			}
			h.Next(unbounded, busy)
		}
		w.End = 10
		if got := h.Next(unbounded, w).Target.Remote; got != c.want {
			t.Errorf("%s: wants %d workers, want %d", c.name, got, c.want)
		}
		w.End = 400
		if got := h.Next(unbounded, w).Target.Remote; got != c.afterward {
			t.Errorf("%s: later wants %d workers, want %d", c.name, got, c.afterward)
		}
	}
}

func TestFixedPoliciesKeepTheirNumbersWithinTheLimits(t *testing.T) {
	narrow := autoscale.Goal{Limits: autoscale.Limits{Max: autoscale.Configuration{Remote: 1, Local: 1}}}
	for _, c := range []struct {
		p    autoscale.Policy
		g    autoscale.Goal
		want autoscale.Configuration
	}{
		{&autoscale.FastFlow{}, unbounded, autoscale.Configuration{Remote: 2, Local: 2}},
		{&autoscale.FastFlow{}, narrow, autoscale.Configuration{Remote: 1, Local: 1}},
		{autoscale.Collocated, unbounded, autoscale.Configuration{Local: 1}},
	} {
		if d := c.p.Next(c.g, autoscale.Window{}); d.Target != c.want || !d.Converged {
			t.Errorf("%v wants %v, want %v", c.p, d.Target, c.want)
		}
	}
}

// FastFlow measures each way to divide the steps once, when its workers are there, and keeps the fastest.
func TestFastFlowKeepsTheFastestWayToDivideTheSteps(t *testing.T) {
	f, inTrainer := &autoscale.FastFlow{Steps: 4}, 0
	var tried []int
	for n, times := range [][]float64{{9}, {4}, {2}, {1}, {3}, {0.5}} {
		w := autoscale.Window{Settled: true, Workers: autoscale.Configuration{Remote: 2, Local: 2}, Consumers: []autoscale.Consumer{{ElementTimes: times}}}
		if n == 0 {
			w.Workers = autoscale.Configuration{Remote: 1, Local: 1}
		}
		tried = append(tried, inTrainer)
		d := f.Next(unbounded, w)
		if inTrainer = d.InTrainer; d.Converged != (n >= 4) {
			t.Errorf("window %d: %v", n, d)
		}
	}
	if !slices.Equal(tried, []int{0, 0, 1, 2, 3, 2}) || inTrainer != 2 {
		t.Errorf("windows had %v steps in the trainer, and then it has %d", tried, inTrainer)
	}
	// A window that the default policy does not use counts.
	rough := autoscale.Window{Gap: true, Workers: autoscale.Configuration{Remote: 2, Local: 2}, Consumers: []autoscale.Consumer{{ElementTimes: []float64{1}}}}
	f = &autoscale.FastFlow{Steps: 4}
	if d := f.Next(unbounded, rough); d.InTrainer != 1 {
		t.Errorf("after a window with a gap: %v", d)
	}
	// Without elements, a window has no time.
	rough.Consumers = nil
	if d := f.Next(unbounded, rough); d.InTrainer != 1 {
		t.Errorf("after a window without elements: %v", d)
	}
	// Without local workers, nothing may run on the trainer's host.
	remote := unbounded
	remote.Limits.Max.Local = 0
	if d := (&autoscale.FastFlow{Steps: 4}).Next(remote, autoscale.Window{}); d.Target != (autoscale.Configuration{Remote: 2}) || d.InTrainer != 0 || !d.Converged {
		t.Errorf("without local workers: %v", d)
	}
}

func TestObjectivesOrderConfigurations(t *testing.T) {
	few, many := autoscale.Configuration{Remote: 4}, autoscale.Configuration{Remote: 12}
	goal := func(o autoscale.Objective, p autoscale.Prices, budget float64) autoscale.Goal {
		g := unbounded
		g.Objective, g.Prices, g.Budget = o, p, budget
		return g
	}
	for _, c := range []struct {
		name              string
		g                 autoscale.Goal
		fewTime, manyTime float64
		few               bool
	}{
		{"cost: 10 % faster for 51 % more", goal(autoscale.Cost, autoscale.Published, 0), 1, 0.9, true},
		{"cost: three times as fast for 51 % more", goal(autoscale.Cost, autoscale.Published, 0), 1, 0.33, false},
		{"time: 10 % faster", goal(autoscale.Time, autoscale.Published, 0), 1, 0.9, false},
		{"time: 1 % faster for 51 % more", goal(autoscale.Time, autoscale.Published, 0), 1, 0.99, true},
		{"budget excludes the faster one", goal(autoscale.Budget, autoscale.Published, 8), 1, 0.5, true},
		{"budget includes the faster one", goal(autoscale.Budget, autoscale.Published, 11), 1, 0.5, false},
		{"no prices: full speed", goal("", autoscale.Prices{}, 0), 1, 0.9, false},
		{"no prices: fewest workers at full speed", goal("", autoscale.Prices{}, 0), 1, 1, true},
	} {
		if got := c.g.Score(few, c.fewTime) < c.g.Score(many, c.manyTime); got != c.few {
			t.Errorf("%s: prefers few workers: %v, want %v", c.name, got, c.few)
		}
		if err := c.g.Validate(); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestTheBillOfThePublishedRunsIsThePublishedBill(t *testing.T) {
	g := autoscale.Goal{Prices: autoscale.Prices{Trainer: 4.96, Remote: 0.42}}
	perEpoch := g.Score(autoscale.Configuration{Remote: 4, Local: 10}, 1251*1024/3233.9/3600)
	if math.Abs(perEpoch-(0.546+0.185)) > 0.001 {
		t.Errorf("an epoch with 4 remote workers costs $%.3f, want 0.731", perEpoch)
	}
}

func TestInvalidGoalsAreRefused(t *testing.T) {
	limits := autoscale.Limits{Max: autoscale.Configuration{Remote: 1}}
	for name, g := range map[string]autoscale.Goal{
		"negative price":        {Prices: autoscale.Prices{Remote: -1}, Limits: limits},
		"price without a value": {Prices: autoscale.Prices{Trainer: math.NaN()}, Limits: limits},
		"no worker":             {},
		"minimum above maximum": {Limits: autoscale.Limits{Min: autoscale.Configuration{Local: 2}, Max: autoscale.Configuration{Remote: 1, Local: 1}}},
		"unknown objective":     {Objective: "speed", Limits: limits},
		"budget without prices": {Objective: autoscale.Budget, Budget: 1, Limits: limits},
	} {
		if g.Validate() == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestWindowsWithoutASteadyStateAreNotUsable(t *testing.T) {
	for name, change := range map[string]func(*autoscale.Window){
		"gap":          func(w *autoscale.Window) { w.Gap = true },
		"not settled":  func(w *autoscale.Window) { w.Settled = false },
		"no elements":  func(w *autoscale.Window) { w.Consumers = nil },
		"stopped":      func(w *autoscale.Window) { w.Consumers[0].ElementTimes = []float64{math.Inf(1)} },
		"negative gap": func(w *autoscale.Window) { w.Consumers[0].ElementTimes = []float64{-10} },
	} {
		w := window(1, 1, 0)
		if !w.Usable() {
			t.Fatal("a steady window is not usable")
		}
		if change(&w); w.Usable() {
			t.Errorf("%s: usable", name)
		}
	}
}
