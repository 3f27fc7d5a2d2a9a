package autoplacement_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/pecan-ml/pecan/policies/autoplacement"
	"github.com/pecan-ml/pecan/policies/autoscale"
)

type configuration = autoscale.Configuration

func workers(remote, local int) configuration { return configuration{Remote: remote, Local: local} }

var published = autoscale.Goal{Prices: autoscale.Published, Limits: autoscale.Limits{Max: configuration{Remote: 20, Local: 10}}}

func window(at configuration, elementTime float64) autoscale.Window {
	return autoscale.Window{Workers: at, Settled: true, Consumers: []autoscale.Consumer{{ElementTimes: []float64{elementTime}}}}
}

// follow runs a policy until it converges, and returns the configurations of the windows and the last target.
// With keepLocal no local worker is removed, as in the published dispatcher.
func follow(p autoscale.Policy, at configuration, keepLocal bool, elementTime func(configuration) float64) (path []configuration) {
	for range 100 {
		path = append(path, at)
		d := p.Next(published, window(at, elementTime(at)))
		if keepLocal {
			d.Target.Local = max(d.Target.Local, at.Local)
		}
		at = d.Target
		if d.Converged {
			return append(path, at)
		}
	}
	return path
}

// span returns the configurations from one to another, in steps of one worker.
func span(a, b configuration) (all []configuration) {
	step := func(from, to int) int { return min(max(to-from, -1), 1) }
	for {
		all = append(all, a)
		if a == b {
			return all
		}
		a.Remote, a.Local = a.Remote+step(a.Remote, b.Remote), a.Local+step(a.Local, b.Local)
	}
}

func TestIncDecTakesThePathOfThePublishedLogs(t *testing.T) {
	// Seconds per 500 elements in the published log of ResNet on a TPU v2-8. The hiccups took 24.3 to 26.2.
	remoteOnly := []float64{199, 98, 66, 50, 40, 33, 28, 25, 22.6, 19.6, 18.7, 17.4, 19.3}
	hiccups := map[configuration]float64{workers(12, 6): 24.5, workers(11, 9): 25, workers(3, 10): 24.3}
	resnet := func(c configuration) float64 {
		if seconds, is := hiccups[c]; is {
			return seconds
		}
		if c.Local == 0 {
			return remoteOnly[c.Remote-1]
		}
		return 19.4
	}
	forced := autoplacement.NewIncDec()
	forced.Forced = true
	for _, c := range []struct {
		name      string
		p         autoscale.Policy
		keepLocal bool
		time      func(configuration) float64
		want      [][]configuration
	}{
		{"ResNet", forced, true, resnet, [][]configuration{
			span(workers(1, 0), workers(13, 0)), span(workers(12, 1), workers(12, 6)),
			span(workers(11, 6), workers(11, 9)), {workers(10, 9)}, span(workers(10, 10), workers(3, 10)), {workers(4, 10)},
		}},
		{"RetinaNet", autoplacement.NewIncDec(), false, func(c configuration) float64 { return 20 + 15*float64(max(0, 2-c.Remote-c.Local)) }, [][]configuration{
			span(workers(1, 0), workers(3, 0)), span(workers(2, 1), workers(2, 10)), {workers(1, 10), workers(0, 10), workers(0, 10)},
		}},
	} {
		if got, want := follow(c.p, configuration{Remote: 1}, c.keepLocal, c.time), slices.Concat(c.want...); !slices.Equal(got, want) {
			t.Errorf("%s: went\n%v, want\n%v", c.name, got, want)
		}
	}
}

