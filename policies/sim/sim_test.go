package sim_test

import (
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/pecan-ml/pecan/policies/autoplacement"
	"github.com/pecan-ml/pecan/policies/autoscale"
	"github.com/pecan-ml/pecan/policies/sim"
)

const seeds = 200

// runs runs the default policy on random surfaces of a family.
func runs(family string, windows int, change func(*rand.Rand, *sim.Job)) (all [][]sim.Step) {
	for seed := range uint64(seeds) {
		rng := rand.New(rand.NewPCG(seed, 0))
		s, g := sim.Random(rng, family)
		job := sim.Noisy(s, g, windows)
		if change != nil {
			change(rng, &job)
		}
		all = append(all, job.Run(autoplacement.NewSearch(), seed))
	}
	return all
}

// regrets returns the regret of each run in a window.
func regrets(all [][]sim.Step, window int) (values []float64) {
	for _, steps := range all {
		values = append(values, steps[window].Regret)
	}
	return values
}

// TestSearchConvergesNearTheBestFixedConfiguration runs 1,200 jobs: 200 of each family.
func TestSearchConvergesNearTheBestFixedConfiguration(t *testing.T) {
	for _, family := range sim.Families {
		all := runs(family, 60, nil)
		var windows, final []float64
		within := 0
		for _, steps := range all {
			n := sim.Converged(steps)
			windows = append(windows, float64(n))
			final = append(final, steps[min(n, len(steps)-1)].Regret)
			if changes := sim.Changes(steps[10:]); changes <= 2 {
				within++
			}
		}
		median, high := sim.Quantile(final, 0.5), sim.Quantile(final, 0.95)
		t.Logf("%s: regret median %.1f %%, 95 %% %.1f %%; windows median %.0f, most %.0f; at most 2 changes in 50 windows: %d of %d",
			family, 100*median, 100*high, sim.Quantile(windows, 0.5), sim.Quantile(windows, 1), within, len(all))
		if median > 0.03 || high > 0.10 {
			t.Errorf("%s: the regret is %.1f %% (median) and %.1f %% (95th percentile), want at most 3 %% and 10 %%", family, 100*median, 100*high)
		}
		if most := sim.Quantile(windows, 1); most > 10 {
			t.Errorf("%s: a search took %.0f windows, want at most 10", family, most)
		}
		if within < len(all)*95/100 {
			t.Errorf("%s: only %d of %d runs changed at most twice in 50 windows", family, within, len(all))
		}
	}
}

func TestSearchDoesNotOscillate(t *testing.T) {
	for _, family := range []string{"diminishing", "dips"} {
		changes := 0
		for seed := range uint64(50) {
			s, g := sim.Random(rand.New(rand.NewPCG(seed, 0)), family)
			steps := sim.Noisy(s, g, 510).Run(autoplacement.NewSearch(), seed)
			changes += sim.Changes(steps[10:])
		}
		per := float64(changes) / 50 / 10
		t.Logf("%s: %.2f changes in 50 windows without a change of the job", family, per)
		if per > 1 {
			t.Errorf("%s: %.2f changes in 50 windows without a change of the job, want at most 1 on average", family, per)
		}
	}
}

func TestSearchFollowsSlowDrift(t *testing.T) {
	all := runs("diminishing", 110, func(_ *rand.Rand, j *sim.Job) { j.Drift = 0.01 })
	final := regrets(all, 109)
	median, high := sim.Quantile(final, 0.5), sim.Quantile(final, 0.95)
	t.Logf("after the demand grew by a factor of 3, the regret is %.1f %% (median) and %.1f %% (95th percentile)", 100*median, 100*high)
	if median > 0.05 || high > 0.15 {
		t.Errorf("after the demand grew by a factor of 3, the regret is %.1f %% (median) and %.1f %% (95th percentile)", 100*median, 100*high)
	}
}

