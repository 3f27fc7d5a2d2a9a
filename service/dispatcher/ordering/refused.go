package ordering

import (
	"fmt"
	"iter"
	"slices"

	graphorder "github.com/pecan-ml/pecan/service/graph/order"
)

// constrainRefused adds constraints between a refused step and the steps with which it swapped. If it swapped with
// none, all steps that swapped get constraints.
func (p *proposer) constrainRefused(refused *graphorder.Refused, order []int) {
	at := slices.IndexFunc(p.steps, func(i int) bool { return p.all[i].Node == refused.Node })
	if p.paper {
		p.pinRefusedStep(at, order, refused.Why.Error())
		return
	}
	name := refused.Node
	if at >= 0 {
		name = p.name(at)
	}
	why := fmt.Sprintf("%s cannot run in the other order: %v", name, refused.Why)
	// If some of the swapped steps change sizes, only those get constraints.
	for _, which := range []func(other int) bool{p.resizes, func(int) bool { return true }} {
		if p.forbidSwaps(order, why, func(i, j int) bool { return i == at && which(j) || j == at && which(i) }) {
			return
		}
	}
	p.forbidSwaps(order, why, func(_, _ int) bool { return true })
}

// forbidPastBatches forbids an order's swaps with batches, and reports whether there were any. The batch
// strategy may depend on the steps downstream of a batch.
func (p *proposer) forbidPastBatches(order []int, why string) (added bool) {
	return p.forbidSwaps(order, why, func(i, j int) bool { return p.step(i).Batches || p.step(j).Batches })
}

// forbidSwaps adds a constraint for each swap of an order that which selects, and reports whether there was one.
func (p *proposer) forbidSwaps(order []int, why string, which func(i, j int) bool) (added bool) {
	for i, j := range swapped(order) {
		if which(i, j) {
			p.Constraints[[2]int{i, j}] = why
			added = true
		}
	}
	return added
}

// swapped returns the pairs i < j of steps that swapped: j runs before i.
func swapped(order []int) iter.Seq2[int, int] {
	return func(yield func(i, j int) bool) {
		for position, j := range order {
			for _, i := range order[position+1:] {
				if i < j && !yield(i, j) {
					return
				}
			}
		}
	}
}

// resizes reports whether a step changes sizes of components.
func (p *proposer) resizes(i int) bool {
	t := p.step(i)
	return slices.ContainsFunc(t.Writes, func(c int) bool {
		return c < len(t.Before) && c < len(t.After) && !slices.Equal(t.Before[c].GetDims(), t.After[c].GetDims())
	})
}

// pinRefusedStep fixes a step for the published policy. If the refused step moved past a step that changes sizes, that other
// step is fixed. The refused step may then still move on its side of the fixed one. Otherwise the refused step is fixed, or
// the first step that moved if the refused step did not move.
func (p *proposer) pinRefusedStep(at int, order []int, why string) {
	for i, j := range swapped(order) {
		if j == at && p.resizes(i) && p.Steps[i].Fixed == "" {
			p.Steps[i].Fixed = fmt.Sprintf("%s cannot run before it: %s", p.name(at), why)
			return
		}
	}
	if at < 0 || order[at] == at || p.Steps[at].Fixed != "" {
		at = slices.IndexFunc(order, func(i int) bool { return order[i] != i })
		at = order[at]
	}
	p.Steps[at].Fixed = why
}

// pinFirstViolation fixes the first step whose move violates a constraint, and reports whether there was one. The
// published policy ignores constraints.
func (p *proposer) pinFirstViolation(order []int) bool {
	for i, j := range swapped(order) {
		if why := p.Constraints[[2]int{i, j}]; why != "" {
			moved := j
			if slices.Index(order, j) >= j {
				moved = i
			}
			p.Steps[moved].Fixed = fmt.Sprintf("%s must run after %s: %s", p.name(j), p.name(i), why)
			return true
		}
	}
	return false
}