// TestIncDecDecidesByCostAtThePublishedThresholds checks the thresholds in closed form.
func TestIncDecDecidesByCostAtThePublishedThresholds(t *testing.T) {
	for _, c := range []struct {
		remote    int
		threshold float64
		add       bool
	}{
		{1, 0.0735, true}, {5, 0.0568, true}, {10, 0.0442, true}, {18, 0.0327, true},
		{12, 0.0424, false}, {9, 0.0485, false}, {3, 0.0685, false}, {0, 0.0862, false},
	} {
		for _, above := range []bool{false, true} {
			r := c.threshold - 0.0003
			if above {
				r = c.threshold + 0.0003
			}
			p := autoplacement.NewIncDec()
			p.ByCost = true
			var d autoscale.Decision
			if c.add {
				p.Next(published, window(configuration{Remote: c.remote}, 1))
				d = p.Next(published, window(configuration{Remote: c.remote + 1}, 1-r))
				if grows := d.Target.Remote == c.remote+2; grows != above {
					t.Errorf("gain %.4f from %d to %d remote workers: adds one more: %v", r, c.remote, c.remote+1, grows)
				}
				continue
			}
			// Go to the state in which remote workers are removed, at all local ones.
			p.MaxLocal = 1
			p.Next(published, window(configuration{Remote: c.remote + 1}, 1))
			p.Next(published, window(configuration{Remote: c.remote + 2}, 1))
			p.Next(published, window(configuration{Remote: c.remote + 1, Local: 1}, 1))
			d = p.Next(published, window(configuration{Remote: c.remote, Local: 1}, 1+r))
			if restored := d.Target.Remote == c.remote+1; restored != above {
				t.Errorf("loss %.4f at %d remote workers: restores one: %v", r, c.remote, restored)
			}
		}
	}
}

func TestPublishedPoliciesIgnoreWindowsOfOtherConfigurations(t *testing.T) {
	for name, p := range map[string]autoscale.Policy{"paper": autoplacement.NewPaper(), "code": autoplacement.NewIncDec()} {
		before := p.Next(published, window(configuration{Remote: 1}, 10)).Target
		if after := p.Next(published, window(configuration{Remote: 7}, 1)).Target; after != before {
			t.Errorf("%s: the target changed from %v to %v", name, before, after)
		}
	}
}

func TestThePapersAlgorithmEndsWhereNeitherPhaseChangesAnything(t *testing.T) {
	for _, c := range []struct {
		name string
		// local is the rate of a local worker relative to a remote one; harm the slowdown per local worker above 5.
		local, harm float64
		want        configuration
	}{
		{"local workers as fast as remote ones replace all", 1.2, 0, workers(0, 10)},
		{"local workers harm from the sixth", 1, 0.05, workers(5, 5)},
		{"local workers do nothing", 0, 0, workers(10, 10)},
	} {
		path := follow(autoplacement.NewPaper(), configuration{Remote: 1}, false, func(at configuration) float64 {
			return max(19.9, 199/(float64(at.Remote)+c.local*float64(at.Local))) * (1 + c.harm*math.Max(0, float64(at.Local-5)))
		})
		if got := path[len(path)-1]; got != c.want {
			t.Errorf("%s: ended at %v, want %v: %s", c.name, got, c.want, fmt.Sprint(path))
		}
	}
}

// The second phase compares prices, whatever the objective is. Without prices, it compares them at the proportions of Goal.PerHour.
func TestThePapersAlgorithmRemovesRemoteWorkersByPrice(t *testing.T) {
	budget := published
	budget.Objective, budget.Budget = autoscale.Budget, 1
	byTime, unpriced := published, published
	byTime.Objective, unpriced.Prices = autoscale.Time, autoscale.Prices{}
	for name, g := range map[string]autoscale.Goal{"cost": published, "time": byTime, "budget": budget, "no prices": unpriced} {
		g.Limits.Max.Local = 0
		p, at := autoplacement.NewPaper(), configuration{Remote: 1}
		var path []configuration
		for range 30 {
			path = append(path, at)
			// The sixth worker gains 3.2 %, and costs 6.0 % with the published prices and 6.7 % without prices.
			d := p.Next(g, window(at, []float64{199, 100, 67, 51, 31, 30}[min(at.Remote, 6)-1]))
			if at = d.Target; d.Converged {
				break
			}
		}
		if at != workers(5, 0) {
			t.Errorf("%s: went over %v, want to end with 5 remote workers", name, path)
		}
	}
}