func TestSearchFollowsChanges(t *testing.T) {
	const at = 25
	changes := map[string]func(*sim.World){
		"trainer half as fast":       func(w *sim.World) { w.Surface.Demand *= 2 },
		"trainer twice as fast":      func(w *sim.World) { w.Surface.Demand /= 2 },
		"remote workers cost double": func(w *sim.World) { w.Goal.Prices.Remote *= 2 },
		"new plan, half the work": func(w *sim.World) {
			w.Plan, w.Surface.Remote, w.Surface.Local = 1, 2*w.Surface.Remote, 2*w.Surface.Local
		},
		"the host gets other work": func(w *sim.World) { w.Surface.TrainerCores += 30 },
		"fewer remote workers exist": func(w *sim.World) {
			w.Available = &autoscale.Configuration{Remote: 4, Local: 10}
		},
	}
	for name, change := range changes {
		for _, family := range []string{"diminishing", "contention"} {
			all := runs(family, at+11, func(_ *rand.Rand, j *sim.Job) { j.Events = []sim.Event{{Window: at, Change: change}} })
			if name == "fewer remote workers exist" {
				// The best configuration is the best of those that exist.
				for seed, steps := range all {
					s, g := sim.Random(rand.New(rand.NewPCG(uint64(seed), 0)), family)
					g.Limits.Max.Remote = 4
					_, lowest := s.Best(g)
					for i := at; i < len(steps); i++ {
						steps[i].Regret = g.Score(steps[i].Workers, s.At(steps[i].Workers).Time)/lowest - 1
					}
				}
			}
			before, during, after := regrets(all, at-1), regrets(all, at), regrets(all, at+10)
			t.Logf("%s, %s: 95th percentile of the regret before %.1f %%, at the change %.1f %%, after 10 windows %.1f %%; medians %.1f, %.1f, %.1f",
				name, family, 100*sim.Quantile(before, 0.95), 100*sim.Quantile(during, 0.95), 100*sim.Quantile(after, 0.95),
				100*sim.Quantile(before, 0.5), 100*sim.Quantile(during, 0.5), 100*sim.Quantile(after, 0.5))
			if median, high := sim.Quantile(after, 0.5), sim.Quantile(after, 0.95); median > 0.03 || high > 0.10 {
				t.Errorf("%s, %s: 10 windows later the regret is %.1f %% (median) and %.1f %% (95th percentile), want at most 3 %% and 10 %%", name, family, 100*median, 100*high)
			}
		}
	}
}

// TestSearchSolvesThePublishedCurves runs the curves of the Cachew artifact (four V100) and the published log of
// Pecan (TPU v2-8), in seconds per epoch and per 500 elements.
func TestSearchSolvesThePublishedCurves(t *testing.T) {
	for name, curve := range map[string][]float64{
		"ResNet, first run":  {1735, 875, 650, 555, 515, 505, 497, 497},
		"ResNet, second run": {1437, 697, 430, 388, 391, 390},
		"ResNet on a TPU":    {199, 98, 66, 50, 40, 33, 28, 25, 22.6, 19.6, 19.6, 19.6, 19.6},
	} {
		for _, objective := range []autoscale.Objective{autoscale.Cost, autoscale.Time} {
			g := autoscale.Goal{
				Objective: objective, Prices: autoscale.Published,
				Limits: autoscale.Limits{Min: autoscale.Configuration{Remote: 1}, Max: autoscale.Configuration{Remote: len(curve)}},
			}
			var final, windows []float64
			for seed := range uint64(seeds) {
				steps := sim.Noisy(sim.Surface{Curve: curve}, g, 20).Run(autoplacement.NewSearch(), seed)
				final, windows = append(final, steps[19].Regret), append(windows, float64(sim.Converged(steps)))
			}
			median, high, most := sim.Quantile(final, 0.5), sim.Quantile(final, 0.95), sim.Quantile(windows, 1)
			t.Logf("%s, %s: regret %.1f %% (median), %.1f %% (95th percentile), at most %.0f windows", name, objective, 100*median, 100*high, most)
			if median > 0.03 || high > 0.10 || most > 10 {
				t.Errorf("%s, %s: regret %.1f %% (median), %.1f %% (95th percentile), %.0f windows", name, objective, 100*median, 100*high, most)
			}
		}
	}
}

func TestSearchHasTheLowestBillOfAllPolicies(t *testing.T) {
	lines := sim.Compare(40, 80, nil)
	t.Log("\n" + sim.Table(lines))
	best := map[string]sim.Line{}
	for _, l := range lines {
		if b, has := best[l.Family]; !has || l.Bill < b.Bill {
			best[l.Family] = l
		}
	}
	for family, l := range best {
		if l.Policy != "search" {
			t.Errorf("%s: %s has the lowest bill", family, l.Policy)
		}
	}
}

func TestARunFollowsFromItsSeed(t *testing.T) {
	s, g := sim.Random(rand.New(rand.NewPCG(7, 0)), "dips")
	run := func(seed uint64) []sim.Step { return sim.Noisy(s, g, 30).Run(autoplacement.NewSearch(), seed) }
	if !reflect.DeepEqual(run(1), run(1)) {
		t.Error("two runs with one seed differ")
	}
	if reflect.DeepEqual(run(1), run(2)) {
		t.Error("runs with different seeds are equal")
	}
}
