package autoplacement

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/pecan-ml/pecan/policies/autoscale"
)

// trial compares a challenger with a given true difference, window by window, until a decision. outliers is the share of windows
// with 30 % more or less.
func trial(rng *rand.Rand, difference float64, knownWindows int, outliers float64) (verdict, int) {
	var challenger, known []float64
	draw := func(mean float64) float64 {
		if rng.Float64() < outliers {
			mean += math.Log([]float64{0.7, 1.3}[rng.IntN(2)])
		}
		return mean + noise*rng.NormFloat64()
	}
	for range knownWindows {
		known = append(known, draw(0))
	}
	for n := 1; ; n++ {
		challenger = append(challenger, draw(difference))
		v := compare(autoscale.Median(challenger)-autoscale.Median(known), n, knownWindows)
		if v != undecided {
			return v, n
		}
	}
}

func TestComparisonsErrAtMostAtTheStatedRate(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	const trials = 20_000
	for _, knownWindows := range []int{2, 3, 10} {
		for _, c := range []struct {
			difference float64
			wrong      verdict
		}{{indifference, better}, {-indifference, worse}, {2 * indifference, better}, {-2 * indifference, worse}} {
			wrong, windows := 0, 0
			for range trials {
				v, n := trial(rng, c.difference, knownWindows, 0)
				if windows += n; v == c.wrong {
					wrong++
				}
				if n > mostWindows {
					t.Fatalf("a comparison took %d windows", n)
				}
			}
			if rate := float64(wrong) / trials; rate > errorRate {
				t.Errorf("difference %+.2f, %d windows of the best known: %.1f %% wrong, want at most %.0f %%", c.difference, knownWindows, 100*rate, 100*errorRate)
			}
			if mean := float64(windows) / trials; mean > 2.5 {
				t.Errorf("difference %+.2f: a comparison takes %.1f windows", c.difference, mean)
			}
		}
	}
}

// Outliers make more comparisons end at the worse configuration. It is hardly worse then.
func TestWrongComparisonsWithOutliersCostLittle(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 3))
	const trials, outliers = 20_000, 0.05
	for _, c := range []struct {
		knownWindows int
		// most is the greatest rate of errors at the indifference.
		most float64
	}{{2, 0.14}, {3, 0.11}, {10, 0.07}} {
		for _, size := range []float64{1, 2, 4} {
			for _, difference := range []float64{size * indifference, -size * indifference} {
				wrong := 0
				for range trials {
					if v, _ := trial(rng, difference, c.knownWindows, outliers); (v == better) == (difference > 0) {
						wrong++
					}
				}
				rate := float64(wrong) / trials
				if rate > c.most {
					t.Errorf("difference %+.2f, %d windows of the best known: %.1f %% wrong, want at most %.0f %%", difference, c.knownWindows, 100*rate, 100*c.most)
				}
				if cost := rate * math.Abs(difference); cost > 0.01 {
					t.Errorf("difference %+.2f, %d windows of the best known: errors cost %.1f %% on average, want at most 1 %%", difference, c.knownWindows, 100*cost)
				}
			}
		}
	}
}

func TestOneOutlierDecidesNothing(t *testing.T) {
	for _, outlier := range []float64{-0.39, 0.3} {
		if v := compare(outlier, 1, 10); v != undecided {
			t.Errorf("one window that differs by %.2f decides %v", outlier, v)
		}
		if v := compare(outlier, 3, 1); v != undecided {
			t.Errorf("one window of the best known that differs by %.2f decides %v", outlier, v)
		}
	}
	if compare(-1, 1, 1) != better || compare(1, 1, 1) != worse {
		t.Error("a difference that no outlier explains is not decided by one window")
	}
}

func steady(elementTime float64) observation {
	return observation{at: autoscale.Configuration{Remote: 2, Local: 1}, time: elementTime, demand: elementTime, remote: 2, local: 1}
}

