package sim

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pecan-ml/pecan/policies/autoplacement"
	"github.com/pecan-ml/pecan/policies/autoscale"
)

// Named is a policy with its name. New returns one without state.
type Named struct {
	Name string
	New  func() autoscale.Policy
}

// Policies are the compared policies, Pecan's default first.
var Policies = []Named{
	{Default, func() autoscale.Policy { return autoplacement.NewSearch() }},
	{"pecan-paper", func() autoscale.Policy { return autoplacement.NewPaper() }},
	{"pecan-code", func() autoscale.Policy { return autoplacement.NewIncDec() }},
	{"cachew-paper", func() autoscale.Policy { return autoscale.CachewPaper() }},
	{"cachew-code", func() autoscale.Policy { return autoscale.CachewCode() }},
	{"hpa", func() autoscale.Policy { return autoscale.NewHPA() }},
	{"fastflow", func() autoscale.Policy { return &autoscale.FastFlow{Steps: Steps} }},
	{"collocated", func() autoscale.Policy { return autoscale.Collocated }},
}

// Default is the name of the policy that the dispatcher uses.
const Default = "search"

// Run is one run of a comparison.
type Run struct {
	Scenario, Family, Policy string
	Seed                     uint64
	Steps                    []Step
}

// Compare runs policies on the jobs of scenarios with the seeds 0, 1, … and calls each after each run. All policies see
// the same jobs.
func Compare(scenarios []Scenario, policies []Named, seeds int, each func(Run)) {
	for _, s := range scenarios {
		for _, p := range policies {
			for seed := range uint64(seeds) {
				each(Run{s.Name, s.Family, p.Name, seed, s.Job(seed).Run(p.New(), seed)})
			}
		}
	}
}

// Report sums up runs.
type Report struct {
	// Summaries are in the order of their first runs.
	Summaries []*Summary
}

// Summary has a value for each run of a policy in a scenario.
type Summary struct {
	Scenario, Family, Policy string
	// Regrets has the regrets of each window. Converged is the number of windows until the policy first converged, all
	// windows if it never did. Choice is the regret of the window after that.
	Regrets           [][]float64
	Converged, Choice []float64
	// Elapsed is Converged with the windows in which changes of workers settled.
	Elapsed []float64
	// Seconds is the time of the windows until the policy first converged. Prices are those of an epoch of EpochElements
	// elements, the mean of the whole job with the search, if the goal is the cost.
	Seconds, Prices []float64
	// Bills are those of whole jobs with the search, over those of the best fixed configurations. Changes are the
	// numbers of changes in the last 50 windows.
	Bills, Changes []float64
}

// stableWindows is the number of windows in which changes are counted.
const stableWindows = 50

// Add adds a run.
func (r *Report) Add(run Run) {
	s := r.Of(run.Scenario, run.Family, run.Policy)
	if s == nil {
		s = &Summary{Scenario: run.Scenario, Family: run.Family, Policy: run.Policy, Regrets: make([][]float64, len(run.Steps))}
		r.Summaries = append(r.Summaries, s)
	}
	for i, step := range run.Steps {
		s.Regrets[i] = append(s.Regrets[i], step.Regret)
	}
	n := Converged(run.Steps)
	s.Converged = append(s.Converged, float64(n))
	s.Choice = append(s.Choice, run.Steps[min(n, len(run.Steps)-1)].Regret)
	seconds, elapsed := 0.0, 0
	for _, step := range run.Steps[:n] {
		seconds, elapsed = seconds+step.Seconds, elapsed+step.Windows
	}
	s.Seconds, s.Elapsed = append(s.Seconds, seconds), append(s.Elapsed, float64(elapsed))
	s.Prices = append(s.Prices, EpochPrice(run.Steps))
	s.Bills = append(s.Bills, Bill(run.Steps))
	s.Changes = append(s.Changes, float64(Changes(run.Steps[max(0, len(run.Steps)-stableWindows):])))
}

// Of returns the summary of a policy in a scenario; nil without one.
func (r *Report) Of(scenario, family, policy string) *Summary {
	// The newest is the most likely one.
	for _, s := range slices.Backward(r.Summaries) {
		if s.Scenario == scenario && s.Family == family && s.Policy == policy {
			return s
		}
	}
	return nil
}

// Final returns the regrets of the last window.
func (s *Summary) Final() []float64 { return s.Regrets[len(s.Regrets)-1] }

// Table returns the summaries of a scenario as text.
func (r *Report) Table(scenario string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-12s %-13s %8s %8s %8s %8s %8s\n", "family", "policy", "median", "95 %", "windows", "bill", "changes")
	for _, s := range r.Summaries {
		if s.Scenario == scenario {
			fmt.Fprintf(&b, "%-12s %-13s %7.1f%% %7.1f%% %8.0f %8.3f %8.2f\n", s.Family, s.Policy, 100*Quantile(s.Final(), 0.5), 100*Quantile(s.Final(), 0.95),
				Quantile(s.Converged, 0.5), Mean(s.Bills), Mean(s.Changes))
		}
	}
	return b.String()
}

// Converged returns the number of windows before the policy first converged.
func Converged(steps []Step) int {
	if i := slices.IndexFunc(steps, func(s Step) bool { return s.Decision.Converged }); i >= 0 {
		return i + 1
	}
	return len(steps)
}

// Changes returns how often the configuration changed.
func Changes(steps []Step) (n int) {
	for i := 1; i < len(steps); i++ {
		if steps[i].Workers != steps[i-1].Workers {
			n++
		}
	}
	return n
}

// Bill returns the bill of a run over that of the best fixed configuration at each time.
func Bill(steps []Step) float64 {
	var bill, best float64
	for _, s := range steps {
		bill, best = bill+s.Bill, best+s.Best
	}
	return bill / best
}

// EpochElements is the number of elements of an epoch for which a price is given.
const EpochElements = 10_000

// EpochPrice returns the mean price of an epoch, if the scores are prices per hour × seconds for an element.
func EpochPrice(steps []Step) float64 {
	bill, windows := 0.0, 0
	for _, s := range steps {
		bill, windows = bill+s.Bill, windows+s.Windows
	}
	return bill / float64(windows) * EpochElements / 3600
}

// Quantile returns a quantile of the values.
func Quantile(values []float64, q float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

// Mean returns the mean of the values.
func Mean(values []float64) float64 {
	sum := 0.0
	for _, v := range values {
		sum += v / float64(len(values))
	}
	return sum
}
