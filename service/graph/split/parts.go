package split

import (
	"cmp"
	"math/bits"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/analysis"
	"github.com/pecan-ml/pecan/service/graph/cacheable"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// A part is a list of consecutive splits that follows from the source alone: neither S nor a seed changes it. The source
// is divided by parts if a step may be cached and its elements come from one part after another. So a stream has whole
// parts, and a segment of a cache has the elements of one part. Any S then reads the segments that any other S has
// written.

const (
	// leastRows is the least number of rows of a part, if the source has enough for leastParts. To begin a part takes a few
	// milliseconds.
	leastRows = 1024
	// leastParts leaves a choice of S, and mostParts bounds the files of a cache.
	leastParts, mostParts = 128, 4096
	// A part has leastExtents extents of 1 MB or more, if the source has enough for leastExtentParts. A source of many extents
	// has up to mostExtentParts parts.
	leastExtents, leastExtentParts, mostExtentParts = 8, 64, 512
)

// blocksOfPart returns how many blocks of a division a part has, if the source has a number of rows. The number depends
// on the graph alone. It does not depend on the sizes of files, because saved positions must stay valid when a file
// grows. Parts have a power of two of rows if the block divides it, so that most sizes of batches give the same parts.
func blocksOfPart(rows int64, e Edge) int64 {
	least := analysis.CeilDiv(rows, mostParts)
	switch {
	case e.extents:
		least = max(analysis.CeilDiv(rows, mostExtentParts), min(leastExtents, analysis.CeilDiv(rows, leastExtentParts)))
	case !e.files:
		least = max(least, min(leastRows, analysis.CeilDiv(rows, leastParts)))
	}
	return analysis.CeilDiv(1<<bits.Len64(uint64(max(least, 1)-1)), e.block)
}

// inParts returns a division by parts if a candidate can be stored by parts, else the division as it is. root is the tree
// that is cut.
func (p *Planner) inParts(plan *pecanv1.Plan, root *graph.Step, opts *pecanv1.JobOptions, d Division) Division {
	prefix := p.partPrefix(root, d)
	if len(prefix.steps) == 0 {
		return d
	}
	// In mode deterministic, only marks count: the job's option for caches must not change the order of its elements. Without a
	// profile, the candidates of all jobs with these options are the same.
	asked := pecanv1.Cache_CACHE_CANDIDATES
	if chooses := opts.GetCache() == pecanv1.Cache_CACHE_AUTO || opts.GetCache() == pecanv1.Cache_CACHE_PAPER; chooses && !analysis.IsDeterministic(plan.GetMode()) {
		asked = opts.GetCache()
	}
	candidates, _ := cacheable.New(p.g, p.Analysis).Candidates(root, cacheable.Request{
		Division: cacheable.Division{Cuts: d.Cuts, Batch: d.Batch, ByParts: prefix.upTo(place{len(prefix.ordering), len(prefix.late)})},
		Mode:     plan.GetMode(), Cache: asked, Keyed: p.Keyed,
	})
	cut := &pecanv1.Cut{}
	for _, c := range candidates {
		// Candidates come from the source on, so the last one has all ordering steps of the others.
		if at, within := prefix.steps[c.Step]; c.Legal() && within {
			rows := p.Cardinality(d.Edges[0].at)
			if units := d.Edges[0].units; units != nil {
				rows = int64(len(units))
			}
			cut.Part, cut.Ordering, cut.LateShuffles = blocksOfPart(rows, d.Edges[0]), prefix.ordering[:at.ordering], prefix.late[:at.late]
			if at.late > 0 {
				cut.LateAfter = c.Node
			}
		}
	}
	return p.byParts(d, cut)
}

// byParts returns a division whose blocks are the parts of a cut; the division as it is if the cut has none.
func (p *Planner) byParts(d Division, cut *pecanv1.Cut) Division {
	if d.part = cut.GetPart(); d.part == 0 {
		return d
	}
	d.ordering, d.late, d.lateAfter, d.splitCount = cut.GetOrdering(), cut.GetLateShuffles(), cut.GetLateAfter(), analysis.CeilDiv(d.splitCount, d.part)
	e := d.Edges[0]
	e.block *= d.part
	for _, name := range d.ordering {
		e.mixed = e.mixed || p.g.RuleOf(p.g.Node(name)).Kind == ops.Shuffled
	}
	d.Edges = []Edge{e}
	return d
}

// prefix has the steps from the source on whose elements come from one part after another. The elements of a part do not
// depend on other parts.
type prefix struct {
	steps map[*graph.Step]place
	// ordering are the steps that only order, and late are the shuffles of records, which also run downstream.
	ordering, late []string
	// why says what ends it.
	why string
}

// place says how many ordering steps and late shuffles are upstream of a step.
type place struct{ ordering, late int }

// upTo says for each step of the prefix whether at most most.ordering ordering steps and most.late late shuffles are
// upstream of it.
func (x prefix) upTo(most place) map[*graph.Step]bool {
	steps := map[*graph.Step]bool{}
	for s, at := range x.steps {
		steps[s] = at.ordering <= most.ordering && at.late <= most.late
	}
	return steps
}

// storedParts says which steps a division stores by parts, and in how many. why is the reason why the division does not
// store other steps by parts.
type storedParts struct {
	steps map[*graph.Step]bool
	count uint32
	why   string
}

// of returns what a division stores by parts of its prefix. The tree of the prefix has late shuffles in their new places.
func (x prefix) of(d Division) storedParts {
	if d.part == 0 {
		return storedParts{why: cmp.Or(x.why, "the source is not divided by parts")}
	}
	return storedParts{steps: x.upTo(place{ordering: len(d.ordering)}), count: uint32(d.splitCount), why: cmp.Or(x.why, "the source is divided for another step")}
}

// partPrefix finds the prefix of a division.
func (p *Planner) partPrefix(root *graph.Step, d Division) prefix {
	out := prefix{steps: map[*graph.Step]place{}}
	if out.why = p.whyNoParts(d); out.why != "" {
		return out
	}
	var path []*graph.Step
	for s := root; s != d.Edges[0].at; s = s.In[0] {
		if path = append(path, s); len(s.In) != 1 || len(s.Captured) > 0 {
			// Only the steps upstream of this one are on one path.
			if path = nil; len(s.In) == 0 {
				out.why = "the source is not on the path of the elements"
				return out
			}
			out.why = s.Node.GetName() + " reads several datasets"
		}
	}
	rules, listed := cacheable.New(p.g, p.Analysis), d.Edges[0].units == nil && p.listsNames(d.Edges[0].at)
	// rows is the number of rows of the source in an element; 0 if it varies.
	rows, late := int64(1), lateShuffles{}
	for i := len(path) - 1; i >= 0; i-- {
		s := path[i]
		if size := p.lateBuffer(s); size > 0 && !listed {
			late.buffered += size
			late.names = append(late.names, s.Node.GetName())
			continue
		}
		orders, why := rules.OnParts(s, listed)
		switch s.Rule.Kind {
		case ops.PerElement:
			rows = 0
		case ops.Batched:
			size, ok := p.groupSize(s)
			if rows *= size; why == "" && (!ok || s == d.Batch || rows == 0 || d.Edges[0].block%rows != 0) {
				why = s.Node.GetName() + " joins rows of several parts"
			}
		}
		if why == "" {
			why = p.whyNotAfter(s, late)
		}
		if why != "" {
			out.why = why
			break
		}
		if listed = listed && (s.Rule.Kind == ops.PassThrough || s.Rule.Kind == ops.Shuffled); orders {
			out.ordering = append(out.ordering, s.Node.GetName())
		}
		late.computed = late.computed || len(late.names) > 0 && s.Rule.Kind == ops.OneToOne
		if why = p.whyTooLarge(s, late); why == "" {
			out.steps[s] = place{len(out.ordering), len(late.names)}
		} else {
			out.why = cmp.Or(out.why, why)
		}
	}
	out.late = late.names
	return out
}

// whyNoParts says why the source of a division has no parts; empty if it has.
func (p *Planner) whyNoParts(d Division) string {
	switch {
	case len(d.Edges) == 0:
		return "the dataset is not divided"
	case len(d.Edges) > 1:
		return "the streams read several sources"
	case d.splitCount == unlimitedSplits:
		return "the length of the source is not known"
	}
	e := d.Edges[0]
	if op := e.at.Node.GetOp(); op != "RangeDataset" && op != "TensorSliceDataset" {
		return "the source is divided after " + e.at.Node.GetName() + ", not at a list or a range"
	}
	return ""
}

// listsNames reports whether a step slices a constant list of strings, as lists of files are.
func (p *Planner) listsNames(s *graph.Step) bool {
	if s.Node.GetOp() != "TensorSliceDataset" {
		return false
	}
	for _, input := range s.Node.GetInput() {
		if _, ok := nodedef.Strings(p.g.NodeOf(input)); ok {
			return true
		}
	}
	return false
}

// PartsOf lists the parts that a stream has at a cached step in an epoch, in no order. Where the step is not stored by parts
// of the source, the number of the share that the stream reads is the only one.
func PartsOf(plan *pecanv1.Plan, step *pecanv1.CachePlan, of EpochStream) []uint32 {
	parts := int64(step.GetParts())
	switch {
	case parts > 0:
		return PartsIn(step, shareIn(Division{edgeSet: edgeSet{splitCount: parts}}, plan, of, plan.GetShuffled()))
	case movesShares(plan):
		return []uint32{uint32(shuffledShare(plan, of))}
	}
	return []uint32{uint32(of.Stream)}
}

// AllParts is the number of parts that all streams have at a cached step.
func AllParts(plan *pecanv1.Plan, step *pecanv1.CachePlan) uint32 {
	return cmp.Or(step.GetParts(), uint32(plan.GetNumStreams()))
}

// PartsIn lists the parts of a share in the order in which the stream reads them.
func PartsIn(step *pecanv1.CachePlan, share Share) (parts []uint32) {
	for _, b := range share.Blocks(int64(step.GetParts())) {
		parts = append(parts, uint32(b))
	}
	return parts
}

// OnePart is the share of a single part.
func OnePart(part uint32) Share {
	return Share{First: int64(part), Step: 1, Stop: int64(part) + 1}
}
