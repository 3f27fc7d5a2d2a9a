package autoorder

import (
	"fmt"
	"math"
	"slices"
)

// Pipeline is the input of a policy: the steps in the order in which their author wrote them, starting at the
// source.
type Pipeline struct {
	// Source has the components of an element of the source.
	Source []Component
	Steps  []Step
	// Constraints has the reason why step j must run after step i, by {i, j} with i < j. In the reason, "it" is
	// step j. A pair without an entry may swap.
	Constraints map[[2]int]string
	// Other has measurements in another order; nil without any.
	Other *Run
}

// Run has measurements of the steps in an order, by their numbers. Steps that were not measured have none.
type Run struct {
	Order        []int
	Measurements []Measurements
}

// Component is one tensor of an element.
type Component struct {
	// Values is the average number of values, Width the bytes of one value.
	Values, Width float64
	// Work is the width that counts for computation, if it is larger: processors convert 16-bit floats to 32
	// bits and back.
	Work float64
}

func (c Component) bytes() float64 { return c.Values * c.Width }

// Step is one transformation.
type Step struct {
	// Name is the name of its node in the registered graph.
	Name string
	// Fixed is the reason why the step does not move and no step passes it; empty if it may move.
	Fixed string
	// Source has the components that the step reads if it begins a branch, and SourceElements their elements per element of the
	// pipeline's source. nil: it reads what the step before it returns. A branch has sections of its own.
	Source         []Component
	SourceElements float64
	// After has the components after a fixed step, independent of those before it; nil: the step does not
	// change them.
	After []Component
	// Reads has the components whose bytes determine the step's work. Copies: the step only copies them.
	Reads  []int
	Copies bool
	Writes []Write
	// Slow: the step makes values smaller, and of a type with which processors compute slowly, such as bfloat16.
	Slow bool
	// FixedShare is the share of the work, 0 to 1, that does not depend on bytes. The rest is proportional to
	// bytes^Exponent; an Exponent of 0 means 1. Both are fitted if the step has run with two sizes.
	FixedShare, Exponent float64
	Measurements
}

// Measurements are those of a step: sums over the same elements in the original order. Ratios of sums weigh
// each element by its size; a mean of ratios would not.
type Measurements struct {
	// ElementsIn and ElementsOut differ for filters and batches.
	ElementsIn, ElementsOut float64
	BytesIn, BytesOut       float64
	// Seconds is the CPU time of the step without its inputs.
	Seconds float64
}

// Write is the effect of a step on one component.
type Write struct {
	Component int
	Values    Effect
	// Width is the new width of a value in bytes, Work the new work as in Component; 0: unchanged.
	Width, Work float64
}

// Effect is a change of the number of values.
type Effect struct {
	Kind EffectKind
	By   float64
}

// EffectKind says how the new number of values depends on the old one.
type EffectKind int

// The kinds of effects: the number is multiplied by By, or becomes By. Without a kind, it stays.
const (
	Multiplies EffectKind = iota + 1
	Sets
)

// Plan is the output of a policy: an order with its reasons.
type Plan struct {
	// Order has the numbers of the steps, starting at the source.
	Order []int
	// Reasons has one line for each step, by its number.
	Reasons []string
	// Before and After are the predicted seconds of CPU per element of the source, in the original order and in
	// this one; 0 without a prediction.
	Before, After float64
}

// Moves returns whether the plan differs from the original order.
func (p Plan) Moves() bool {
	for position, step := range p.Order {
		if position != step {
			return true
		}
	}
	return false
}

// factor returns output bytes divided by input bytes. It includes the number of elements: a filter that drops
// half of them has factor 0.5. known is false if the step had no input, or if a sum is not a finite number.
func (s *Step) factor() (f float64, known bool) {
	if !(s.BytesIn > 0 && s.BytesIn <= math.MaxFloat64 && s.BytesOut >= 0 && s.BytesOut <= math.MaxFloat64) {
		return 1, false
	}
	return s.BytesOut / s.BytesIn, true
}

// sections returns the sections of a pipeline, each as [first, end): the runs of movable steps between fixed ones, within a
// branch.
func sections(steps []Step) (out [][2]int) {
	first := 0
	for i := range len(steps) + 1 {
		movable := i < len(steps) && steps[i].Fixed == ""
		if movable && steps[i].Source == nil {
			continue
		}
		if i > first {
			out = append(out, [2]int{first, i})
		}
		if first = i; !movable {
			first++
		}
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

// Move describes the move of a step.
func (p Plan) Move(step int) string { return move(p.Order, step) }

// move describes the move of a step. Upstream is towards the source.
func move(order []int, step int) string {
	steps, direction := step-slices.Index(order, step), "upstream"
	if steps < 0 {
		steps, direction = -steps, "downstream"
	}
	switch steps {
	case 0:
		return "stays"
	case 1:
		return "moves 1 step " + direction
	}
	return fmt.Sprintf("moves %d steps %s", steps, direction)
}
