package graph

import (
	"fmt"
	"math"
)

// streams chooses S for a way, and says in sentences where the cut is, what it costs and what keeps S small. With
// static > 0 the list of workers sets S.
func (p *planner) streams(root *step, w way, static int) (int64, []string) {
	if !p.sameInAllStreams(w) {
		return 1, []string{fmt.Sprintf("The dataset is not divided: what lies below %s gives other elements in each run, "+
			"so streams would not fit together.", p.highest(w))}
	}
	if p.variablesDecide(root) {
		return 1, []string{"The dataset is not divided: a variable that its functions change may decide which elements " +
			"there are, and streams would each change a copy of their own. Compute the value from the element to divide the work."}
	}
	cost, tail := p.wayCost(w), p.tailWeight(root, w)
	where := p.describe(w)
	if static > 0 {
		return int64(static), []string{fmt.Sprintf("%s, for the %d workers of the list.", where, static)}
	}
	limit := streamLimit(cost, tail, p.cutIsFree(w))
	if limit <= 1 && len(w.edges) == 1 && w.edges[0].at.rule.kind == repeated && p.endless(w.edges[0].at) {
		return 1, []string{fmt.Sprintf("The dataset is not divided: %s repeats without end below a step that takes elements of several passes together, "+
			"and every stream would repeat all work below it. Put repeat() at the end of the pipeline to divide the work; "+
			"batch(..., drop_remainder=True) before it keeps all batches full.", p.highest(w))}
	}
	if limit <= 1 {
		return 1, []string{fmt.Sprintf("The dataset is not divided: every stream would repeat all work below %s%s. "+
			"Move that step after the costly ones, or before the reading, to divide the work.", p.highest(w), costText[cost])}
	}
	// Opening a stream costs tens of milliseconds of CPU, about seven for each step with a function, most of it in
	// TensorFlow's optimizers: small datasets get fewer. A file is a large split, so few files are divided further.
	least, unit := int64(4), "shares"
	if allFiles(w) {
		least, unit = 8, "files"
	}
	small := max(least, w.splits/4)
	bound := ""
	switch {
	case w.splits <= min(limit, small):
		// Each has one: there is nothing to explain.
	case small < limit:
		bound = fmt.Sprintf(" There are %d %s; opening a stream costs tens of milliseconds, so there is one for every four of them, or %d where that is more.",
			w.splits, unit, least)
	case cost > 0:
		bound = fmt.Sprintf(" Every stream repeats what lies below%s, so their number is kept small.", costText[cost])
	case limit == MaxStreams:
		bound = fmt.Sprintf(" No dataset gets more than %d: every open stream has threads, buffers and a copy of the graph.", MaxStreams)
	default:
		bound = " No work stands above the cut, so more would only cost more."
	}
	limit = min(limit, w.splits, small)
	for _, e := range w.edges {
		// Blocks are skipped all streams at a time.
		fair := min(p.fairStreams(e, limit), math.MaxInt64/e.block)
		if fair < limit {
			bound = " More of them would not each meet every element of the endless source equally often."
		}
		limit = fair
	}
	if limit <= 1 {
		return 1, []string{"The dataset is not divided: " + p.whyOne(w)}
	}
	return limit, []string{fmt.Sprintf("%s, into %d streams.%s", where, limit, bound)}
}

var costText = [...]string{"", " (light functions)", " (reading records)", " (reading or computing every element)"}

// streamLimit weighs the head, which every stream repeats, against the tail, which they share.
func streamLimit(cost, tail int, free bool) int64 {
	switch {
	case cost == 0 && tail == weightNone && !free:
		return 4
	case cost == 0:
		return MaxStreams
	case cost == 1 && tail == weightHeavy:
		return 8
	case cost == 1 && tail == weightLight:
		return 4
	case cost == 2 && tail == weightHeavy:
		return 4
	}
	return 1
}

func allFiles(w way) bool {
	for _, e := range w.edges {
		if !e.files {
			return false
		}
	}
	return true
}

// cutIsFree tells whether the cut only changes numbers or constants of sources.
func (p *planner) cutIsFree(w way) bool {
	for _, e := range w.edges {
		if e.at.rule.kind != source {
			return false
		}
	}
	return true
}

// tailWeight is the heaviest work above the cut.
func (p *planner) tailWeight(root *step, w way) int {
	weight := weightNone
	eachTail(root, w, func(s *step) { weight = max(weight, p.weight(s)) })
	return weight
}

