package main

import (
	"fmt"
	"strings"

	"github.com/pecan-ml/pecan/policies/sim"
)

// mark is a bound that the default policy must keep.
type mark struct {
	measured, bound string
	reached         bool
}

const (
	mostMedian, mostHigh = 0.03, 0.10
	mostWindows          = 10
	mostChanges          = 2
	// restfulShare is the share of the jobs that must keep mostChanges.
	restfulShare = 0.95
)

// marks judges the default policy.
func marks(r *sim.Report) (all []mark) {
	var stable, changes, curves []*sim.Summary
	for _, s := range r.Summaries {
		switch {
		case s.Policy != sim.Default:
		case s.Scenario == sim.Stable:
			stable = append(stable, s)
		case strings.HasPrefix(s.Scenario, sim.Curves):
			curves = append(curves, s)
		default:
			changes = append(changes, s)
		}
	}
	choice := func(s *sim.Summary) []float64 { return s.Choice }
	all = append(all,
		worst(stable, "price of the choice when it first converged, median", choice, 0.5, mostMedian),
		worst(stable, "price of the choice when it first converged, 95th percentile", choice, 0.95, mostHigh),
		windows(stable, "windows to converge, the most of all jobs that do not change"),
		settled(stable),
		restful(stable),
	)
	if len(changes) > 0 {
		what := fmt.Sprintf("price %d windows after a change, ", sim.FollowWindows)
		all = append(all, worst(changes, what+"median", (*sim.Summary).Final, 0.5, mostMedian), worst(changes, what+"95th percentile", (*sim.Summary).Final, 0.95, mostHigh))
	}
	if len(curves) > 0 {
		all = append(all,
			worst(curves, "published curves: price or time in the last window, median", (*sim.Summary).Final, 0.5, mostMedian),
			worst(curves, "published curves: price or time in the last window, 95th percentile", (*sim.Summary).Final, 0.95, mostHigh),
			windows(curves, "published curves: windows to converge, the most of all jobs"),
		)
	}
	return all
}

// worst judges a quantile of the regret of the scenario in which it is highest.
func worst(all []*sim.Summary, what string, values func(*sim.Summary) []float64, q, bound float64) mark {
	highest, where := -1.0, ""
	for _, s := range all {
		if v := sim.Quantile(values(s), q); v > highest {
			highest, where = v, placeOf(s)
		}
	}
	return mark{fmt.Sprintf("%s: %s above the best (%s)", what, percent(highest), where), fmt.Sprintf("≤ %.0f %%", 100*bound), highest <= bound}
}

// windows judges the windows until the searches ended, without those in which changes of workers settled. It says how many
// there are with them.
func windows(all []*sim.Summary, what string) mark {
	highest, where, elapsed, half := 0.0, "", 0.0, 0.0
	for _, s := range all {
		if v := sim.Quantile(s.Converged, 1); v > highest {
			highest, where = v, placeOf(s)
		}
		elapsed, half = max(elapsed, sim.Quantile(s.Elapsed, 1)), max(half, sim.Quantile(s.Elapsed, 0.5))
	}
	text := "%s: %.0f (%s); with the windows in which changes of workers settled: %.0f, and in half of the jobs of any kind at most %.0f"
	return mark{fmt.Sprintf(text, what, highest, where, elapsed, half), fmt.Sprintf("≤ %d, without those that settle", mostWindows), highest <= mostWindows}
}

// settled judges how often jobs change their workers on average.
func settled(all []*sim.Summary) mark {
	highest, where := 0.0, ""
	for _, s := range all {
		if v := sim.Mean(s.Changes); v >= highest {
			highest, where = v, placeOf(s)
		}
	}
	return mark{fmt.Sprintf("changes in the last 50 windows, mean: %.2f (%s)", highest, where), fmt.Sprintf("≤ %d", mostChanges), highest <= mostChanges}
}

// calm returns the share of the jobs that change their workers seldom.
func calm(s *sim.Summary) float64 {
	within := 0
	for _, changes := range s.Changes {
		if changes <= mostChanges {
			within++
		}
	}
	return float64(within) / float64(len(s.Changes))
}

// restful judges how many jobs change their workers seldom.
func restful(all []*sim.Summary) mark {
	lowest, where := 2.0, ""
	for _, s := range all {
		if within := calm(s); within < lowest {
			lowest, where = within, placeOf(s)
		}
	}
	return mark{
		fmt.Sprintf("jobs with at most %d changes in the last 50 windows: %s (%s)", mostChanges, percent(lowest), where),
		fmt.Sprintf("≥ %.0f %% of the jobs", 100*restfulShare), lowest >= restfulShare,
	}
}

func placeOf(s *sim.Summary) string {
	if s.Scenario == sim.Stable {
		return s.Family
	}
	return s.Family + ", " + s.Scenario
}
