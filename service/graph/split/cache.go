package split

import (
	"fmt"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/cacheable"
)

// planCache lists the steps that may be cached, and decides how pecan.cache() is used. It runs after the cut is decided.
// root is the tree that was cut.
func (p *Planner) planCache(plan *pecanv1.Plan, root *graph.Step, opts *pecanv1.JobOptions, env Env) {
	rules := cacheable.New(p.g, p.Analysis)
	asked := cacheable.Request{Mode: plan.GetMode(), Cache: opts.GetCache(), Profile: env.Profile}
	asked.Division, asked.Refusal = p.divisionForCache(plan, root)
	candidates, omitted := rules.Candidates(root, asked)
	for _, c := range candidates {
		plan.CacheCandidates = append(plan.CacheCandidates, c.CacheCandidate)
	}
	if omitted > 0 {
		addReason(plan, "Of the steps that may be cached, %d are left out. A plan has at most %d.", omitted, len(candidates))
	}
	last := cacheable.Forced(candidates)
	switch {
	case last == nil:
		return
	case opts.GetCache() == pecanv1.Cache_CACHE_OFF:
		addReason(plan, `The job has cache="off", so cache() passes elements on.`)
		return
	case !last.Legal():
		addReason(plan, "cache() does nothing here: %s.", last.Why)
		return
	}
	if marks := p.cacheMarks(root); marks > 1 {
		addReason(plan, "The dataset has %d cache() steps. Only the last one that can be used, %s, has an effect: remove the others.", marks, last.Node)
	}
	if last.Why != "" {
		addReason(plan, "cache() does not notice changed files: %s.", last.Why)
	}
	plan.Cache = &pecanv1.CachePlan{Node: last.Node, Packed: rules.FitsInPacks(last.Step)}
	parts, why := p.partsAt(root, plan, last.Step)
	if plan.Cache.Parts = parts; parts == 0 {
		plan.Cache.Seeded = rules.DrawsSeeds(last.Step)
	}
	plan.Cache.Key = cacheable.Key(p.g, plan)
	others := fmt.Sprintf("and so do other jobs with the same steps up to it. There is a segment for each of the %d parts of the source", parts)
	if parts == 0 {
		others = "and so do other jobs with the same dataset and number of streams"
		if plan.Cache.Seeded {
			others += " and the same seed, because steps upstream of cache() draw from the seed"
		}
		others += fmt.Sprintf(". There is a segment for each stream, because %s", why)
	}
	addReason(plan, "The first epoch writes the elements of cache() (%s). Later epochs read them, %s. Epochs are not prefetched.", last.Node, others)
}

// partsAt returns the number of parts if the elements of a step are stored by parts, else 0 and why they are not. root is the
// tree that was cut.
func (p *Planner) partsAt(root *graph.Step, plan *pecanv1.Plan, step *graph.Step) (parts uint32, why string) {
	if plan.GetNumStreams() < 2 {
		return 0, "the dataset is not divided"
	}
	w, err := p.FindDivision(root, plan)
	if err != nil {
		return 0, "the cut was not found"
	}
	found := p.partPrefix(root, w)
	at, within := found.steps[step]
	switch {
	case !within:
		return 0, found.why
	case w.part == 0 || at > len(w.ordering):
		return 0, "the source is divided for another step"
	}
	return uint32(w.splitCount), ""
}

// divisionForCache returns the division of a plan, or the reason why nothing can be cached with it.
func (p *Planner) divisionForCache(plan *pecanv1.Plan, root *graph.Step) (cacheable.Division, cacheable.Refusal) {
	w := Division{}
	switch {
	case plan.GetNumStreams() == 0:
		return cacheable.Division{}, cacheable.Refusal{Code: pecanv1.CacheRefusal_CACHE_REFUSAL_SHARDING,
			Why: "sharding is off, so every worker would store the whole dataset. Choose a sharding policy to use the cache"}
	case plan.GetCut().GetKind() == pecanv1.Cut_HINT:
		return cacheable.Division{}, cacheable.Refusal{Code: pecanv1.CacheRefusal_CACHE_REFUSAL_SHARDING,
			Why: "with sharding HINT the user divides the dataset. Use another sharding policy"}
	case plan.GetNumStreams() > 1:
		found, err := p.FindDivision(root, plan)
		if err != nil {
			return cacheable.Division{}, cacheable.Refusal{Code: pecanv1.CacheRefusal_CACHE_REFUSAL_UNDIVIDED, Why: "the cut was not found"}
		}
		w = found
	}
	return cacheable.Division{Cuts: w.Cuts, Batch: w.Batch, Ordering: w.ordering}, cacheable.Refusal{}
}

// cacheMarks counts the steps that pecan.cache() marks.
func (p *Planner) cacheMarks(root *graph.Step) (n int) {
	root.Walk(func(s *graph.Step) {
		if mark := p.g.CacheMarkOf(s.Node); mark != nil && mark.Forced {
			n++
		}
	})
	return n
}
