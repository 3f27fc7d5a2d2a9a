package autoorder

import (
	"fmt"
	"math"
)

// Pipeline is what a policy is told: the steps in the order in which their author wrote them, the one next to the source first.
type Pipeline struct {
	// Source is an element as the first step gets it.
	Source []Component
	Steps  []Step
	// Holds says why steps[j] may not run before steps[i], for i < j, by {i, j}; a pair that is not in it may change places.
	Holds map[[2]int]string
}

// Component is one tensor of an element.
type Component struct {
	// Values are how many it has on average, and Width is how many bytes one of them takes.
	Values, Width float64
	// Work is the width that it costs to compute with one, where that is more: processors make floats of halves and back.
	Work float64
}

func (c Component) bytes() float64 { return c.Values * c.Width }

// Step is one transformation.
type Step struct {
	// Name of its node in the registered graph.
	Name string
	// Fixed says why it stays where it is and nothing passes it; empty: it may move.
	Fixed string
	// After are the components behind a fixed step, whatever they were before it; nil: they stay as they are.
	After []Component
	// Reads are the components whose bytes its work grows with. Copies: it does nothing but copy them.
	Reads  []int
	Copies bool
	Writes []Write
	// Slow: it makes values smaller and of a kind with which processors compute slowly, as bfloat16.
	Slow bool
	// FixedShare of its work, 0 to 1, is for the call and not for its bytes; Exponent is how the rest grows with them, 0 counts as 1.
	FixedShare, Exponent float64
	Figures
}

// Figures are sums over the same elements, measured in the original order. A ratio of sums weighs each element by its size, a mean of
// ratios would not.
type Figures struct {
	// ElementsIn and ElementsOut differ at filters and batches.
	ElementsIn, ElementsOut float64
	BytesIn, BytesOut       float64
	// Seconds of CPU of the step itself.
	Seconds float64
}

// Write is what a step does to one component.
type Write struct {
	Component int
	Values    Effect
	// Width of a value from there on, in bytes, and Work as for components; 0: as before.
	Width, Work float64
}

// Effect is what becomes of a number of values.
type Effect struct {
	Kind EffectKind
	By   float64
}

// EffectKind says how an effect depends on what there was.
type EffectKind int

// The kinds of effects.
const (
	Keeps EffectKind = iota
	Multiplies
	Sets
)

// Plan is an order and why it is one.
type Plan struct {
	// Order are the numbers of the steps, source first.
	Order []int
	// Reasons has one line for each step, by its number.
	Reasons []string
	// Before and After are the predicted seconds of CPU for an element of the source, in the original order and in this one; 0 where the
	// policy predicts nothing.
	Before, After float64
}

// Moves tells whether the plan differs from the original order.
func (p Plan) Moves() bool {
	for place, step := range p.Order {
		if place != step {
			return true
		}
	}
	return false
}

// factor is bytes out over bytes in, which counts elements as well: a filter that drops half has one half. It is not known where nothing
// went in, nor where a sum is none.
func (s *Step) factor() (f float64, known bool) {
	if !(s.BytesIn > 0 && s.BytesIn <= math.MaxFloat64 && s.BytesOut >= 0 && s.BytesOut <= math.MaxFloat64) {
		return 1, false
	}
	return s.BytesOut / s.BytesIn, true
}

// sections are the stretches of steps between fixed ones, each as [first, behind).
func sections(steps []Step) (out [][2]int) {
	first := 0
	for i := range len(steps) + 1 {
		if i < len(steps) && steps[i].Fixed == "" {
			continue
		}
		if i > first {
			out = append(out, [2]int{first, i})
		}
		first = i + 1
	}
	return out
}

func original(n int) []int {
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	return order
}

func fixedReason(s *Step) string { return "stays: " + s.Fixed }

// place words where a step went.
func place(order []int, step int) string {
	for at, s := range order {
		if s != step {
			continue
		}
		switch {
		case at < step:
			return fmt.Sprintf("moves up by %d", step-at)
		case at > step:
			return fmt.Sprintf("moves down by %d", at-step)
		}
	}
	return "stays"
}
