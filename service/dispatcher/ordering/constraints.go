package ordering

import (
	"fmt"
	"iter"
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/graph/dataflow"
	graphorder "github.com/pecan-ml/pecan/service/graph/order"
)

// constraint says why step j may not run before step i, for i < j; empty if it may. It treats all pairs as
// neighbours: an order in which each pair may swap can be reached by swaps of neighbours.
func (p *proposer) constraint(i, j int) string {
	a, b := p.step(i), p.step(j)
	switch {
	case a.Batches && b.Batches:
		return "both put elements together"
	case a.Batches:
		return p.mayNotPassBatch(j, 1)
	case b.Batches:
		return p.mayNotPassBatch(i, 0)
	case b.Drops:
		return p.filterMayNotMove(i, j)
	case a.Drops:
		return p.mapMayNotMove(i, j)
	}
	for c := range a.Before {
		if c >= len(b.Before) || !shareComponent(a, b, c) {
			continue
		}
		if why := p.mapsMayNotSwap(i, j, c); why != "" {
			return why
		}
	}
	return ""
}

// mayNotPassBatch says why a step may not pass a batch; empty if it does the same to single rows and to a batch
// of them. Above a batch, the step's first dimension is that of the rows.
func (p *proposer) mayNotPassBatch(i, above int) string {
	t := p.step(i)
	switch {
	case t.Drops:
		return "its predicate is for single elements, not for batches"
	case t.Random:
		return "it draws random values per element, and would draw others per batch"
	case t.CanFail != "" || t.Checks != "":
		return "it may fail, for one row or for its whole batch"
	}
	for at, c := range t.Writes {
		change := t.Changes[at]
		uneven := change.AlignmentDependent && p.tolerance == pecanv1.OrderTolerance_ORDER_TOLERANCE_EXACT
		switch {
		case !slices.Contains(t.Reads, c) || !slices.Contains(t.SelfReads, c) || isString(t.Before[c]) || !ranked(t, c):
			return fmt.Sprintf("it does not compute component %d value by value from that component alone", c)
		case change.Opaque != "":
			return fmt.Sprintf("%s (component %d)", change.Opaque, c)
		case !change.PerValue():
			return fmt.Sprintf("it does more to component %d than to compute value by value", c)
		case above > 0 && (change.PositionDependent|change.DependsOnSize)&1 != 0:
			return fmt.Sprintf("it treats the rows of component %d differently", c)
		case uneven:
			return fmt.Sprintf("the last bits of component %d depend on a value's position in memory", c)
		}
		if by := p.decidedBy(p.steps[i], c); change.AlignmentDependent && by >= 0 {
			return fmt.Sprintf("%s could then drop other elements, because the values of component %d would differ slightly", p.called[by], c)
		}
	}
	if len(t.Reads) > len(t.Writes) {
		return "it reads more than it changes"
	}
	return ""
}

// inBatches gives what a step does to a component, seen after the batches between the step and another one.
func (p *proposer) inBatches(i, j, c int) dataflow.Change {
	seen := change(p.step(i), c)
	for k := i + 1; k < j; k++ {
		if p.step(k).Batches {
			seen = seen.InBatches()
		}
	}
	return seen
}

// draws reports whether a step's random values depend on how many elements reached it.
func (p *proposer) draws(t *graphorder.Traits) bool { return t.Random && !p.keyed[t.Node] }

// filterMayNotMove says why a filter may not run before a map or a filter.
func (p *proposer) filterMayNotMove(i, j int) string {
	a, b := p.step(i), p.step(j)
	for _, c := range a.Writes {
		if slices.Contains(b.Reads, c) {
			return fmt.Sprintf("it reads component %d, which %s changes", c, p.name(i))
		}
	}
	switch {
	case a.Drops && b.CanFail != "":
		return fmt.Sprintf("it may fail (%s) for elements that %s leaves out", b.CanFail, p.name(i))
	case p.draws(a) || a.Drops && p.draws(b):
		return "what one of them draws would depend on which elements the other leaves out"
	case a.Checks != "" && p.tolerance == pecanv1.OrderTolerance_ORDER_TOLERANCE_EXACT:
		return fmt.Sprintf("%s checks elements (%s), and would not check those that it leaves out", p.name(i), a.Checks)
	}
	return ""
}

