package autoplacement

import (
	"fmt"
	"math"
	"slices"

	"github.com/pecan-ml/pecan/policies/autoscale"
)

const (
	// referenceShift is the shift, in standard deviations, that a cumulative sum ignores.
	referenceShift = 1.25
	// threshold ends the watch. Two clipped observations reach it and do not pass it.
	threshold = 4.5
	clip      = 3.5
	// realChange is the least change of a median that starts a search.
	realChange = 0.05
	// baseWindows is the most windows that make up the baseline.
	baseWindows = 10
	// mostSeen bounds the windows that are kept.
	mostSeen = 128
)

// signal is one watched quantity.
type signal struct {
	name  string
	sigma float64
	value func(observation) float64
	// up and down are the cumulative sums, upAt and downAt the numbers of windows when they were last 0.
	up, down     float64
	upAt, downAt int
}

// watch detects a change with two-sided cumulative sums. Its observations are of one configuration.
type watch struct {
	signals []signal
	seen    []observation
}

func newWatch(before []observation) *watch {
	total := func(o observation) float64 { return o.remote + o.local }
	w := &watch{seen: before, signals: []signal{
		{name: "the element time", sigma: 0.035, value: func(o observation) float64 { return o.time }},
		{name: "the demand", sigma: 0.045, value: func(o observation) float64 { return o.demand }},
		{name: "the capacity", sigma: 0.045, value: total},
	}}
	for i := range w.signals {
		w.signals[i].upAt, w.signals[i].downAt = len(before), len(before)
	}
	return w
}

// median returns the median logarithm of a signal.
func (s *signal) median(obs []observation) float64 {
	var logs []float64
	for _, o := range obs {
		if v := s.value(o); v > 0 {
			logs = append(logs, math.Log(v))
		}
	}
	if len(logs) == 0 {
		return math.NaN()
	}
	return autoscale.Median(logs)
}

// next adds an observation. If something changed, it returns the observations since then and a sentence.
func (w *watch) next(o observation) (since []observation, why string) {
	w.forget()
	w.seen = append(w.seen, o)
	now := len(w.seen)
	for i := range w.signals {
		s := &w.signals[i]
		// The windows since a sum began to grow may be those of a change.
		normal := s.median(w.seen[:min(s.upAt, s.downAt, baseWindows)])
		v := s.value(o)
		if !(v > 0) || math.IsNaN(normal) {
			continue
		}
		z := min(max((math.Log(v)-normal)/s.sigma, -clip), clip)
		if s.up = max(0, s.up+z-referenceShift); s.up == 0 {
			s.upAt = now
		}
		if s.down = max(0, s.down-z-referenceShift); s.down == 0 {
			s.downAt = now
		}
		from := s.upAt
		if s.down > threshold {
			from = s.downAt
		} else if s.up <= threshold {
			continue
		}
		// The sum may have begun to grow before the change, by chance.
		latest := s.median(w.seen[max(from, now-2):])
		for from < now-2 && math.Abs(math.Log(s.value(w.seen[from]))-normal) < math.Abs(math.Log(s.value(w.seen[from]))-latest) {
			from++
		}
		change := s.median(w.seen[from:]) - normal
		s.up, s.down, s.upAt, s.downAt = 0, 0, now, now
		if math.Abs(change) >= realChange {
			return w.seen[from:], fmt.Sprintf("%s changed by %+.0f %%", s.name, 100*math.Expm1(change))
		}
	}
	return nil, ""
}

// forget drops windows between the baseline and the newest ones.
func (w *watch) forget() {
	if len(w.seen) < 2*mostSeen {
		return
	}
	w.seen = slices.Delete(w.seen, baseWindows, baseWindows+mostSeen)
	for i := range w.signals {
		s := &w.signals[i]
		s.upAt, s.downAt = max(s.upAt-mostSeen, baseWindows), max(s.downAt-mostSeen, baseWindows)
	}
}
