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
	// threshold ends the monitoring. Two clipped observations reach it and do not pass it.
	threshold = 4.5
	clip      = 3.5
	// realChange is the least change of a median that starts a search.
	realChange = 0.05
	// confirming is the number of windows that must show a change, each at least half of it. Fewer may be outliers.
	confirming = 3
	// baseWindows is the most windows that make up the baseline.
	baseWindows = 10
	// mostSeen bounds the windows that are kept.
	mostSeen = 128
)

// signal is one monitored quantity.
type signal struct {
	name  string
	sigma float64
	value func(observation) float64
	// up and down are the cumulative sums, upAt and downAt the numbers of windows when they were last 0.
	up, down     float64
	upAt, downAt int
}

// monitor detects a change with two-sided cumulative sums. Its observations are of one configuration.
type monitor struct {
	signals []signal
	seen    []observation
}

func newMonitor(before []observation) *monitor {
	total := func(o observation) float64 { return o.remote + o.local }
	m := &monitor{seen: before, signals: []signal{
		{name: "the element time", sigma: 0.035, value: func(o observation) float64 { return o.time }},
		{name: "the demand", sigma: 0.045, value: func(o observation) float64 { return o.demand }},
		{name: "the capacity", sigma: 0.045, value: total},
	}}
	for i := range m.signals {
		m.signals[i].upAt, m.signals[i].downAt = len(before), len(before)
	}
	return m
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

// showing counts the windows that show at least half of a change.
func (s *signal) showing(obs []observation, normal, change float64) (n int) {
	for _, o := range obs {
		if v := s.value(o); v > 0 && (math.Log(v)-normal)/change >= 0.5 {
			n++
		}
	}
	return n
}

// next adds an observation. If something changed, it returns the observations since then and a sentence.
func (m *monitor) next(o observation) (since []observation, why string) {
	m.forget()
	m.seen = append(m.seen, o)
	now := len(m.seen)
	for i := range m.signals {
		s := &m.signals[i]
		// The windows since a sum began to grow may be those of a change.
		normal := s.median(m.seen[:min(s.upAt, s.downAt, baseWindows)])
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
		latest := s.median(m.seen[max(from, now-2):])
		for from < now-2 && math.Abs(math.Log(s.value(m.seen[from]))-normal) < math.Abs(math.Log(s.value(m.seen[from]))-latest) {
			from++
		}
		change := s.median(m.seen[from:]) - normal
		if math.Abs(change) >= realChange && s.showing(m.seen[from:], normal, change) < confirming {
			continue
		}
		s.up, s.down, s.upAt, s.downAt = 0, 0, now, now
		if math.Abs(change) >= realChange {
			return m.seen[from:], fmt.Sprintf("%s changed by %+.0f %%", s.name, 100*math.Expm1(change))
		}
	}
	return nil, ""
}

// forget drops windows between the baseline and the newest ones.
func (m *monitor) forget() {
	if len(m.seen) < 2*mostSeen {
		return
	}
	m.seen = slices.Delete(m.seen, baseWindows, baseWindows+mostSeen)
	for i := range m.signals {
		s := &m.signals[i]
		s.upAt, s.downAt = max(s.upAt-mostSeen, baseWindows), max(s.downAt-mostSeen, baseWindows)
	}
}
