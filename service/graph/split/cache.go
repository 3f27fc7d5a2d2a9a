package split

import (
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/cacheable"
)

// planCache decides whether and how the cached step is used. It runs after the cut is decided. root is the
// tree that was cut.
func (p *Planner) planCache(plan *pecanv1.Plan, root *graph.Step) {
	marks := p.cacheMarks(root)
	if marks == 0 {
		return
	}
	w := Division{}
	if plan.GetNumStreams() > 1 && plan.GetCut().GetKind() != pecanv1.Cut_HINT {
		found, err := p.FindDivision(root, plan)
		if err != nil {
			addReason(plan, "cache() does nothing here: the cut was not found.")
			return
		}
		w = found
	}
	rules := cacheable.New(p.g, p.Analysis)
	mark, why := rules.CachedStep(plan, root, cacheable.Division{Cuts: w.Cuts, Batch: w.Batch})
	if why != "" {
		addReason(plan, "cache() does nothing here: %s.", why)
		return
	}
	if marks > 1 {
		addReason(plan, "The dataset has %d cache() steps. Only the last one, %s, has an effect: remove the others.", marks, mark.Node.GetName())
	}
	plan.Cache = &pecanv1.CachePlan{Node: mark.Node.GetName(), Seeded: rules.DrawsSeeds(mark), Packed: rules.FitsInPacks(mark)}
	plan.Cache.Key = cacheable.Key(p.g, plan)
	again := ""
	if plan.Cache.Seeded {
		again = " and the same seed, because steps upstream of cache() draw from the seed"
	}
	addReason(plan, "The first epoch writes the elements of cache() (%s). Later epochs read them, and so do other jobs with the same dataset%s. "+
		"Epochs are not prefetched.", mark.Node.GetName(), again)
}

// cacheMarks counts the cached steps of a dataset.
func (p *Planner) cacheMarks(root *graph.Step) (n int) {
	root.Walk(func(s *graph.Step) {
		if p.g.IsCacheMark(s.Node) {
			n++
		}
	})
	return n
}