// mapMayNotMove says why a map may not run before a filter, on elements that the filter drops.
func (p *proposer) mapMayNotMove(i, j int) string {
	a, b := p.step(i), p.step(j)
	for _, c := range b.Writes {
		if slices.Contains(a.Reads, c) {
			return fmt.Sprintf("it changes component %d, which %s reads", c, p.name(i))
		}
	}
	switch {
	case b.CanFail != "":
		return fmt.Sprintf("it may fail (%s) for elements that %s leaves out", b.CanFail, p.name(i))
	case p.draws(b):
		return fmt.Sprintf("what it draws would depend on which elements %s leaves out", p.name(i))
	}
	return ""
}

// shareComponent reports whether one of two maps writes a component that the other reads or writes.
func shareComponent(a, b *graphorder.Traits, c int) bool {
	aWrites, bWrites := slices.Contains(a.Writes, c), slices.Contains(b.Writes, c)
	return aWrites && (bWrites || slices.Contains(b.Reads, c)) || bWrites && slices.Contains(a.Reads, c)
}

// mapsMayNotSwap says why two maps of the same component may not swap.
func (p *proposer) mapsMayNotSwap(i, j, c int) string {
	a, b := p.step(i), p.step(j)
	for _, one := range []int{i, j} {
		t, other := p.step(one), i+j-one
		if !slices.Contains(t.Writes, c) {
			return fmt.Sprintf("%s looks at component %d, which %s changes", p.name(one), c, p.name(other))
		}
		if why := changesRankOrKind(t.Before[c], t.After[c]); why != "" {
			return fmt.Sprintf("%s %s (component %d)", p.name(one), why, c)
		}
		if !slices.Contains(t.Reads, c) {
			return fmt.Sprintf("%s computes component %d from other inputs", p.name(one), c)
		}
		if !slices.Contains(t.SelfReads, c) {
			return fmt.Sprintf("%s looks at component %d for more than what becomes of it, and %s changes it", p.name(one), c, p.name(other))
		}
	}
	left, right := p.inBatches(i, j, c), change(b, c)
	for _, pair := range []struct {
		one   int
		other dataflow.Change
	}{{i, right}, {j, left}} {
		if op := p.step(pair.one).Divides; op != "" && (pair.other.Opaque != "" || pair.other.Computes || pair.other.Permutes|pair.other.Sizes != 0) {
			return fmt.Sprintf("%s may fail (%s) for values that %s changes, adds or leaves out (component %d)", p.name(pair.one), op, p.name(i+j-pair.one), c)
		}
	}
	for _, one := range []int{i, j} {
		t, other := p.step(one), change(p.step(i+j-one), c)
		if was, is := t.Before[c].GetDtype(), t.After[c].GetDtype(); was != is && (other.Arithmetic || other.Opaque != "") {
			return fmt.Sprintf("%s makes %s of %s in component %d, and %s computes with it",
				p.name(one), typeName(is), typeName(was), c, p.name(i+j-one))
		}
	}
	passes, why := left.CommutesWith(right)
	switch {
	case passes:
		return ""
	case p.tolerance == pecanv1.OrderTolerance_ORDER_TOLERANCE_ANY && ranked(a, c) && ranked(b, c):
		why = sizeCheckMayFail(left, right, a.Before[c].GetDims())
	case p.tolerance == pecanv1.OrderTolerance_ORDER_TOLERANCE_APPROXIMATE:
		why = mayDiffer(left, right, a.Before[c].GetDims(), a.Random && b.Random)
	}
	if why != "" {
		return fmt.Sprintf("%s (component %d)", why, c)
	}
	if by := p.decidedBy(p.steps[i], c); by >= 0 {
		return fmt.Sprintf("%s could then drop other elements, because the values of component %d would differ slightly", p.called[by], c)
	}
	return ""
}

