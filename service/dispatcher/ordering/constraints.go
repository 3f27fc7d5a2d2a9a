package ordering

import (
	"fmt"
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/graph/dataflow"
	"github.com/pecan-ml/pecan/service/graph/ops"
	graphorder "github.com/pecan-ml/pecan/service/graph/order"
)

// constraint returns the reason why step j must run after step i, or an empty string if the two steps may swap. i is
// less than j. The reason calls step j "it". constraint judges two steps as if they were neighbours. Every allowed order
// follows from allowed swaps of neighbours.
func (p *proposer) constraint(i, j int) string {
	a, b := p.step(i), p.step(j)
	switch {
	case a.Batches && b.Batches:
		return "both make batches"
	case a.Batches:
		return p.whyNotPastBatch(j, true)
	case b.Batches:
		return p.whyNotPastBatch(i, false)
	case b.Drops:
		return p.whyFilterStays(i, j)
	case a.Drops:
		return p.whyMapStays(i, j)
	}
	for c := range a.Before {
		if c >= len(b.Before) || !shareComponent(a, b, c) {
			continue
		}
		if why := p.whyMapsStay(i, j, c); why != "" {
			return why
		}
	}
	return ""
}

// whyNotPastBatch returns the reason why a step may not move past a batch. It returns "" if the step has the same effect on
// single rows and on a batch of them. If the step is after the batch, its first dimension is the dimension of the rows.
func (p *proposer) whyNotPastBatch(i int, afterBatch bool) string {
	t := p.step(i)
	switch {
	case p.plan.GetCarry():
		return "batches go on from one epoch to the next, and these may run in different orders"
	case t.Drops:
		return fmt.Sprintf("%s selects single elements, not batches", p.name(i))
	case t.Random:
		return fmt.Sprintf("%s draws random values for each element, and would draw others for a batch", p.name(i))
	case t.CanFail != "" || t.Checks != "":
		return fmt.Sprintf("%s can fail: before the batch for one row, after it for the whole batch", p.name(i))
	}
	for at, c := range t.Writes {
		change := t.Changes[at]
		differs := change.AlignmentDependent && p.tolerance == pecanv1.OrderTolerance_ORDER_TOLERANCE_EXACT
		switch {
		case !slices.Contains(t.Reads, c) || !slices.Contains(t.SelfReads, c) || isString(t.Before[c]) || !ranked(t, c):
			return fmt.Sprintf("%s does not compute each value of component %d from that value alone", p.name(i), c)
		case change.Opaque != "":
			return fmt.Sprintf("%s (component %d)", change.Opaque, c)
		case !change.PerValue():
			return fmt.Sprintf("%s moves or combines values of component %d, or changes or checks its size", p.name(i), c)
		case afterBatch && (change.PositionDependent|change.DependsOnSize)&1 != 0:
			return fmt.Sprintf("%s treats the rows of component %d differently", p.name(i), c)
		case differs:
			return fmt.Sprintf("the last bits of component %d can depend on the position of a value in memory", c)
		}
		if by := p.decidedBy(p.steps[i], c); change.AlignmentDependent && by >= 0 {
			return fmt.Sprintf("%s could then drop other elements, because the values of component %d would differ slightly", p.displayNames[by], c)
		}
	}
	if len(t.Reads) > len(t.Writes) {
		return fmt.Sprintf("%s reads components that it does not change", p.name(i))
	}
	return ""
}

// inBatches returns the effect of step i on a component as step j sees it, after the batches between them.
func (p *proposer) inBatches(i, j, c int) dataflow.Change {
	seen := change(p.step(i), c)
	for k := i + 1; k < j; k++ {
		if p.step(k).Batches {
			seen = seen.InBatches()
		}
	}
	return seen
}

// draws reports whether a step's random values depend on the number of elements that have reached it.
func (p *proposer) draws(t *graphorder.Traits) bool { return t.Random && !p.keyed[t.Node] }

// whyFilterStays returns the reason why filter j must run after a map or a filter i.
func (p *proposer) whyFilterStays(i, j int) string {
	a, b := p.step(i), p.step(j)
	if c, found := readComponent(b, a); found {
		return fmt.Sprintf("it reads component %d, which %s changes", c, p.name(i))
	}
	switch {
	case a.Drops && b.CanFail != "":
		return fmt.Sprintf("it can fail (%s) for elements that %s drops", b.CanFail, p.name(i))
	case a.CanFail != "" && p.failuresTakeTurns(j) != "":
		return fmt.Sprintf("%s can fail (%s), and a failed element takes a turn of %s", p.name(i), a.CanFail, p.failuresTakeTurns(j))
	case p.draws(a) || a.Drops && p.draws(b):
		return "the random values of one step would depend on which elements the other step drops"
	case a.Checks != "" && p.tolerance == pecanv1.OrderTolerance_ORDER_TOLERANCE_EXACT:
		return fmt.Sprintf("%s checks elements (%s), and would not check those that %s drops", p.name(i), a.Checks, p.name(j))
	}
	return ""
}

