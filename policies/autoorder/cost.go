package autoorder

import (
	"fmt"
	"math"
	"slices"
)

// Limits bound the proposals and the search of Cost.
type Limits struct {
	// MinGain is the share of the predicted seconds that an order must save. With a smaller gain the original
	// order stays.
	MinGain float64
	// MaxPrefixes is the most prefixes of orders that the search visits in a section. Then it takes the best
	// order so far. 0 means 100,000.
	MaxPrefixes int
}

const (
	defaultMaxPrefixes = 100_000
	// same is the relative difference up to which two predictions count as equal, because of rounding.
	same = 1e-9
)

// Cost returns the order with the least predicted CPU time per element of the source. The constraints are a partial order of
// each section between fixed steps; Cost considers the orders that keep it. The prediction is a sum over the steps: the
// elements that reach the step, times its CPU time per element. A part of this time grows with the bytes that the step
// reads. The cost model of cedar (Zhao et al., arXiv 2401.08895) is the same without a fixed part and with exponents of 1.
//
// Every order is compared with the original, so by its own prediction no plan is worse. Steps that gain nothing
// by a move keep their relative order.
func Cost(p Pipeline, limits Limits) Plan {
	if limits.MaxPrefixes <= 0 {
		limits.MaxPrefixes = defaultMaxPrefixes
	}
	m := newModel(p)
	plan := Plan{Order: original(len(p.Steps)), Reasons: make([]string, len(p.Steps)), Before: m.total(original(len(p.Steps)))}
	for _, section := range sections(p.Steps) {
		copy(plan.Order[section[0]:], newSearch(m, section, limits.MaxPrefixes).best())
	}
	plan.After = m.total(plan.Order)
	if proposed := plan.Order; plan.Moves() && !(plan.Before-plan.After > limits.MinGain*plan.Before) {
		gain := (plan.Before - plan.After) / plan.Before
		plan.Order, plan.After = original(len(p.Steps)), plan.Before
		for i := range p.Steps {
			if plan.Reasons[i] = m.reason(plan.Order, i); move(proposed, i) != "stays" {
				plan.Reasons[i] = fmt.Sprintf("stays: all moves together would save %.2g %% of the CPU, too little for a trial", 100*gain)
			}
		}
		return plan
	}
	for i := range p.Steps {
		plan.Reasons[i] = m.reason(plan.Order, i)
	}
	return plan
}

// model predicts the cost of orders.
type model struct {
	Pipeline
	// entry has the state before each step in the original order.
	entry []state
	// readAt has the bytes that a call of each step reads in the original order.
	readAt []float64
}

// state is the input of a step: its components, and the elements per element of the source.
type state struct {
	components []Component
	elements   float64
}

func newModel(p Pipeline) *model {
	m := &model{Pipeline: p, entry: make([]state, len(p.Steps)), readAt: make([]float64, len(p.Steps))}
	at := state{p.Source, 1}
	for i := range p.Steps {
		if s := &p.Steps[i]; s.Source != nil {
			at = state{s.Source, s.SourceElements}
		}
		m.entry[i], m.readAt[i] = at, m.read(at, i)
		at = m.after(at, i)
	}
	m.fit()
	return m
}

// read returns the bytes that determine the step's work.
func (m *model) read(at state, step int) (bytes float64) {
	for _, i := range m.Steps[step].Reads {
		if i >= len(at.components) {
			continue
		}
		c := at.components[i]
		if !m.Steps[step].Copies {
			c.Width = max(c.Width, c.Work)
		}
		bytes += c.bytes()
	}
	return bytes
}

