package autoorder

import "math"

const (
	// Two sizes differ if one is fitRatio times the other. Costs of one order differ by up to a tenth from run to run, so sizes
	// that are nearer say nothing.
	fitRatio = 1.5
	// A fit needs fitElements in each order.
	fitElements = 100
	// maxExponent bounds what a fit may find.
	maxExponent = 3
)

// fit fits the fixed share and the exponent of each step that has run with two sizes. The steps belong to the model.
func (m *model) fit() {
	if m.Other == nil || len(m.Other.Order) != len(m.Steps) || len(m.Other.Measurements) != len(m.Steps) {
		return
	}
	steps := append([]Step(nil), m.Steps...)
	m.walk(m.Other.Order, func(step int, at state) {
		s, there := &steps[step], Step{Measurements: m.Other.Measurements[step]}
		if s.Fixed == "" && s.ElementsIn >= fitElements && there.ElementsIn >= fitElements {
			s.FixedShare, s.Exponent = fit(*s, m.readAt[step], s.each(), m.read(at, step), there.each())
		}
	})
	m.Steps = steps
}

// fit returns the fixed share and the exponent of a step that takes some seconds for each of two sizes: the line
// through both points, or a power if the line would begin below 0. If the points say nothing, fit returns the share and
// the exponent that the step has.
func fit(s Step, size, seconds, otherSize, otherSeconds float64) (share, exponent float64) {
	if !(size > 0) || !(otherSize > 0) || !(seconds > 0) || !(otherSeconds > 0) || max(size, otherSize) < fitRatio*min(size, otherSize) {
		return s.FixedShare, s.Exponent
	}
	slope := (otherSeconds - seconds) / (otherSize - size)
	switch start := seconds - slope*size; {
	case slope <= 0:
		return 1, 0
	case start >= 0:
		return start / seconds, 0
	}
	return 0, min(math.Log(otherSeconds/seconds)/math.Log(otherSize/size), maxExponent)
}