// failuresTakeTurns returns the name of a parallel interleave that gets the elements of a step, or calls the function that
// has the step. It returns "" if there is none. Such an interleave goes on to the next input after a failed element, as after
// others. If the element is dropped before it fails, the other elements have another sequence. A sequential interleave does
// not go on.
func (p *proposer) failuresTakeTurns(i int) string {
	for k, t := range p.all[p.steps[i]:] {
		if ops.Rules[t.Op].Mixes && ops.IsParallel(t.Op) {
			return p.displayNames[p.steps[i]+k]
		}
	}
	return ""
}

// whyMapStays returns the reason why map j must run after filter i. Before it, the map would also get the
// elements that the filter drops.
func (p *proposer) whyMapStays(i, j int) string {
	a, b := p.step(i), p.step(j)
	if c, found := readComponent(a, b); found {
		return fmt.Sprintf("it changes component %d, which %s reads", c, p.name(i))
	}
	switch {
	case b.CanFail != "":
		return fmt.Sprintf("it can fail (%s) for elements that %s drops", b.CanFail, p.name(i))
	case p.draws(b):
		return fmt.Sprintf("its random values would depend on which elements %s drops", p.name(i))
	}
	return ""
}

// readComponent returns the first component that the writer changes and the reader reads.
func readComponent(reader, writer *graphorder.Traits) (c int, found bool) {
	at := slices.IndexFunc(writer.Writes, func(c int) bool { return slices.Contains(reader.Reads, c) })
	if at < 0 {
		return 0, false
	}
	return writer.Writes[at], true
}

// shareComponent reports whether one of two maps writes a component that the other reads or writes.
func shareComponent(a, b *graphorder.Traits, c int) bool {
	aWrites, bWrites := slices.Contains(a.Writes, c), slices.Contains(b.Writes, c)
	return aWrites && (bWrites || slices.Contains(b.Reads, c)) || bWrites && slices.Contains(a.Reads, c)
}

// whyMapsStay returns the reason why two maps of component c may not swap.
func (p *proposer) whyMapsStay(i, j, c int) string {
	a, b := p.step(i), p.step(j)
	for _, one := range []int{i, j} {
		t, other := p.step(one), i+j-one
		if !slices.Contains(t.Writes, c) {
			return fmt.Sprintf("%s reads component %d, which %s changes", p.name(one), c, p.name(other))
		}
		if why := changesRankOrKind(t.Before[c], t.After[c]); why != "" {
			return fmt.Sprintf("%s %s (component %d)", p.name(one), why, c)
		}
		if !slices.Contains(t.Reads, c) {
			return fmt.Sprintf("%s replaces component %d without reading it", p.name(one), c)
		}
		if !slices.Contains(t.SelfReads, c) {
			return fmt.Sprintf("%s reads component %d for another result or a check, and %s changes that component", p.name(one), c, p.name(other))
		}
	}
	left, right := p.inBatches(i, j, c), change(b, c)
	for _, pair := range []struct {
		one   int
		other dataflow.Change
	}{{i, right}, {j, left}} {
		if op := p.step(pair.one).FailsForIntegers; op != "" && (pair.other.Opaque != "" || pair.other.Computes || pair.other.Permutes|pair.other.Sizes != 0) {
			return fmt.Sprintf("%s can fail (%s) for values that %s changes, adds or removes (component %d)", p.name(pair.one), op, p.name(i+j-pair.one), c)
		}
	}
	for _, one := range []int{i, j} {
		t, other := p.step(one), change(p.step(i+j-one), c)
		if was, is := t.Before[c].GetDtype(), t.After[c].GetDtype(); was != is && (other.Arithmetic || other.Opaque != "") {
			return fmt.Sprintf("%s converts component %d from %s to %s, and %s computes with it",
				p.name(one), c, typeName(was), typeName(is), p.name(i+j-one))
		}
	}
	passes, why := left.CommutesWith(right)
	switch {
	case passes:
		return ""
	case p.tolerance == pecanv1.OrderTolerance_ORDER_TOLERANCE_ANY && ranked(a, c) && ranked(b, c):
		why = sizeCheckMayFail(left, right, a.Before[c].GetDims())
	case p.tolerance == pecanv1.OrderTolerance_ORDER_TOLERANCE_APPROXIMATE:
		why = whyDiffer(left, right, a.Before[c].GetDims(), a.Random && b.Random)
	}
	if why != "" {
		return fmt.Sprintf("%s (component %d)", why, c)
	}
	if by := p.decidedBy(p.steps[i], c); by >= 0 {
		return fmt.Sprintf("%s could then drop other elements, because the values of component %d would differ slightly", p.displayNames[by], c)
	}
	return ""
}