// decidedBy finds a later step that selects elements by values that may depend on a component; -1 without one.
// Values may differ in another order, but the number of elements may not.
func (p *proposer) decidedBy(step, component int) int {
	follows := map[int]bool{component: true}
	all := false
	touches := func(components []int) bool {
		return all || slices.ContainsFunc(components, func(c int) bool { return follows[c] })
	}
	for k := step + 1; k < len(p.all); k++ {
		t := &p.all[k]
		switch {
		case t.Barrier != "" && t.Decides, t.Drops && touches(t.Reads):
			return k
		case t.Barrier != "":
			all = all || t.Calls
		case touches(t.Reads):
			for _, c := range t.Writes {
				follows[c] = true
			}
		}
	}
	return -1
}

func change(t *graphorder.Traits, c int) dataflow.Change { return t.Changes[slices.Index(t.Writes, c)] }

func ranked(t *graphorder.Traits, c int) bool {
	return !t.Before[c].GetUnknownRank() && !t.After[c].GetUnknownRank()
}

// mayDiffer says why the results of two changes differ too much in the other order; empty if a trial can tell.
// The sizes are those of the first step's input.
func mayDiffer(a, b dataflow.Change, before []int64, random bool) string {
	switch {
	case a.Opaque != "":
		return a.Opaque
	case b.Opaque != "":
		return b.Opaque
	case random:
		return "both draw, and change its values by that"
	case a.Computes && b.Computes && (!a.Affine || !b.Affine):
		return "both compute its values, and not as weighted sums"
	case a.Computes && b.Computes && (a.Mixes == 0) == (b.Mixes == 0) && a.Mixes == 0:
		return "both compute its values"
	}
	for _, pair := range [][2]dataflow.Change{{a, b}, {b, a}} {
		one, other := pair[0], pair[1]
		if both := one.Mixes & other.Mixes; both != 0 {
			return fmt.Sprintf("both compute values along dimension %v from several", both)
		}
		if both := one.PositionDependent & (other.Moves | other.Mixes); both != 0 {
			return fmt.Sprintf("one treats the positions of dimension %v differently, and the other moves or mixes them", both)
		}
		if both := one.Permutes & (other.Moves | other.Mixes); both != 0 {
			return fmt.Sprintf("one leaves values out of dimension %v, adds some or gives them other neighbours, and the other moves or mixes those", both)
		}
		if both := one.Moves & other.Skews; both != 0 {
			return fmt.Sprintf("one mirrors dimension %v, and the other's result for mirrored values is not the mirrored result", both)
		}
		if both := one.Sizes & other.DependsOnSize; both != 0 {
			return fmt.Sprintf("one changes the size of dimension %v, and the other's work depends on that", both)
		}
	}
	return sizeCheckMayFail(a, b, before)
}

// sizeCheckMayFail says why one of two changes may fail in the other order because of the sizes it gets, and only
// for some elements; empty if it may not.
func sizeCheckMayFail(a, b dataflow.Change, before []int64) string {
	for _, way := range []struct {
		sizes, checks dataflow.Dims
		given         []int64
	}{{a.Sizes, b.ChecksSize, before}, {b.Sizes, a.ChecksSize, b.After}} {
		if both := way.sizes & way.checks; both != 0 && !sizesFixed(way.given, both) {
			return fmt.Sprintf("one changes the size of dimension %v, and the other checks that", both)
		}
	}
	return ""
}