func TestTheMonitorIgnoresTwoOutliersAndFindsAChange(t *testing.T) {
	for _, c := range []struct {
		name  string
		times []float64
		found bool
		since int
	}{
		{"nothing", []float64{1, 1.03, 0.97, 1, 1, 1.02}, false, 0},
		{"two outliers", []float64{1, 1.3, 1.3, 1, 1, 1}, false, 0},
		{"outliers on both sides", []float64{1.3, 0.7, 1.3, 0.7, 1.3, 0.7}, false, 0},
		{"twice as slow", []float64{1, 1, 2, 2, 2}, true, 3},
		{"twice as fast", []float64{1, 1, 0.5, 0.5, 0.5}, true, 3},
		{"twice as slow after a slow window", []float64{1, 1.06, 2, 2, 2}, true, 3},
		{"two outliers after a slow window", []float64{1, 1.06, 1.3, 1.3, 1, 1, 1}, false, 0},
		{"two outliers before a slow window", []float64{1, 1.3, 1.3, 1.06, 1, 1, 1}, false, 0},
		{"4.9 % slower for long", slices.Repeat([]float64{1.049}, 60), false, 0},
		{"10 % slower", []float64{1.1, 1.1, 1.1, 1.1, 1.1, 1.1}, true, 3},
		{"6 % faster", []float64{0.94, 0.94, 0.94, 0.94, 0.94, 0.94, 0.94, 0.94, 0.94, 0.94}, true, 3},
	} {
		w := newMonitor([]observation{steady(1), steady(1)})
		var since []observation
		for _, elementTime := range c.times {
			if since, _ = w.next(steady(elementTime)); since != nil {
				break
			}
		}
		if (since != nil) != c.found || len(since) < c.since {
			t.Errorf("%s: found %v with %d windows, want %v", c.name, since != nil, len(since), c.found)
		}
	}
}

func TestALongMonitorKeepsFewWindowsAndStillFindsAChange(t *testing.T) {
	w := newMonitor([]observation{steady(1), steady(1)})
	for range 5000 {
		if since, why := w.next(steady(1)); since != nil {
			t.Fatalf("a steady job raised an alarm: %s", why)
		}
	}
	if len(w.seen) > 2*mostSeen+1 {
		t.Errorf("the monitor keeps %d windows", len(w.seen))
	}
	var since []observation
	for range 4 {
		if since, _ = w.next(steady(2)); since != nil {
			break
		}
	}
	if len(since) != 3 {
		t.Errorf("a change was found with %d windows, want 3", len(since))
	}
}

func TestFalseAlarmsOfTheMonitorAreRare(t *testing.T) {
	alarms := 0
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 3))
		measure := func() observation {
			factor := 1 + noise*rng.NormFloat64()
			if rng.IntN(20) == 0 {
				factor *= 0.7 + 0.6*float64(rng.IntN(2))
			}
			return steady(factor)
		}
		w := newMonitor([]observation{measure(), measure(), measure(), measure()})
		for range 50 {
			if since, _ := w.next(measure()); since != nil {
				alarms++
				break
			}
		}
	}
	if alarms > 20 {
		t.Errorf("%d of 200 monitors of 50 windows raised a false alarm, want at most 10 %%", alarms)
	}
}

func TestCurvesFollowMeasurementsAndKeepTheirShapeWithout(t *testing.T) {
	at := func(n int, capacity float64) observation {
		return observation{at: autoscale.Configuration{Local: n}, local: capacity}
	}
	for _, c := range []struct {
		name   string
		obs    []observation
		before Curve
		eight  float64
	}{
		{"nearly linear at first", []observation{at(1, 10)}, Curve{}, 10 * 7.21},
		{"square root", []observation{at(1, 10), at(4, 20), at(9, 30)}, Curve{}, 28.5},
		{"outliers among several windows", []observation{at(1, 10), at(1, 10), at(1, 13), at(4, 40), at(4, 40), at(4, 28)}, Curve{}, 80},
		{"known shape, new rate", []observation{at(4, 40)}, Curve{Rate: 10, Exponent: 0.5}, 56.6},
		{"nothing measured", nil, Curve{Rate: 10, Exponent: 0.5}, 28.3},
	} {
		if got := fit(c.obs, true, c.before).at(8); got < c.eight*0.96 || got > c.eight*1.04 {
			t.Errorf("%s: 8 workers have a capacity of %.1f, want %.1f", c.name, got, c.eight)
		}
	}
}

