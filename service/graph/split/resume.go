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

// A stream that begins at index i leaves out its first i elements, as far upstream as possible. A map
// followed by skip(i) gives the same elements as skip(i) followed by the map. A batch of b followed by
// skip(i) gives the same elements as skip(i·b) followed by the batch. So the skip moves from the root towards
// the cut. It stops at a step whose later elements depend on earlier ones, or where the number of earlier
// elements is not known. The steps that it passed through are not run again for the skipped elements.

// MayMove reports whether a stream that a client has read may continue on another worker. Mode at-most-once
// never computes an element again. There, the stream may move only if it can begin at any index, recomputes
// nothing, and gives the same elements.
func MayMove(plan *pecanv1.Plan, options *pecanv1.JobOptions) bool {
	return options.GetMode() != pecanv1.Mode_MODE_AT_MOST_ONCE ||
		IsRepeatable(plan) && plan.GetResume().GetStrategy() == pecanv1.Resume_SEEK
}

// IsRepeatable reports whether an index identifies an element: another run of a stream gives the same
// elements in the same order.
func IsRepeatable(plan *pecanv1.Plan) bool {
	return plan.GetDeterminism() != pecanv1.DeterminismClass_DETERMINISM_CLASS_C
}

// RestartsFromStart reports whether a stream that is run again is sent from its start. That is so if an index
// does not identify an element and the job may not lose elements.
func RestartsFromStart(plan *pecanv1.Plan, options *pecanv1.JobOptions) bool {
	return !IsRepeatable(plan) && options.GetMode() != pecanv1.Mode_MODE_AT_MOST_ONCE
}

// MovesAtOnce reports whether a stream may leave its worker at any time and continue on another one at its index, because no
// step runs again.
func MovesAtOnce(plan *pecanv1.Plan, options *pecanv1.JobOptions) bool {
	return plan.GetResume().GetStrategy() == pecanv1.Resume_SEEK && IsRepeatable(plan) && options.GetMode() != pecanv1.Mode_MODE_AT_MOST_ONCE && !plan.GetWritesFiles() && plan.GetCache() == nil
}

// skipPassesThrough reports whether leaving out the first inputs of a step leaves its later elements
// unchanged. Leaving out n of its elements needs factor·n fewer elements of its inputs.
func (p *Planner) skipPassesThrough(s *graph.Step, ordered bool) (factor int64, ok bool) {
	if f := p.Facts(s); f.CachesElements || f.Stateful || f.WritesVariables || ordered && (f.Random || f.Seeded || f.Unrepeatable) && !p.Keyed[s.Node.GetName()] {
		// A function that counts, or draws random values in sequence, depends on its calls for the earlier
		// elements.
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

// VisitSkips visits the steps from a root upstream to the steps where the skip stops. rests is true for a step where the
// skip stops. more is the number of elements of the step that are skipped for each skipped element of the root.
func (p *Planner) VisitSkips(s *graph.Step, d Division, ordered bool, more int64, visit func(s *graph.Step, more int64, rests bool)) {
	factor, ok := p.skipPassesThrough(s, ordered)
	if _, cut := d.Cuts[s]; cut || !ok || s.Node.GetName() == p.CachedStep || more > math.MaxInt32/factor {
		visit(s, more, true)
		return
	}
	visit(s, more, false)
	for _, in := range s.In {
		p.VisitSkips(in, d, ordered, more*factor, visit)
	}
}

// WhyNoStart returns the reason why a stream may not begin at an index, "" if it may. The elements before the
// index must be the same in every run.
func (p *Planner) WhyNoStart(root *graph.Step, d Division, mode pecanv1.Mode) (why string) {
	switch {
	case !analysis.NeedsRepeatableOrder(mode) && p.UnorderedStep(root) != nil:
		return "its steps may give elements in any order"
	case d.Batch != nil && d.Strategy == closingBatches:
		for s := root; s != d.Batch; s = s.In[0] {
			if factor, ok := p.skipPassesThrough(s, analysis.IsDeterministic(mode)); !ok || factor != 1 {
				return fmt.Sprintf("%s comes after a batch that is filled from several streams", s.Node.GetName())
			}
		}
	}
	return ""
}

// planResume records how a stream resumes at an index.
func (p *Planner) planResume(plan *pecanv1.Plan, root *graph.Step, d Division) {
	plan.Resume = &pecanv1.Resume{Strategy: pecanv1.Resume_RECOMPUTE, Checkpoints: p.whyNoCheckpoint(root, d, plan.Mode) == ""}
	if why := p.WhyNoStart(root, d, plan.Mode); why != "" {
		addReason(plan, "A stream that moves to another worker runs again from its start: %s.", why)
		return
	}
	saved, again := false, analysis.WeightNone
	var blocker *graph.Step
	p.VisitSkips(root, d, analysis.IsDeterministic(plan.Mode), 1, func(s *graph.Step, _ int64, rests bool) {
		if !rests {
			saved = saved || p.Weight(s) > analysis.WeightNone || s.Rule.Kind == ops.Batched
			return
		}
		plan.Resume.SkipNodes = append(plan.Resume.SkipNodes, s.Node.GetName())
		_, cut := d.Cuts[s]
		if work := p.recomputedWork(s); work > again || blocker == nil {
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
		addReason(plan, "A stream that moves to another worker resumes at its index after %s: nothing is computed again.", where)
	case saved:
		plan.Resume.Strategy = pecanv1.Resume_PARTIAL
		addReason(plan, "A stream that moves to another worker resumes at its index after %s: the steps upstream run again.", where)
	default:
		plan.Resume.SkipNodes = nil
		addReason(plan, "A stream that moves to another worker runs again from its start: %s cannot produce an element without those before it.", where)
	}
}

// recomputedWork is the heaviest work that a stream runs again when the skip stops at a step.
func (p *Planner) recomputedWork(s *graph.Step) int {
	weight := analysis.WeightNone
	s.Walk(func(below *graph.Step) {
		weight = max(weight, p.Weight(below))
		if below.Rule.Kind == ops.Source && below.Rule.Cost > 0 {
			weight = analysis.WeightHeavy
		}
	})
	return weight
}

// whyNoCheckpoint returns the reason why a restored iterator would not continue with the same elements, "" if
// it would. TensorFlow saves buffers, positions and the state of seeded shuffles. It does not save state that
// functions keep from call to call.
func (p *Planner) whyNoCheckpoint(root *graph.Step, d Division, mode pecanv1.Mode) (why string) {
	if d.Batch != nil && d.Strategy == closingBatches {
		return "its two halves cannot be saved at one index"
	}
	analysis.WalkCounted(root, func(s *graph.Step, counted bool) {
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
	})
	return why
}
