package split

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/cacheable"
)

// planCache lists the steps that may be cached, and decides how pecan.cache() is used. It runs after the cut is decided.
// root is the tree that was cut.
func (p *Planner) planCache(plan *pecanv1.Plan, root *graph.Step, opts *pecanv1.JobOptions, env Env) {
	rules := cacheable.New(p.g, p.Analysis)
	d, refusal := p.divisionForCache(plan, root)
	parts := p.partPrefix(root, d).of(d)
	candidates, omitted := rules.Candidates(root, cacheable.Request{
		Division: cacheable.Division{Cuts: d.Cuts, Batch: d.Batch, ByParts: parts.steps}, Refusal: refusal,
		Mode: plan.GetMode(), Cache: opts.GetCache(), Profile: env.Profile, Keyed: p.Keyed,
	})
	for _, c := range candidates {
		plan.CacheCandidates = append(plan.CacheCandidates, c.CacheCandidate)
	}
	for _, c := range candidates {
		if c.Legal() {
			p.planStep(plan, rules, c, parts)
		}
	}
	if omitted > 0 {
		addReason(plan, "Of the steps that may be cached, %d without a mark are left out. A job has at most %d candidates.", omitted, cacheable.MaxCandidates)
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
	plan.Cache = last.Plan
	others := fmt.Sprintf("and so do other jobs with the same steps up to it. There is a segment for each of the %d parts of the source", plan.Cache.Parts)
	if plan.Cache.Parts == 0 {
		others = "and so do other jobs with the same steps up to here and number of streams"
		if plan.Cache.Seeded {
			others += " and the same seed, because steps upstream of cache() draw from the seed"
		}
		if plan.GetCut().GetKind() == pecanv1.Cut_HINT {
			parts.why = "the user divides the dataset"
		}
		others += fmt.Sprintf(". There is a segment for each stream, because %s", parts.why)
	}
	addReason(plan, "The first epoch writes the elements of cache() (%s). Later epochs read them, %s. Epochs are not prefetched.", last.Node, others)
}

// planStep says how the elements of a candidate are stored. A step that draws from seeds gives other elements in each stream.
// The plan therefore refuses to store them if another stream reads the same share in another epoch.
func (p *Planner) planStep(plan *pecanv1.Plan, rules *cacheable.Rules, c *cacheable.Candidate, parts storedParts) {
	step := &pecanv1.CachePlan{Node: c.Node, Packed: rules.FitsInPacks(c.Step) && !c.AfterBatch}
	if parts.steps[c.Step] {
		step.Parts = parts.count
	} else {
		step.Seeded = rules.DrawsSeeds(c.Step)
	}
	if step.Seeded && movesShares(plan) {
		c.Refusal, c.Why = pecanv1.CacheRefusal_CACHE_REFUSAL_RANDOM, "a step before it draws from seeds, and each epoch reads the source in another order. Give freeze_randomness=True to repeat the first epoch"
		return
	}
	h := cacheable.NewHasher(p.g, plan)
	step.Key = p.keyWithMoves(cacheable.Key(h, plan, step, c.Step), h, c.Step)
	if c.AfterBatch {
		// A segment also has the rows that the stream keeps back for the closing stream. Their form depends on the batch
		// strategy.
		sum := sha256.New()
		graph.WriteHashPart(sum, []byte(step.Key))
		graph.WriteHashPart(sum, []byte(plan.GetBatchStrategy().String()))
		step.Key = hex.EncodeToString(sum.Sum(nil))
	}
	c.Plan = step
}

// keyWithMoves adds to the key of a cached step what steps downstream of it change upstream of it. A take moves
// upstream, and an outer repeat is removed. Otherwise datasets that differ only downstream would have one key and
// different elements.
func (p *Planner) keyWithMoves(key string, h *cacheable.Hasher, cached *graph.Step) string {
	registered := map[string]bool{}
	root, _ := p.g.Steps()
	root.Walk(func(s *graph.Step) {
		if s.Node.GetName() == cached.Node.GetName() {
			s.Walk(func(upstream *graph.Step) { registered[upstream.Node.GetName()] = true })
		}
	})
	changed := maps.Clone(registered)
	cached.Walk(func(s *graph.Step) {
		if name := s.Node.GetName(); registered[name] {
			delete(changed, name)
		} else {
			changed[name] = false
		}
	})
	if len(changed) == 0 {
		return key
	}
	sum := sha256.New()
	graph.WriteHashPart(sum, []byte(key))
	for _, name := range slices.Sorted(maps.Keys(changed)) {
		graph.WriteHashPart(sum, h.Node(name))
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// divisionForCache returns the division of a plan, or the reason why nothing can be cached with it.
func (p *Planner) divisionForCache(plan *pecanv1.Plan, root *graph.Step) (Division, cacheable.Refusal) {
	switch {
	case plan.GetNumStreams() == 0:
		return Division{}, cacheable.Refusal{Code: pecanv1.CacheRefusal_CACHE_REFUSAL_SHARDING,
			Why: "sharding is off, so every worker would store the whole dataset. Choose a sharding policy to use the cache"}
	case plan.GetNumStreams() == 1, plan.GetCut().GetKind() == pecanv1.Cut_HINT:
		return Division{}, cacheable.Refusal{}
	}
	d, err := p.FindDivision(root, plan)
	if err != nil {
		return Division{}, cacheable.Refusal{Code: pecanv1.CacheRefusal_CACHE_REFUSAL_UNDIVIDED, Why: "the cut was not found"}
	}
	return d, cacheable.Refusal{}
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