func TestTheLoadOfAHostIsSharedBetweenItsCauses(t *testing.T) {
	var obs []observation
	for _, c := range []autoscale.Configuration{{Remote: 1, Local: 1}, {Remote: 8, Local: 4}, {Remote: 2, Local: 9}} {
		received := 10 * float64(c.Remote)
		obs = append(obs, observation{at: c, received: received, demand: 0.0125, load: 0.3 + 0.1*float64(c.Local) + 0.002*received})
	}
	l := fitLoad(obs, 1, Load{})
	if got, want := l.excess(10, 50), 0.4; got < want-0.03 || got > want+0.03 {
		t.Errorf("the excess is %.3f, want %.3f", got, want)
	}
	// A change that only the base explains keeps what was learned.
	again := fitLoad([]observation{{at: autoscale.Configuration{Remote: 8, Local: 4}, received: 80, load: 1.2}}, 1, l)
	if d := again.PerLocal - l.PerLocal; d > 1e-6 || d < -1e-6 {
		t.Errorf("one window changed the load per local worker by %v", d)
	}
	if unknown := fitLoad([]observation{{}}, 1, Load{}); unknown.excess(10, 1e9) != 0 {
		t.Error("a host that reports no load counts as contended")
	}
}

func TestALoadThatFallsWithMoreElementsIsNotExtrapolated(t *testing.T) {
	// Other programs load the host while the trainer takes fewer elements.
	var obs []observation
	for _, c := range []struct{ received, load float64 }{{45, 3}, {21, 9.6}, {21, 9.9}} {
		obs = append(obs, observation{at: autoscale.Configuration{Remote: 5}, received: c.received, demand: 0.02, load: c.load})
	}
	for _, received := range []float64{0, 20, 45} {
		if got := fitLoad(obs, 1, Load{}).excess(0, received); got < 2 || got > 8.9 {
			t.Errorf("with %v elements per second the excess is %.1f, and 2 to 8.9 were measured", received, got)
		}
	}
}

// Other processes contend the host. A slower trainer receives far less than it would on a calm host, so the load there is
// not known.
func TestTheDemandOnAContendedHostIsTheMeasuredOne(t *testing.T) {
	var obs []observation
	for _, c := range []struct{ received, load float64 }{{7.84, 4.75}, {8.33, 4.6}, {9.99, 5.65}} {
		obs = append(obs, observation{at: autoscale.Configuration{Remote: 6}, received: c.received, remote: 37, load: c.load, time: 0.127, demand: 0.127})
	}
	m := newModel(obs, 1, Known{Remote: Curve{Rate: 6.8, Exponent: 0.95}, Load: Load{Base: 4, Slowdown: 0.5}})
	for _, remote := range []int{2, 6} {
		c := autoscale.Configuration{Remote: remote}
		if got := m.estimate(c); got < 0.11 || got > 0.145 {
			t.Errorf("with %d workers the predicted time is %.3f s, and the trainer's own 0.127 s were measured", remote, got)
		}
	}
}

// A configuration that only the model prefers is not measured any more at the end of a search. One that seemed better is confirmed.
func TestTheLastWindowsOfASearchConfirmWhatWasMeasured(t *testing.T) {
	at := func(remote int, time float64) observation {
		return observation{at: autoscale.Configuration{Remote: remote}, time: time, demand: 0.01, remote: float64(remote)}
	}
	s := NewSearch()
	s.goal = autoscale.Goal{Prices: autoscale.Published, Limits: autoscale.Limits{Max: autoscale.Configuration{Remote: 9}}}
	s.best = autoscale.Configuration{Remote: 3}
	m := newModel([]observation{at(3, 1/3.), at(4, 0.29)}, 1, Known{})
	for left, want := range map[int]int{confirmWindows + 1: 9, confirmWindows: 4} {
		if s.left = left; s.candidate(m).Remote != want {
			t.Errorf("with %d windows left, %v is measured next, want %d remote workers", left, s.candidate(m), want)
		}
	}
}