// decidedBy returns a later step that selects elements by values that may depend on a component; -1 without one. In
// another order the values may differ within the tolerance, but the number of elements may not.
func (p *proposer) decidedBy(step, component int) int {
	affected := map[int]bool{component: true}
	// The steps in whose functions the step is return the components of their functions.
	calls := func(t *graphorder.Traits) bool { return p.all[step].IsIn(t.Node) }
	// Downstream of a join, components have other numbers.
	all := slices.ContainsFunc(p.all[step+1:], func(t graphorder.Traits) bool { return t.Begins && !calls(&t) })
	touches := func(components []int) bool {
		return all || slices.ContainsFunc(components, func(c int) bool { return affected[c] })
	}
	for k := step + 1; k < len(p.all); k++ {
		t := &p.all[k]
		switch {
		case calls(t):
		case t.Barrier != "" && t.Decides, t.Drops && touches(t.Reads):
			return k
		case t.Barrier != "":
			all = all || t.Calls || t.Joins
		case touches(t.Reads):
			for _, c := range t.Writes {
				affected[c] = true
			}
		}
	}
	return -1
}

func change(t *graphorder.Traits, c int) dataflow.Change { return t.Changes[slices.Index(t.Writes, c)] }

func ranked(t *graphorder.Traits, c int) bool {
	return !t.Before[c].GetUnknownRank() && !t.After[c].GetUnknownRank()
}

// whyDiffer returns the reason why the results of two changes may differ too much in the other order; empty if a
// trial can decide that. before has the sizes of the first step's input.
func whyDiffer(a, b dataflow.Change, before []int64, random bool) string {
	switch {
	case a.Opaque != "":
		return a.Opaque
	case b.Opaque != "":
		return b.Opaque
	case random:
		return "both change values by random numbers"
	case a.InsertionsDiffer(b) != "" && !mixesAffinely(a) && !mixesAffinely(b):
		return a.InsertionsDiffer(b)
	case a.Computes && b.Computes && (!a.Affine || !b.Affine):
		return "both compute values, and one of them computes more than weighted sums"
	case a.Computes && b.Computes && (a.Mixes == 0) == (b.Mixes == 0) && a.Mixes == 0:
		return "both compute values"
	}
	for _, pair := range [][2]dataflow.Change{{a, b}, {b, a}} {
		one, other := pair[0], pair[1]
		if both := one.Mixes & other.Mixes; both != 0 {
			return fmt.Sprintf("both combine several values along dimension %v", both)
		}
		if both := one.PositionDependent & (other.Moves | other.Mixes); both != 0 {
			return fmt.Sprintf("one treats the positions along dimension %v differently, and the other moves or combines values there", both)
		}
		if both := one.Permutes & (other.Moves | other.Mixes); both != 0 {
			return fmt.Sprintf("one removes, adds or rearranges values along dimension %v, and the other moves or combines them", both)
		}
		if both := one.Moves & other.Skews; both != 0 {
			return fmt.Sprintf("one reverses dimension %v, and the other does not return reversed results for reversed values", both)
		}
		if both := one.Sizes & other.DependsOnSize; both != 0 {
			return fmt.Sprintf("one changes the size of dimension %v, and the other's result depends on that size", both)
		}
	}
	return sizeCheckMayFail(a, b, before)
}

// mixesAffinely reports whether a step computes weighted sums of several values. A trial shows whether it keeps a constant.
func mixesAffinely(c dataflow.Change) bool { return c.Computes && c.Affine && c.Mixes != 0 }

// sizeCheckMayFail returns the reason why a check of sizes may fail in the other order, and only for some elements;
// empty if none can.
func sizeCheckMayFail(a, b dataflow.Change, before []int64) string {
	for _, pair := range []struct {
		sizes, checks dataflow.Dims
		input         []int64
	}{{a.Sizes, b.ChecksSize, before}, {b.Sizes, a.ChecksSize, b.After}} {
		if both := pair.sizes & pair.checks; both != 0 && !sizesFixed(pair.input, both) {
			return fmt.Sprintf("one changes the size of dimension %v, and the other checks that size", both)
		}
	}
	return ""
}

// sizesFixed reports whether the sizes of dims are equal for all elements. Then a trial shows whether a check
// of them fails.
func sizesFixed(sizes []int64, dims dataflow.Dims) bool {
	for i, size := range sizes {
		if dims&(1<<i) != 0 && size < 0 {
			return false
		}
	}
	return true
}

// changesRankOrKind describes a change of a component's rank, or between strings and numbers; empty without one.
func changesRankOrKind(before, after *pecanv1.ComponentSpec) string {
	switch {
	case isString(before) != isString(after):
		return fmt.Sprintf("converts %s to %s", typeName(before.GetDtype()), typeName(after.GetDtype()))
	case !before.GetUnknownRank() && !after.GetUnknownRank() && len(before.GetDims()) != len(after.GetDims()):
		return fmt.Sprintf("changes the number of dimensions from %d to %d", len(before.GetDims()), len(after.GetDims()))
	}
	return ""
}
