package split

import (
	"fmt"
	"math"
	"strings"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/analysis"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// A stream that begins at index i leaves its first i elements out. They are left out as low as that can be done: skip(i)
// above a map gives what the map gives above skip(i), and above a batch of b what the batch gives above skip(i·b). So the
// skip sinks from the root towards the cut, and rests where the elements before have a say in those that come, or where it is not
// known how many of them there were. What it sank through is not run again.

// MayMove tells whether a stream that somebody has read may go on with another worker. Mode at-most-once computes nothing again, so
// there it may only where it can begin at any index with nothing run again, and gives there what it would have given.
func MayMove(plan *pecanv1.Plan, options *pecanv1.JobOptions) bool {
	return options.GetMode() != pecanv1.Mode_MODE_AT_MOST_ONCE ||
		IsRepeatable(plan) && plan.GetResume().GetStrategy() == pecanv1.Resume_SEEK
}

// IsRepeatable tells whether an index says which element it is: another run of a stream gives the same ones in the same order.
func IsRepeatable(plan *pecanv1.Plan) bool {
	return plan.GetDeterminism() != pecanv1.DeterminismClass_DETERMINISM_CLASS_C
}

// RestartsFromStart tells whether a stream that is run again is sent from its start: where an index does not say which element it is, and
// none may be left out.
func RestartsFromStart(plan *pecanv1.Plan, options *pecanv1.JobOptions) bool {
	return !IsRepeatable(plan) && options.GetMode() != pecanv1.Mode_MODE_AT_MOST_ONCE
}

// skipPassesThrough tells whether a step gives the same elements from some index on if those before are left out of its inputs: n of its
// own for each factor·n of theirs.
func (p *Planner) skipPassesThrough(s *graph.Step, ordered bool) (factor int64, ok bool) {
	if f := p.Facts(s); f.CachesElements || f.Stateful || f.WritesVariables || ordered && (f.Random || f.Seeded || f.Unrepeatable) && !p.Keyed[s.Node.GetName()] {
		// What a function counts, or draws one after another, depends on its calls for the elements before.
		return 0, false
	}
	switch s.Rule.Kind {
	case ops.OneToOne, ops.PassThrough, ops.Zipped, ops.Asserted:
		return 1, len(s.In) > 0
	case ops.Batched:
		size, ok := p.g.InputInt(s.Node, "batch_size")
		return size, ok && size > 0
	case ops.Windowed:
		shift, ok := p.g.InputInt(s.Node, "shift")
		return shift, ok && shift > 0
	case ops.Positional:
		if s.Node.GetOp() == "ShardDataset" {
			shards, ok := p.g.InputInt(s.Node, "num_shards")
			return shards, ok && shards > 0
		}
		count, ok := p.g.InputInt(s.Node, "count")
		return 1, ok && count >= 0
	}
	return 0, false
}

// VisitSkips visits the steps from a root down to where the skip rests, and tells which those are. more is how many elements of a
// step are left out for each of the root's.
func (p *Planner) VisitSkips(s *graph.Step, w Division, ordered bool, more int64, visit func(s *graph.Step, more int64, rests bool)) {
	factor, ok := p.skipPassesThrough(s, ordered)
	if _, cut := w.Cuts[s]; cut || !ok || s.Node.GetName() == p.CachedStep || more > math.MaxInt32/factor {
		visit(s, more, true)
		return
	}
	visit(s, more, false)
	for _, in := range s.In {
		p.VisitSkips(in, w, ordered, more*factor, visit)
	}
}

// WhyNoStart tells whether a stream may begin at an index at all: the elements at the indices before have to be the same in every run.
func (p *Planner) WhyNoStart(root *graph.Step, w Division, mode pecanv1.Mode) (why string) {
	switch {
	case !analysis.NeedsRepeatableOrder(mode) && p.UnorderedStep(root) != nil:
		return "its steps may give elements in any order"
	case w.Batch != nil && w.Strategy == closingBatches:
		for s := root; s != w.Batch; s = s.In[0] {
			if factor, ok := p.skipPassesThrough(s, analysis.IsDeterministic(mode)); !ok || factor != 1 {
				return fmt.Sprintf("%s stands above a batch that is filled from several streams", s.Node.GetName())
			}
		}
	}
	return ""
}

// planResume says how a stream goes on at an index.
func (p *Planner) planResume(plan *pecanv1.Plan, root *graph.Step, w Division) {
	plan.Resume = &pecanv1.Resume{Strategy: pecanv1.Resume_RECOMPUTE, Checkpoints: p.whyNoCheckpoint(root, w, plan.Mode) == ""}
	if why := p.WhyNoStart(root, w, plan.Mode); why != "" {
		addReason(plan, "A stream that moves to another worker is run again from its start: %s.", why)
		return
	}
	saved, again := false, analysis.WeightNone
	var blocker *graph.Step
	p.VisitSkips(root, w, analysis.IsDeterministic(plan.Mode), 1, func(s *graph.Step, _ int64, rests bool) {
		if !rests {
			saved = saved || p.Weight(s) > analysis.WeightNone || s.Rule.Kind == ops.Batched
			return
		}
		plan.Resume.SkipNodes = append(plan.Resume.SkipNodes, s.Node.GetName())
		_, cut := w.Cuts[s]
		if work := p.recomputedWork(s, w); work > again || blocker == nil {
			again = work
			if !cut && s.Rule.Kind != ops.Source {
				blocker = s
			}
		}
	})
	where := strings.Join(plan.Resume.SkipNodes, ", ")
	switch {
	case again == analysis.WeightNone && blocker == nil:
		plan.Resume.Strategy = pecanv1.Resume_SEEK
		addReason(plan, "A stream that moves to another worker begins at its index above %s: nothing is computed again.", where)
	case saved:
		plan.Resume.Strategy = pecanv1.Resume_PARTIAL
		addReason(plan, "A stream that moves to another worker begins at its index above %s: what lies below is run again.", where)
	default:
		plan.Resume.SkipNodes = nil
		addReason(plan, "A stream that moves to another worker is run again from its start: no element of %s can be had without those before it.", where)
	}
}

// recomputedWork is the heaviest work of what a stream runs again when the skip rests on a step.
func (p *Planner) recomputedWork(s *graph.Step, w Division) int {
	weight := analysis.WeightNone
	s.Walk(func(below *graph.Step) {
		weight = max(weight, p.Weight(below))
		if below.Rule.Kind == ops.Source && below.Rule.Cost > 0 {
			weight = analysis.WeightHeavy
		}
	})
	return weight
}

// whyNoCheckpoint says why an iterator that is restored would not go on with the same elements; "" when it would. TensorFlow saves
// buffers, positions and the state of seeded shuffles, but nothing that functions keep from call to call.
func (p *Planner) whyNoCheckpoint(root *graph.Step, w Division, mode pecanv1.Mode) (why string) {
	if w.Batch != nil && w.Strategy == closingBatches {
		return "its two halves cannot be saved at one index"
	}
	var below func(s *graph.Step, counted bool)
	below = func(s *graph.Step, counted bool) {
		f, name := p.Facts(s), s.Node.GetName()
		counted = counted || analysis.ChangesCount(s)
		switch {
		case f.Stateful || f.WritesVariables:
			why = name + " keeps state that a checkpoint does not hold"
		case (f.Random || f.Unrepeatable) && (counted || analysis.IsDeterministic(mode)) && !p.Keyed[name]:
			why = name + " draws values one after another, from a state that a checkpoint does not hold"
		case f.CachesElements || s.Rule.Kind == ops.Cached || s.Node.GetOp() == "SnapshotDatasetV2":
			why = name + " fills a cache as it is read"
		}
		for _, in := range s.In {
			below(in, counted)
		}
		for _, c := range s.Captured {
			below(c, true)
		}
	}
	below(root, false)
	return why
}
