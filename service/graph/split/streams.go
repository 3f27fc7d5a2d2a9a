package split

import (
	"fmt"
	"math"

	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/analysis"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// streams chooses S for a division. It also returns sentences that say where the cut is, what it costs and
// what limits S. With static > 0 the list of workers sets S.
func (p *Planner) streams(root *graph.Step, w Division, static int) (int64, []string) {
	if !p.sameInAllStreams(w) {
		return 1, []string{fmt.Sprintf("The dataset is not divided: the steps before %s produce other elements in each run, "+
			"so the streams would not match.", p.edgeNames(w))}
	}
	if p.VariablesDecideCount(root) {
		return 1, []string{"The dataset is not divided: a variable that its functions change may determine which elements " +
			"exist, and each stream would change its own copy. Compute the value from the element to divide the work."}
	}
	cost, tail := p.divisionCost(w), p.tailWeight(root, w)
	where := p.describeCut(w)
	if static > 0 {
		return int64(static), []string{fmt.Sprintf("%s, for the %d workers of the list.", where, static)}
	}
	limit := streamLimit(cost, tail, p.cutIsFree(w))
	if limit <= 1 && len(w.Edges) == 1 && w.Edges[0].at.Rule.Kind == ops.Repeated && p.MayBeEndless(w.Edges[0].at) {
		return 1, []string{fmt.Sprintf("The dataset is not divided: %s repeats without end before a step that combines elements of several passes, "+
			"and every stream would repeat all work before it. Put repeat() at the end of the pipeline to divide the work; "+
			"batch(..., drop_remainder=True) before it keeps all batches full.", p.edgeNames(w))}
	}
	if limit <= 1 {
		return 1, []string{fmt.Sprintf("The dataset is not divided: every stream would repeat all work before %s%s. "+
			"To divide the work, move that step after the expensive ones, or before the reading.", p.edgeNames(w), costText[cost])}
	}
	// Opening a stream costs tens of milliseconds of CPU, about seven for each step with a function, mostly in
	// TensorFlow's optimizers. So small datasets get fewer streams. A file is a large split, so few files are
	// divided further.
	least, unit := int64(4), "splits"
	if allFiles(w) {
		least, unit = 8, "files"
	}
	small := max(least, w.splitCount/4)
	bound := ""
	switch {
	case w.splitCount <= min(limit, small):
		// Each unit has its own stream, so nothing limits S.
	case small < limit:
		bound = fmt.Sprintf(" There are %d %s; opening a stream costs tens of milliseconds, so there is one for every four of them, or %d where that is more.",
			w.splitCount, unit, least)
	case cost > 0:
		bound = fmt.Sprintf(" Every stream repeats the work before the cut%s, so the number of streams is kept small.", costText[cost])
	case limit == MaxStreams:
		bound = fmt.Sprintf(" No dataset gets more than %d: every open stream has threads, buffers and a copy of the graph.", MaxStreams)
	default:
		bound = " No work comes after the cut, so more streams would only cost more."
	}
	limit = min(limit, w.splitCount, small)
	for _, e := range w.Edges {
		// After each of its blocks, a stream skips one block of every other stream.
		fair := min(p.fairStreams(e, limit), math.MaxInt64/e.block)
		if fair < limit {
			bound = " With more streams, some would not meet every element of the endless source equally often."
		}
		limit = fair
	}
	if limit <= 1 {
		return 1, []string{"The dataset is not divided: " + p.whyOneStream(w)}
	}
	return limit, []string{fmt.Sprintf("%s, into %d streams.%s", where, limit, bound)}
}

var costText = [...]string{"", " (light functions)", " (reading records)", " (reading or computing every element)"}

// streamLimit weighs the head, which every stream repeats, against the tail, which is divided among the streams.
func streamLimit(cost, tail int, free bool) int64 {
	switch {
	case cost == 0 && tail == analysis.WeightNone && !free:
		return 4
	case cost == 0:
		return MaxStreams
	case cost == 1 && tail == analysis.WeightHeavy:
		return 8
	case cost == 1 && tail == analysis.WeightLight:
		return 4
	case cost == 2 && tail == analysis.WeightHeavy:
		return 4
	}
	return 1
}

// cutIsFree reports whether the cut changes only numbers or constants of sources.
func (p *Planner) cutIsFree(w Division) bool {
	for _, e := range w.Edges {
		if e.at.Rule.Kind != ops.Source {
			return false
		}
	}
	return true
}

// tailWeight is the heaviest work downstream of the cut.
func (p *Planner) tailWeight(root *graph.Step, w Division) int {
	weight := analysis.WeightNone
	eachTail(root, w, func(s *graph.Step) { weight = max(weight, p.Weight(s)) })
	return weight
}

// eachTail visits the steps downstream of the cut.
func eachTail(root *graph.Step, w Division, visit func(*graph.Step)) {
	if _, cut := w.Cuts[root]; cut {
		return
	}
	visit(root)
	for _, in := range root.In {
		eachTail(in, w, visit)
	}
}

// fairStreams lowers S until each stream of an endless source meets every element equally often. Streams may
// be read at different speeds.
func (p *Planner) fairStreams(e Edge, limit int64) int64 {
	if !p.MayBeEndless(e.at) {
		return limit
	}
	period, ok := p.repeatPeriod(e.at)
	if !ok {
		return 1
	}
	if period == 0 {
		return limit
	}
	for s := limit; s > 1; s-- {
		if e.block > math.MaxInt64/s {
			continue
		}
		if e.block%gcd(period, s*e.block) == 0 {
			return s
		}
	}
	return 1
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// repeatPeriod is the number of elements after which an endless step starts over; 0 when it never does.
func (p *Planner) repeatPeriod(s *graph.Step) (int64, bool) {
	switch s.Rule.Kind {
	case ops.Source:
		return 0, true
	case ops.OneToOne, ops.PassThrough, ops.Cached, ops.Asserted, ops.Shuffled:
		return p.repeatPeriod(s.In[0])
	case ops.Positional:
		if s.Node.GetOp() == "SkipDataset" {
			return p.repeatPeriod(s.In[0])
		}
	case ops.Repeated:
		if p.MayBeEndless(s.In[0]) {
			return p.repeatPeriod(s.In[0])
		}
		n := p.Cardinality(s.In[0])
		return n, n > 0
	case ops.Zipped:
		all := int64(1)
		for _, in := range s.In {
			n, ok := p.repeatPeriod(in)
			if !ok || n == 0 {
				return n, ok
			}
			if all/gcd(all, n) > (1<<40)/n {
				return 0, false
			}
			all = all / gcd(all, n) * n
		}
		return all, true
	case ops.Batched, ops.Windowed:
		size, ok := p.groupSize(s)
		n, known := p.repeatPeriod(s.In[0])
		if !ok || !known || n == 0 {
			return n, ok && known
		}
		return n / gcd(n, size), true
	}
	return 0, false
}

// sameInAllStreams reports whether the head gives the same elements at the same positions wherever it runs.
func (p *Planner) sameInAllStreams(w Division) bool {
	for _, e := range w.Edges {
		if !p.SameInEveryRun(e.at) {
			return false
		}
	}
	return true
}
