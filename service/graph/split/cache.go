package split

import (
	"fmt"
	"strings"

	"github.com/pecan-ml/pecan/proto/frame"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// packBytes is up to what size elements travel in packs: one call for each costs more than a small element is worth.
const packBytes = 16 << 10

// planCache decides what becomes of the cached step, once the cut is decided. root is the tree that was cut.
func (p *Planner) planCache(plan *pecanv1.Plan, root *graph.Step) {
	marks := p.cacheMarks(root)
	if marks == 0 {
		return
	}
	mark, why := p.cachedStep(plan, root)
	if why != "" {
		addReason(plan, "cache() does nothing here: %s.", why)
		return
	}
	if marks > 1 {
		addReason(plan, "Of the %d cache() steps only %s, the last one, does something.", marks, mark.Node.GetName())
	}
	types, shapes := p.g.OutputTypes(mark.OutputOf), p.g.OutputShapes(mark.OutputOf)
	plan.Cache = &pecanv1.CachePlan{Node: mark.Node.GetName(), Seeded: p.drawsSeeds(mark), Packed: fitsInPacks(types, shapes)}
	plan.Cache.Key = p.cacheKey(plan)
	again := ""
	if plan.Cache.Seeded {
		again = ", and where the seed is the same, since steps below it draw from it"
	}
	addReason(plan, "What passes cache() (%s) is written in the first epoch and read in later ones, also by other jobs over the same dataset%s. "+
		"No epoch is opened ahead of need.", mark.Node.GetName(), again)
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

// cachedStep finds the step whose elements can be kept, or says why there is none.
func (p *Planner) cachedStep(plan *pecanv1.Plan, root *graph.Step) (mark *graph.Step, why string) {
	if plan.GetCut().GetKind() == pecanv1.Cut_HINT {
		return nil, "with sharding HINT the dataset is the user's to divide"
	}
	w := Division{}
	if plan.GetNumStreams() > 1 {
		found, err := p.FindDivision(root, plan)
		if err != nil {
			return nil, "the cut was not found"
		}
		w = found
	}
	// The batch whose short last elements are joined has to lie above.
	below := w.Batch == nil
	for s := root; ; s = s.In[0] {
		if _, cut := w.Cuts[s]; cut {
			return nil, fmt.Sprintf("it stands below %s, where the dataset is divided, and every stream would keep the same elements. Move it behind that step", s.Node.GetName())
		}
		if p.g.IsCacheMark(s.Node) {
			if !below {
				return nil, fmt.Sprintf("it stands behind %s, and how many elements reach that is not known beforehand. Move it before that step", w.Batch.Node.GetName())
			}
			return s, p.whyNotCached(s, plan.GetMode())
		}
		if !readsOnce(s) || len(s.In) != 1 {
			return nil, fmt.Sprintf("above it stands %s, which may read it more than once, or not to its end. Move it behind that step", s.Node.GetName())
		}
		below = below || s == w.Batch
	}
}

// readsOnce tells whether a step reads its only input to the end, once.
func readsOnce(s *graph.Step) bool {
	switch s.Rule.Kind {
	case ops.OneToOne, ops.PassThrough, ops.PerElement, ops.Batched, ops.Rebatched, ops.Windowed, ops.Cached, ops.Asserted:
		return true
	case ops.Shuffled:
		return s.Node.GetOp() != "SnapshotDatasetV2"
	}
	return false
}

// whyNotCached says what keeps the elements of a step from being kept.
func (p *Planner) whyNotCached(mark *graph.Step, mode pecanv1.Mode) string {
	for _, t := range p.g.OutputTypes(mark.OutputOf) {
		if t != tf.DataType_DT_STRING && frame.Width(uint32(t)) == 0 {
			return fmt.Sprintf("its elements have a component of dtype %s, which cannot be written. Flatten ragged and sparse values before it", frame.DTypeName(uint32(t)))
		}
	}
	if p.MayBeEndless(mark) {
		return "what lies below it never ends. Put repeat() behind it"
	}
	if p.DeterminismClass(mark, mode) == pecanv1.DeterminismClass_DETERMINISM_CLASS_C {
		return "what lies below it gives other elements in each run"
	}
	why := ""
	mark.Walk(func(s *graph.Step) {
		f := p.Facts(s)
		switch {
		case f.Stateful || f.WritesVariables || f.Unrepeatable:
			why = fmt.Sprintf("%s below it gives other values in each run", s.Node.GetName())
		case f.ListsFiles || s.Node.GetOp() == "MatchingFilesDataset":
			why = fmt.Sprintf("%s below it looks for files while it runs, and whether they changed would go unseen. Use list_files", s.Node.GetName())
		}
	})
	if why == "" && p.namesRemoteFiles() {
		why = "the dataset names files by URL, and whether they changed would go unseen"
	}
	return why
}

func (p *Planner) namesRemoteFiles() bool {
	remote := false
	_ = p.g.EachNode(func(n *tf.NodeDef, _ string) error {
		values, _ := nodedef.Strings(n)
		for _, v := range values {
			scheme, _, found := strings.Cut(string(v), "://")
			remote = remote || found && scheme != "" && !strings.ContainsAny(scheme, "/ ")
		}
		return nil
	})
	return remote
}

// drawsSeeds tells whether the elements of a step depend on seeds.
func (p *Planner) drawsSeeds(mark *graph.Step) bool {
	draws := false
	mark.Walk(func(s *graph.Step) {
		takes := p.g.InputIndex(s.Node, "seed") >= 0 && p.g.InputIndex(s.Node, "seed2") >= 0
		draws = draws || takes || p.Facts(s).Seeded
	})
	return draws
}

// fitsInPacks tells whether elements are small and all of one shape.
func fitsInPacks(types []tf.DataType, shapes []*tf.TensorShapeProto) bool {
	total := uint64(0)
	for i, t := range types {
		size := frame.Width(uint32(t))
		if size == 0 || i >= len(shapes) || shapes[i].GetUnknownRank() {
			return false
		}
		for _, dim := range shapes[i].GetDim() {
			if dim.GetSize() < 1 || dim.GetSize() > packBytes {
				return false
			}
			if size *= uint64(dim.GetSize()); size > packBytes {
				return false
			}
		}
		total += size
	}
	return total <= packBytes
}
