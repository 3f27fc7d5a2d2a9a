package sim_test

import (
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
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

// TestSearchFollowsChanges judges each change in two families, one of which has hosts with contention.
func TestSearchFollowsChanges(t *testing.T) {
	scenarios := slices.DeleteFunc(sim.ChangeScenarios(), func(s sim.Scenario) bool { return !slices.Contains(everyChange, s.Family) })
	sim.Compare(scenarios, sim.Policies[:1], seeds, collect(func(s *sim.Summary) {
		before, during, after := s.Regrets[sim.ChangeAt-1], s.Regrets[sim.ChangeAt], s.Final()
		t.Logf("%s, %s: 95th percentile of the regret before %.1f %%, at the change %.1f %%, after 10 windows %.1f %%; medians %.1f, %.1f, %.1f",
			s.Scenario, s.Family, 100*sim.Quantile(before, 0.95), 100*sim.Quantile(during, 0.95), 100*sim.Quantile(after, 0.95),
			100*sim.Quantile(before, 0.5), 100*sim.Quantile(during, 0.5), 100*sim.Quantile(after, 0.5))
		if median, high := sim.Quantile(after, 0.5), sim.Quantile(after, 0.95); median > 0.03 || high > 0.10 {
			t.Errorf("%s, %s: 10 windows later the regret is %.1f %% (median) and %.1f %% (95th percentile), want at most 3 %% and 10 %%", s.Scenario, s.Family, 100*median, 100*high)
		}
	}))
}

var everyChange = []string{"diminishing", "contention"}

// In each of the other families, 200 jobs have one of the changes each, and are judged together.
func TestSearchFollowsChangesInTheOtherFamilies(t *testing.T) {
	after := map[string][]float64{}
	for _, scenario := range sim.ChangeScenarios() {
		if slices.Contains(everyChange, scenario.Family) {
			continue
		}
		jobs := seeds / len(sim.AllChanges)
		sim.Compare([]sim.Scenario{scenario}, sim.Policies[:1], jobs, func(run sim.Run) {
			after[run.Family] = append(after[run.Family], run.Steps[len(run.Steps)-1].Regret)
		})
	}
	for family, regrets := range after {
		median, high := sim.Quantile(regrets, 0.5), sim.Quantile(regrets, 0.95)
		t.Logf("%s: 10 windows after a change, the regret of %d jobs is %.1f %% (median) and %.1f %% (95th percentile)", family, len(regrets), 100*median, 100*high)
		if median > 0.03 || high > 0.10 {
			t.Errorf("%s: 10 windows after a change, the regret is %.1f %% (median) and %.1f %% (95th percentile), want at most 3 %% and 10 %%", family, 100*median, 100*high)
		}
	}
}

// collect returns a function that sums up runs. It calls done with the summary of each scenario after its last run.
func collect(done func(*sim.Summary)) func(sim.Run) {
	report := &sim.Report{}
	return func(run sim.Run) {
		report.Add(run)
		if run.Seed == seeds-1 {
			done(report.Of(run.Scenario, run.Family, run.Policy))
		}
	}
}

func TestSearchSolvesThePublishedCurves(t *testing.T) {
	sim.Compare(sim.CurveScenarios(), sim.Policies[:1], seeds, collect(func(s *sim.Summary) {
		median, high, most := sim.Quantile(s.Final(), 0.5), sim.Quantile(s.Final(), 0.95), sim.Quantile(s.Converged, 1)
		t.Logf("%s, %s: regret %.1f %% (median), %.1f %% (95th percentile), at most %.0f windows", s.Family, s.Scenario, 100*median, 100*high, most)
		if median > 0.03 || high > 0.10 || most > 10 {
			t.Errorf("%s, %s: regret %.1f %% (median), %.1f %% (95th percentile), %.0f windows", s.Family, s.Scenario, 100*median, 100*high, most)
		}
	}))
}

func TestSearchHasTheLowestBillOfAllPolicies(t *testing.T) {
	report := &sim.Report{}
	sim.Compare(sim.StableScenarios(80), sim.Policies, 40, report.Add)
	t.Log("\n" + report.Table(sim.Stable))
	best := map[string]*sim.Summary{}
	for _, s := range report.Summaries {
		if b := best[s.Family]; b == nil || sim.Mean(s.Bills) < sim.Mean(b.Bills) {
			best[s.Family] = s
		}
	}
	for family, s := range best {
		if s.Policy != sim.Default {
			t.Errorf("%s: %s has the lowest bill", family, s.Policy)
		}
	}
}

func TestTheRegretComparesOnlyWithWorkersThatExist(t *testing.T) {
	s, g := sim.Random(rand.New(rand.NewPCG(3, 0)), "floor")
	j := sim.Noisy(s, g, 5)
	j.Events = []sim.Event{{Window: 0, Change: func(w *sim.World) { w.Available = &autoscale.Configuration{Remote: 1} }}}
	for _, step := range j.Run(autoscale.Fixed{Remote: 9, Local: 9}, 1)[1:] {
		if step.Workers != (autoscale.Configuration{Remote: 1}) || step.Regret != 0 {
			t.Errorf("with all workers that exist, %v, the regret is %v", step.Workers, step.Regret)
		}
	}
}

// Workers that are lost serve no further window, also while others start.
func TestLostWorkersServeNoFurtherWindow(t *testing.T) {
	s, g := sim.Random(rand.New(rand.NewPCG(3, 0)), "inverse")
	j := sim.Noisy(s, g, 3)
	j.Noise, j.SubNoise, j.Outliers, j.Start = 0, 0, 0, autoscale.Configuration{Remote: 8}
	j.Events = []sim.Event{{Window: 1, Change: func(w *sim.World) { w.Available = &autoscale.Configuration{Remote: 2} }}}
	step := j.Run(autoscale.Fixed{Remote: 8}, 1)[1]
	left := s.At(autoscale.Configuration{Remote: 2}).Time
	if want := left * sim.PublishedElements * float64(step.Windows); step.Windows < 2 || math.Abs(step.Seconds-want) > 1e-9*want {
		t.Errorf("%d windows with two of eight workers take %v s, want %v", step.Windows, step.Seconds, want)
	}
}

// hasty asks for eight workers, and for three as soon as it sees a window in which a change of workers settles.
type hasty struct{ wants int }

func (h *hasty) Next(_ autoscale.Goal, w autoscale.Window) autoscale.Decision {
	if !w.Settled {
		h.wants = 3
	}
	return autoscale.Decision{Target: autoscale.Configuration{Remote: h.wants}}
}

// A policy that does not wait until a change has settled is simulated like that.
func TestDecisionsCountWhileAChangeSettles(t *testing.T) {
	s, g := sim.Random(rand.New(rand.NewPCG(3, 0)), "inverse")
	for seed := range uint64(5) {
		if steps := sim.Noisy(s, g, 2).Run(&hasty{wants: 8}, seed); steps[1].Workers.Remote != 3 {
			t.Errorf("seed %d: %v serve, and 3 remote ones are wanted since the change of workers", seed, steps[1].Workers)
		}
	}
}

// Without noise, the time and the price of a job follow from its surface.
func TestTheTimeAndThePriceOfAnEpochFollowFromTheSurface(t *testing.T) {
	s, g := sim.Random(rand.New(rand.NewPCG(3, 0)), "floor")
	j := sim.Noisy(s, g, 4)
	j.Noise, j.SubNoise, j.Outliers, j.Start = 0, 0, 0, autoscale.Configuration{Remote: 4}
	price := g.Prices.Trainer*float64(s.Trainers) + 4*g.Prices.Remote
	taken := s.At(j.Start).Time
	near := func(what string, got, want float64) {
		if math.Abs(got-want) > 1e-9*want {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	steps := j.Run(autoscale.Fixed{Remote: 4}, 1)
	near("seconds of a window", steps[2].Seconds, taken*sim.PublishedElements)
	near("price of an epoch", sim.EpochPrice(steps), price/3600*taken*sim.EpochElements)
	// A change of workers takes one to three windows before it has settled. Their time is that of the workers before.
	after, settled := s.At(autoscale.Configuration{Remote: 5}).Time, map[int]bool{}
	for seed := range uint64(20) {
		step := j.Run(autoscale.Fixed{Remote: 5}, seed)[1]
		settled[step.Windows-1] = true
		near("seconds with a change", step.Seconds, (taken*float64(step.Windows-1)+after)*sim.PublishedElements)
	}
	if !reflect.DeepEqual(settled, map[int]bool{1: true, 2: true, 3: true}) {
		t.Errorf("changes settle after these windows: %v", settled)
	}
}

// The steps in the trainer's process are a stage of their own, and the workers have less work for an element.
func TestDividedStepsAreTwoStages(t *testing.T) {
	s := sim.Surface{Demand: 0.01, Remote: 10, RemoteExponent: 1, Local: 5, LocalExponent: 1, Steps: []float64{0.5, 0.4, 0.1}}
	for inTrainer, want := range []float64{30, 30 / 0.9, 5 / 0.5} {
		if got := 1 / s.Divided(autoscale.Configuration{Remote: 2, Local: 2}, inTrainer).Time; math.Abs(got-want) > 1e-9 {
			t.Errorf("%d of 3 steps in the trainer's process: %v elements per second, want %v", inTrainer, got, want)
		}
	}
	// The process takes processors from local workers.
	s.Cores, s.WorkerCores, s.SlowdownExponent = 2, 1, 1
	if truth := s.Divided(autoscale.Configuration{Remote: 2, Local: 2}, 1); truth.Load != 1.5 || math.Abs(truth.Local-10/0.9/1.5) > 1e-9 {
		t.Errorf("three local processes on two processors: %+v", truth)
	}
}

func TestFastFlowDividesTheSteps(t *testing.T) {
	divided := 0
	for seed := range uint64(20) {
		s, g := sim.Random(rand.New(rand.NewPCG(seed, 0)), "floor")
		j, workers := sim.Noisy(s, g, 12), autoscale.Configuration{Remote: 2, Local: 2}
		j.Noise, j.SubNoise, j.Outliers = 0, 0, 0
		last := j.Run(&autoscale.FastFlow{Steps: sim.Steps}, seed)[11]
		fastest := 0
		for n := range sim.Steps {
			if s.Divided(workers, n).Time < s.Divided(workers, fastest).Time {
				fastest = n
			}
		}
		workers.Local += min(fastest, 1)
		_, best := s.Best(g)
		regret := g.Score(workers, s.Divided(last.Workers, fastest).Time)/best - 1
		if last.Decision.InTrainer != fastest || math.Abs(last.Regret-regret) > 1e-9 {
			t.Errorf("seed %d: %d steps in the trainer's process and a regret of %v, want %d and %v", seed, last.Decision.InTrainer, last.Regret, fastest, regret)
		}
		divided += min(fastest, 1)
	}
	if divided == 0 {
		t.Error("no job divides its steps")
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