// eachTail visits the steps above the cut.
func eachTail(root *step, w way, visit func(*step)) {
	if _, cut := w.cuts[root]; cut {
		return
	}
	visit(root)
	for _, in := range root.in {
		eachTail(in, w, visit)
	}
}

// fairStreams lowers S until each stream of an endless source meets every element as often as any other: streams may
// be read at different speeds.
func (p *planner) fairStreams(e edge, limit int64) int64 {
	if !p.endless(e.at) {
		return limit
	}
	period, ok := p.period(e.at)
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

// period is after how many elements an endless step starts over; 0 when it never does.
func (p *planner) period(s *step) (int64, bool) {
	switch s.rule.kind {
	case source:
		return 0, true
	case oneToOne, pass, cached, asserted, shuffled:
		return p.period(s.in[0])
	case position:
		if s.node.GetOp() == "SkipDataset" {
			return p.period(s.in[0])
		}
	case repeated:
		if p.endless(s.in[0]) {
			return p.period(s.in[0])
		}
		n := p.cardinality(s.in[0])
		return n, n > 0
	case zipped:
		all := int64(1)
		for _, in := range s.in {
			n, ok := p.period(in)
			if !ok || n == 0 {
				return n, ok
			}
			if all/gcd(all, n) > (1<<40)/n {
				return 0, false
			}
			all = all / gcd(all, n) * n
		}
		return all, true
	case batched, windowed:
		size, ok := p.groupSize(s)
		n, known := p.period(s.in[0])
		if !ok || !known || n == 0 {
			return n, ok && known
		}
		return n / gcd(n, size), true
	}
	return 0, false
}

// sameInAllStreams tells whether the head gives the same elements at the same positions wherever it runs.
func (p *planner) sameInAllStreams(w way) bool {
	for _, e := range w.edges {
		if !p.repeatable(e.at) {
			return false
		}
	}
	return true
}

// repeatable tells whether element p of a step comes from the same source positions in each run with the same seeds.
func (p *planner) repeatable(s *step) bool {
	ok := true
	var below func(s *step, counted bool)
	below = func(s *step, counted bool) {
		f := p.facts(s)
		counted = counted || changesCount(s)
		switch {
		case (f.caches || f.stateful || f.writes) && s.rule.kind != source:
			ok = false
		case counted && (f.wild || p.races(s)):
			ok = false
		case s.node.GetOp() == "ShuffleDatasetV2", s.node.GetOp() == "SnapshotDatasetV2":
			ok = false
		}
		for _, in := range s.in {
			below(in, counted)
		}
		for _, c := range s.captured {
			below(c, true)
		}
	}
	below(s, false)
	return ok
}

// changesCount tells whether values decide how many elements a step gives.
func changesCount(s *step) bool {
	switch s.rule.kind {
	case perElement, stuck, directed:
		return true
	}
	return false
}

// variablesDecide tells whether a variable that functions change may have a say in which elements there are.
func (p *planner) variablesDecide(root *step) bool {
	decide := false
	var below func(s *step, counted bool)
	below = func(s *step, counted bool) {
		counted = counted || changesCount(s)
		decide = decide || (counted && p.facts(s).writes)
		for _, in := range s.in {
			below(in, counted)
		}
		for _, c := range s.captured {
			below(c, true)
		}
	}
	below(root, false)
	return decide
}

func (p *planner) highest(w way) string {
	names := ""
	for i, e := range w.edges {
		if i > 0 {
			names += ", "
		}
		if i == 3 {
			return names + "…"
		}
		names += e.at.node.GetName()
	}
	return names
}

func (p *planner) describe(w way) string {
	unit := "by elements"
	switch {
	case allFiles(w):
		unit = "by files"
	case maxBlock(w) > 1:
		unit = fmt.Sprintf("in blocks of %d elements", maxBlock(w))
	}
	if len(w.edges) > 1 {
		unit += ", jointly"
	}
	return fmt.Sprintf("The dataset is cut above %s, %s", p.highest(w), unit)
}

func maxBlock(w way) int64 {
	block := int64(1)
	for _, e := range w.edges {
		block = max(block, e.block)
	}
	return block
}

func (p *planner) whyOne(w way) string {
	switch {
	case w.splits <= 1 && allFiles(w):
		return "it reads a single file."
	case w.splits <= 1:
		return fmt.Sprintf("%s gives no more than one share.", p.highest(w))
	}
	return fmt.Sprintf("%s repeats without end, and no number of streams would give every element equally often. "+
		"Put repeat() at the end of the pipeline to divide the work.", p.highest(w))
}
