package split

import (
	"fmt"
	"math"
	"slices"
	"strings"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/analysis"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// streamCount is the number of streams that a division gets.
type streamCount struct {
	streams, group int64
	load           workload
	// most is the largest number that the division can have. It is 1 if the source cannot be divided.
	most int64
	// where says where the cut is. reason is a sentence about the whole division, and why is a sentence about the number.
	where, reason, why string
}

// undivided is the count of a dataset with one stream. A user who asks for more streams may get up to most.
func undivided(most int64, where, format string, args ...any) streamCount {
	why := "The dataset is not divided: " + fmt.Sprintf(format, args...)
	return streamCount{streams: 1, most: most, where: where, reason: why, why: why}
}

// countStreams chooses S for a division. With static > 0 the list of workers sets S.
func (p *Planner) countStreams(root *graph.Step, d Division, static int, plan *pecanv1.Plan, env Env) streamCount {
	if !p.sameInAllStreams(d) {
		return undivided(1, "", "the steps before %s produce other elements in each run, so the streams would not match.", p.edgeNames(d))
	}
	if p.VariablesDecideCount(root) {
		return undivided(1, "", "a variable that its functions change may determine which elements "+
			"exist, and each stream would change its own copy. Compute the value from the element to divide the work.")
	}
	cost, tail := p.divisionCost(d), p.tailWeight(root, d)
	where := p.describeCut(d)
	if static > 0 {
		s := streamCount{streams: int64(static), where: where, why: fmt.Sprintf("There is a stream for each of the %d workers of the dispatcher's list.", static)}
		s.reason = fmt.Sprintf("%s, for the %d workers of the list.", where, static)
		return s
	}
	most, endless := min(maxStreams, d.splitCount), p.MayBeEndless(root)
	if endless {
		// All streams of an endless source are open together.
		most = min(most, defaultGroup)
	}
	most, _ = p.fair(d, most)
	limit := streamLimit(cost, tail, p.cutIsFree(d))
	if limit <= 1 && len(d.Edges) == 1 && d.Edges[0].at.Rule.Kind == ops.Repeated && p.MayBeEndless(d.Edges[0].at) {
		return undivided(most, where, "%s repeats without end before a step that combines elements of several repetitions, "+
			"and every stream would repeat all work before it. Put repeat() at the end of the pipeline to divide the work; "+
			"batch(..., drop_remainder=True) before it keeps all batches full.", p.edgeNames(d))
	}
	if limit <= 1 {
		return undivided(most, where, "every stream would repeat all work before %s%s%s. "+
			"To divide the work, move that step after the expensive ones, or before the reading.", p.edgeNames(d), costText[cost], p.whyNotUpstream(d))
	}
	// A worker's first stream of a dataset takes tens of milliseconds of CPU to open, and each further one a few. So small
	// datasets get fewer streams. A file is a large split, so few files are divided further. If the work was measured,
	// there may be more streams, as long as each has enough work to be worth opening.
	least, unit := int64(4), "splits"
	if allFiles(d) || anyExtents(d) {
		least, unit = 8, unitOf(d)
	} else if d.part > 0 {
		unit = unitOf(d)
	}
	load := p.workload(root, d, plan, env)
	measured, whyMeasured := load.measured()
	small := max(least, d.splitCount/4, min(measured, d.splitCount))
	bound := ""
	switch {
	case d.splitCount <= min(limit, small):
		// Each unit has its own stream, so nothing limits S.
	case small < limit && small == measured:
		bound = fmt.Sprintf(" There are %d streams: %s.", small, whyMeasured)
	case small < limit:
		bound = fmt.Sprintf(" There are %d %s; opening a stream takes time, so there is one for every four of them, or %d where that is more.",
			d.splitCount, unit, least)
	case cost > 0:
		bound = fmt.Sprintf(" Every stream repeats the work before the cut%s, so the number of streams is kept small%s.", costText[cost], p.whyNotUpstream(d))
	case endless && limit == defaultGroup:
		bound = fmt.Sprintf(" All streams of a source without an end are open together, so there are at most %d.", defaultGroup)
	default:
		bound = " No work comes after the cut, so more streams would only cost more."
	}
	limit = min(limit, d.splitCount, small)
	if limit == defaultGroup && !endless {
		limit, bound = load.streams()
		bound = " " + bound
	}
	fair, unfair := p.fair(d, limit)
	if limit = fair; unfair {
		bound = " With more streams, some streams would read elements of the endless source more often than others."
	}
	if limit <= 1 {
		return undivided(most, where, "%s", p.whyOneStream(d))
	}
	why := strings.TrimSpace(bound)
	if why == "" {
		why = fmt.Sprintf("Each of the %d %s has a stream of its own.", d.splitCount, unit)
	}
	return streamCount{streams: limit, group: load.group(limit), load: load, most: most, where: where, why: why, reason: fmt.Sprintf("%s, into %d streams. %s", where, limit, why)}
}

// unitOf names what a stream has of a cut by parts or at files.
func unitOf(d Division) string {
	switch {
	case d.part > 0:
		return "parts"
	case maxBlock(d) > 1:
		return "blocks of extents"
	case anyExtents(d):
		return "extents"
	}
	return "files"
}

// fair lowers S until each stream meets every element of an endless source equally often. It also reports whether
// that lowered S.
func (p *Planner) fair(d Division, limit int64) (fair int64, lowered bool) {
	for _, e := range d.Edges {
		// After each of its blocks, a stream skips one block of every other stream.
		fair := min(p.fairStreams(e, limit), math.MaxInt64/e.block)
		lowered = lowered || fair < limit
		limit = fair
	}
	return limit, lowered
}

// asked applies the number of streams that the user asks for, or that a saved position or a cache has.
func (s streamCount) asked(p *Planner, d Division, opts *pecanv1.JobOptions, env Env) streamCount {
	n, by := int64(opts.GetStreams()), fmt.Sprintf("The job asks for streams=%d", opts.GetStreams())
	switch {
	case env.Division != nil:
		n, by = int64(env.Division.GetNumStreams()), "The saved position has this number of streams"
	case n == 0 && env.CacheStreams > 0:
		n, by = int64(env.CacheStreams), "The cache that an earlier job wrote has this number of streams"
	}
	switch {
	case n == 0 || n == s.streams && (s.most == 0 || env.Division == nil || int64(env.Division.GetGroup()) == s.group):
		return s
	case s.most == 0:
		s.why = fmt.Sprintf("%s, but with this sharding policy the dispatcher's list of workers sets their number: choose DYNAMIC.", by)
		s.reason += " " + s.why
		return s
	case s.most == 1:
		s.why = fmt.Sprintf("%s. %s", by, s.reason)
		s.reason = s.why
		return s
	}
	s.streams, s.why = n, by+"."
	if n > s.most {
		s.streams, _ = p.fair(d, s.most)
		s.why = fmt.Sprintf("%s, and %s", by, p.whyNoMore(d, s.streams))
	}
	s.group = s.load.group(s.streams)
	if env.Division != nil {
		s.group = int64(env.Division.GetGroup())
	}
	s.reason = fmt.Sprintf("%s, into %d streams. %s", s.where, s.streams, s.why)
	return s
}

func (p *Planner) anyEndless(d Division) bool {
	return slices.ContainsFunc(d.Edges, func(e Edge) bool { return p.MayBeEndless(e.at) })
}

// whyNoMore says what keeps a division from having more streams.
func (p *Planner) whyNoMore(d Division, most int64) string {
	switch {
	case most == defaultGroup && most < d.splitCount && p.anyEndless(d):
		return fmt.Sprintf("all streams of a source without an end are open together, at most %d.", most)
	case most == maxStreams:
		return fmt.Sprintf("no dataset gets more than %d.", most)
	case most < d.splitCount:
		return fmt.Sprintf("with more than %d streams, some streams would read elements of the endless source more often than others.", most)
	case allFiles(d) && !anyExtents(d):
		return fmt.Sprintf("the source has %d files: write more files, or choose sharding DATA.", d.splitCount)
	}
	return fmt.Sprintf("the source has %d splits: use smaller batches, or divide the dataset further upstream.", d.splitCount)
}

var costText = [...]string{"", " (light functions)", " (reading records)", " (reading or computing every element)"}

// streamLimit weighs the head, which every stream repeats, against the tail, which is divided among the streams.
func streamLimit(cost, tail int, free bool) int64 {
	switch {
	case cost == 0 && tail == analysis.WeightNone && !free:
		return 4
	case cost == 0:
		return defaultGroup
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
func (p *Planner) cutIsFree(d Division) bool {
	for _, e := range d.Edges {
		if e.at.Rule.Kind != ops.Source {
			return false
		}
	}
	return true
}

// tailWeight is the heaviest work downstream of the cut.
func (p *Planner) tailWeight(root *graph.Step, d Division) int {
	weight := analysis.WeightNone
	eachTail(root, d, func(s *graph.Step) { weight = max(weight, p.Weight(s)) })
	return weight
}

// eachTail visits the steps downstream of the cut.
func eachTail(root *graph.Step, d Division, visit func(*graph.Step)) {
	if _, cut := d.Cuts[root]; cut {
		return
	}
	visit(root)
	for _, in := range root.In {
		eachTail(in, d, visit)
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
func (p *Planner) sameInAllStreams(d Division) bool {
	for _, e := range d.Edges {
		if !p.SameInEveryRun(e.at) {
			return false
		}
	}
	return true
}
