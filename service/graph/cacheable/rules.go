package cacheable

import (
	"fmt"
	"strings"

	"github.com/pecan-ml/pecan/proto/frame"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/analysis"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// packBytes is the largest size of elements that travel in packs. For a small element, one call per element
// costs more than the element.
const packBytes = 16 << 10

// Division is where a dataset is divided into streams: Cuts has the steps whose outputs are divided, and Batch is the
// step whose short last elements are joined, nil without one.
type Division struct {
	Cuts  map[*graph.Step]int
	Batch *graph.Step
}

// Rules answers questions about the steps of one dataset.
type Rules struct {
	*analysis.Analysis
	g *graph.Graph
}

// New returns the rules for the steps of a graph.
func New(g *graph.Graph, a *analysis.Analysis) *Rules { return &Rules{Analysis: a, g: g} }

// CachedStep finds the step whose elements can be cached. If there is none, why is the reason.
func (r *Rules) CachedStep(plan *pecanv1.Plan, root *graph.Step, w Division) (mark *graph.Step, why string) {
	if plan.GetCut().GetKind() == pecanv1.Cut_HINT {
		return nil, "with sharding HINT the user divides the dataset. Use another sharding policy"
	}
	// The batch whose short last elements are joined must be downstream of the cached step.
	below := w.Batch == nil
	for s := root; ; s = s.In[0] {
		if _, cut := w.Cuts[s]; cut {
			return nil, fmt.Sprintf("it is upstream of %s, where the dataset is divided, so every stream would cache the same elements. Move it after that step", s.Node.GetName())
		}
		if r.g.IsCacheMark(s.Node) {
			if !below {
				return nil, fmt.Sprintf("it comes after %s, and the number of elements that reach that step is not known beforehand. Move it before that step", w.Batch.Node.GetName())
			}
			return s, r.whyNotCached(s, plan.GetMode())
		}
		if !readsOnce(s) || len(s.In) != 1 {
			return nil, fmt.Sprintf("it comes before %s, which may read it more than once, or not to its end. Move it after that step", s.Node.GetName())
		}
		below = below || s == w.Batch
	}
}

// readsOnce reports whether a step reads its only input exactly once, to the end.
func readsOnce(s *graph.Step) bool {
	switch s.Rule.Kind {
	case ops.OneToOne, ops.PassThrough, ops.PerElement, ops.Batched, ops.Rebatched, ops.Windowed, ops.Cached, ops.Asserted:
		return true
	case ops.Shuffled:
		return s.Node.GetOp() != "SnapshotDatasetV2"
	}
	return false
}

// whyNotCached returns the reason why the elements of a step cannot be cached, "" if they can.
func (r *Rules) whyNotCached(mark *graph.Step, mode pecanv1.Mode) string {
	for _, t := range r.g.OutputTypes(mark.OutputOf) {
		if t != tf.DataType_DT_STRING && frame.Width(uint32(t)) == 0 {
			return fmt.Sprintf("its elements have a component of dtype %s, which cannot be written. Flatten ragged and sparse values before it", frame.DTypeName(uint32(t)))
		}
	}
	if r.MayBeEndless(mark) {
		return "its input never ends. Put repeat() after it"
	}
	if r.DeterminismClass(mark, mode) == pecanv1.DeterminismClass_DETERMINISM_CLASS_C {
		return "its input produces other elements in each run"
	}
	why := ""
	mark.Walk(func(s *graph.Step) {
		f := r.Facts(s)
		switch {
		case f.Stateful || f.WritesVariables || f.Unrepeatable:
			why = fmt.Sprintf("%s, which comes before it, produces other values in each run", s.Node.GetName())
		case f.ListsFiles || s.Node.GetOp() == "MatchingFilesDataset":
			why = fmt.Sprintf("%s, which comes before it, looks for files while it runs, so changed files would not be noticed. Use list_files", s.Node.GetName())
		}
	})
	if why == "" && r.namesRemoteFiles() {
		why = "the dataset names files by URL, so changed files would not be noticed"
	}
	return why
}

func (r *Rules) namesRemoteFiles() bool {
	remote := false
	_ = r.g.EachNode(func(n *tf.NodeDef, _ string) error {
		values, _ := nodedef.Strings(n)
		for _, v := range values {
			scheme, _, found := strings.Cut(string(v), "://")
			remote = remote || found && scheme != "" && !strings.ContainsAny(scheme, "/ ")
		}
		return nil
	})
	return remote
}

// DrawsSeeds reports whether the elements of a step depend on seeds.
func (r *Rules) DrawsSeeds(mark *graph.Step) bool {
	draws := false
	mark.Walk(func(s *graph.Step) {
		takes := r.g.InputIndex(s.Node, "seed") >= 0 && r.g.InputIndex(s.Node, "seed2") >= 0
		draws = draws || takes || r.Facts(s).Seeded
	})
	return draws
}

// FitsInPacks reports whether the elements of a step are small and all of one shape.
func (r *Rules) FitsInPacks(mark *graph.Step) bool {
	types, shapes := r.g.OutputTypes(mark.OutputOf), r.g.OutputShapes(mark.OutputOf)
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