// sizesFixed reports whether sizes are the same for all elements. A trial then shows whether a check of them
// fails.
func sizesFixed(sizes []int64, dims dataflow.Dims) bool {
	for i, size := range sizes {
		if dims&(1<<i) != 0 && size < 0 {
			return false
		}
	}
	return true
}

// changesRankOrKind says whether a component gets another number of dimensions, or changes between strings and
// numbers.
func changesRankOrKind(before, after *pecanv1.ComponentSpec) string {
	switch {
	case isString(before) != isString(after):
		return fmt.Sprintf("makes %s of %s", typeName(after.GetDtype()), typeName(before.GetDtype()))
	case !before.GetUnknownRank() && !after.GetUnknownRank() && len(before.GetDims()) != len(after.GetDims()):
		return fmt.Sprintf("makes %d dimensions of %d", len(after.GetDims()), len(before.GetDims()))
	}
	return ""
}

// forbidRefused keeps a refused step in its place relative to the steps that it passed and that passed it. If the
// steps around it moved, they keep their places.
func (p *proposer) forbidRefused(refused *graphorder.Refused, order []int) {
	at := slices.IndexFunc(p.steps, func(i int) bool { return p.all[i].Node == refused.Node })
	why := refused.Why.Error()
	if p.paper {
		p.fixRefusedStep(at, order, why)
		return
	}
	// If some of the passed steps change sizes, only those are needed in front.
	for _, which := range []func(other int) bool{p.resizes, func(int) bool { return true }} {
		if p.forbidSwaps(order, why, func(i, j int) bool { return i == at && which(j) || j == at && which(i) }) {
			return
		}
	}
	// The step did not move, or others pass it.
	why = fmt.Sprintf("%s could not keep its place: %s", refused.Node, why)
	p.forbidSwaps(order, why, func(_, _ int) bool { return true })
}

// forbidPastBatches forbids passing the batches that an order passed: how batches are made may depend on the
// steps above.
func (p *proposer) forbidPastBatches(order []int, why string) (held bool) {
	return p.forbidSwaps(order, why, func(i, j int) bool { return p.step(i).Batches || p.step(j).Batches })
}

// forbidSwaps forbids the swaps of an order, and reports whether any of them was still allowed.
func (p *proposer) forbidSwaps(order []int, why string, which func(i, j int) bool) (held bool) {
	for i, j := range swapped(order) {
		if which(i, j) {
			p.Constraints[[2]int{i, j}] = why
			held = true
		}
	}
	return held
}

// swapped gives the pairs of steps that swapped in an order: j stands before i, which was before it.
func swapped(order []int) iter.Seq2[int, int] {
	return func(yield func(i, j int) bool) {
		for place, j := range order {
			for _, i := range order[place+1:] {
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

// fixRefusedStep fixes a step of the published policy. If the refused step passed a step that changes sizes, that
// step is fixed, so that the refused one may still move on its own side. Otherwise the refused step is fixed, or
// the first moved one if the refused step did not move.
func (p *proposer) fixRefusedStep(at int, order []int, why string) {
	for i, j := range swapped(order) {
		if j == at && p.resizes(i) && p.Steps[i].Fixed == "" {
			p.Steps[i].Fixed = fmt.Sprintf("%s could not stand before it: %s", p.called[p.steps[at]], why)
			return
		}
	}
	if at < 0 || order[at] == at || p.Steps[at].Fixed != "" {
		at = slices.IndexFunc(order, func(i int) bool { return order[i] != i })
		at = order[at]
	}
	p.Steps[at].Fixed = why
}

// fixFirstViolation fixes the first step that the published policy would move past a constraint. That policy does
// not know constraints.
func (p *proposer) fixFirstViolation(order []int) bool {
	for i, j := range swapped(order) {
		if why := p.Constraints[[2]int{i, j}]; why != "" {
			moved := j
			if slices.Index(order, j) >= j {
				moved = i
			}
			p.Steps[moved].Fixed = why
			return true
		}
	}
	return false
}
