package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/pecan-ml/pecan/policies/autoplacement"
	"github.com/pecan-ml/pecan/policies/autoscale"
)

// Policies are the compared policies by name. Each call returns one without state.
var Policies = []struct {
	Name string
	New  func() autoscale.Policy
}{
	{"search", func() autoscale.Policy { return autoplacement.NewSearch() }},
	{"pecan-paper", func() autoscale.Policy { return autoplacement.NewPaper() }},
	{"pecan-code", func() autoscale.Policy { return autoplacement.NewIncDec() }},
	{"cachew-paper", func() autoscale.Policy { return autoscale.CachewPaper() }},
	{"cachew-code", func() autoscale.Policy { return autoscale.CachewCode() }},
	{"hpa", func() autoscale.Policy { return autoscale.NewHPA() }},
	{"fastflow", func() autoscale.Policy { return autoscale.FastFlow }},
	{"collocated", func() autoscale.Policy { return autoscale.Collocated }},
}

// Line is the result of one policy on the surfaces of a family.
type Line struct {
	Family, Policy string
	// Median and High are the median and the 95th percentile of the regret of the last configuration. With95 is the
	// median windows until the policy first converged; policies that never do count all windows.
	Median, High float64
	Windows      float64
	// Bill is the mean bill with the search, over that of the best fixed configuration.
	Bill float64
	// Changes is the mean number of changes in the last 50 windows.
	Changes float64
}

// Run names one run of a comparison.
type Run struct {
	Family, Policy string
	Seed           uint64
	Steps          []Step
}

// Compare runs all policies on random surfaces of each family. All policies see the same surfaces. It calls each,
// if that is not nil, after each run.
func Compare(seeds, windows int, each func(Run)) (lines []Line) {
	for _, family := range Families {
		for _, p := range Policies {
			var regrets, converged []float64
			line := Line{Family: family, Policy: p.Name}
			for seed := range uint64(seeds) {
				s, g := Random(rand.New(rand.NewPCG(seed, 0)), family)
				steps := Noisy(s, g, windows).Run(p.New(), seed)
				if each != nil {
					each(Run{family, p.Name, seed, steps})
				}
				regrets = append(regrets, steps[len(steps)-1].Regret)
				converged = append(converged, float64(Converged(steps)))
				line.Bill += Bill(steps) / float64(seeds)
				line.Changes += float64(Changes(steps[max(0, len(steps)-50):])) / float64(seeds)
			}
			line.Median, line.High = Quantile(regrets, 0.5), Quantile(regrets, 0.95)
			line.Windows = Quantile(converged, 0.5)
			lines = append(lines, line)
		}
	}
	return lines
}

// Table returns the lines as text.
func Table(lines []Line) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-12s %-13s %8s %8s %8s %8s %8s\n", "family", "policy", "median", "95 %", "windows", "bill", "changes")
	for _, l := range lines {
		fmt.Fprintf(&b, "%-12s %-13s %7.1f%% %7.1f%% %8.0f %8.3f %8.2f\n", l.Family, l.Policy, 100*l.Median, 100*l.High, l.Windows, l.Bill, l.Changes)
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

// Quantile returns a quantile of the values.
func Quantile(values []float64, q float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}