// after returns the output of a step.
func (m *model) after(at state, step int) state {
	s := &m.Steps[step]
	out := state{slices.Clone(at.components), at.elements * s.outputRatio()}
	if s.After != nil {
		out.components = slices.Clone(s.After)
	}
	for _, w := range s.Writes {
		if w.Component >= len(out.components) {
			continue
		}
		c := &out.components[w.Component]
		switch w.Values.Kind {
		case Multiplies:
			c.Values *= w.Values.By
		case Sets:
			c.Values = w.Values.By
		}
		if w.Width > 0 {
			c.Width, c.Work = w.Width, w.Work
		}
	}
	return out
}

// outputRatio returns the output elements per input element.
func (s *Step) outputRatio() float64 {
	if !(s.ElementsIn > 0) || !(s.ElementsOut >= 0) {
		return 1
	}
	return s.ElementsOut / s.ElementsIn
}

// seconds returns the CPU time of a step per element of the source, for a given input.
func (m *model) seconds(at state, step int) float64 {
	s := &m.Steps[step]
	each := s.each()
	if each == 0 {
		return 0
	}
	grows := 1.0
	if base := m.readAt[step]; base > 0 {
		if grows = m.read(at, step) / base; s.Exponent != 0 && s.Exponent != 1 {
			grows = math.Pow(grows, s.Exponent)
		}
	}
	return at.elements * each * (s.fixed() + (1-s.fixed())*grows)
}

// each returns the measured CPU time per input element; 0 if it is unknown.
func (s *Step) each() float64 {
	if !(s.ElementsIn > 0) || !(s.Seconds > 0) {
		return 0
	}
	return s.Seconds / s.ElementsIn
}

func (s *Step) fixed() float64 { return min(max(s.FixedShare, 0), 1) }

// total returns the cost of an order. The output of a section is that of the original order, so that sections
// are independent.
func (m *model) total(order []int) (sum float64) {
	m.walk(order, func(step int, at state) { sum += m.seconds(at, step) })
	return sum
}

// walk visits the steps of an order with their inputs.
func (m *model) walk(order []int, visit func(step int, at state)) {
	at := state{m.Source, 1}
	for position, step := range order {
		if m.Steps[step].Fixed != "" || m.Steps[position].Source != nil || position > 0 && m.Steps[order[position-1]].Fixed != "" {
			at = m.entry[position]
		}
		visit(step, at)
		at = m.after(at, step)
	}
}

// reason explains the position of a step in one line.
func (m *model) reason(order []int, step int) string {
	s := &m.Steps[step]
	if s.Fixed != "" {
		return fixedReason(s)
	}
	moves := move(order, step)
	if moves != "stays" {
		was, is := m.seconds(m.entry[step], step), 0.0
		m.walk(order, func(other int, at state) {
			if other == step {
				is = m.seconds(at, step)
			}
		})
		if math.Abs(is-was) <= same*was {
			return fmt.Sprintf("%s: it takes %s per element of the source, as before, and makes other steps cheaper", moves, Span(is))
		}
		return fmt.Sprintf("%s: it takes %s per element of the source there, instead of %s", moves, Span(is), Span(was))
	}
	if !(s.ElementsIn > 0) {
		moves += ": its cost is not known"
	}
	for at := slices.Index(order, step); at > 0 && m.Steps[at].Source == nil; at-- {
		before := order[at-1]
		if m.Steps[before].Fixed != "" {
			return fmt.Sprintf("%s; no step can move past %s, which runs before it", moves, m.Steps[before].Name)
		}
		if why, constrained := m.Constraints[[2]int{before, step}]; constrained {
			return fmt.Sprintf("%s; it must run after %s: %s", moves, m.Steps[before].Name, why)
		}
	}
	return moves + "; no other position makes the pipeline cheaper"
}

// Span formats a time with a suitable unit, at least microseconds.
func Span(seconds float64) string {
	switch {
	case seconds < 1e-3:
		return fmt.Sprintf("%.3g µs", 1e6*seconds)
	case seconds < 1:
		return fmt.Sprintf("%.3g ms", 1e3*seconds)
	}
	return fmt.Sprintf("%.3g s", seconds)
}
