package cacheable

import (
	"slices"
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

// Rules answers questions about the steps of one dataset.
type Rules struct {
	*analysis.Analysis
	g *graph.Graph
	// remote is the answer of unversioned; nil before anybody asked. constants, opened and results are the known answers of
	// constantNames, opensOnly and constantResults.
	remote    *string
	constants map[*graph.Step][]bool
	opened    map[calledFunction]bool
	results   map[calledFunction][]bool
	// calls has the calls that were looked at, and called their number for each function.
	calls  map[calledFunction]bool
	called map[string]int
}

// New returns the rules for the steps of a graph.
func New(g *graph.Graph, a *analysis.Analysis) *Rules {
	return &Rules{
		Analysis: a, g: g, constants: map[*graph.Step][]bool{}, opened: map[calledFunction]bool{},
		results: map[calledFunction][]bool{}, calls: map[calledFunction]bool{}, called: map[string]int{},
	}
}

// refusal returns why the elements of a step cannot be cached. freezes is true if random steps upstream repeat their values.
func (r *Rules) refusal(step *graph.Step, q Request, freezes bool) Refusal {
	for _, t := range r.g.OutputTypes(step.OutputOf) {
		if stored := t == tf.DataType_DT_STRING || frame.Width(uint32(t)) > 0 || t == tf.DataType_DT_VARIANT && r.writesVariants(); !stored {
			return refuse(pecanv1.CacheRefusal_CACHE_REFUSAL_DTYPE, "its elements have a component of dtype %s, which cannot be written", frame.DTypeName(uint32(t)))
		}
	}
	if r.MayBeEndless(step) {
		return refuse(pecanv1.CacheRefusal_CACHE_REFUSAL_ENDLESS, "its input never ends. Put repeat() after it")
	}
	if r.DeterminismClass(step, q.Mode) == pecanv1.DeterminismClass_DETERMINISM_CLASS_C {
		return refuse(pecanv1.CacheRefusal_CACHE_REFUSAL_UNREPEATABLE, "its input produces other elements in each run")
	}
	why := Refusal{}
	step.Walk(func(s *graph.Step) {
		f := r.Facts(s)
		switch {
		case f.Stateful || f.WritesVariables || f.Unrepeatable:
			why = refuse(pecanv1.CacheRefusal_CACHE_REFUSAL_UNREPEATABLE, "%s, which comes before it, produces other values in each run", s.Node.GetName())
		case f.ListsFiles || s.Node.GetOp() == "MatchingFilesDataset":
			why = refuse(pecanv1.CacheRefusal_CACHE_REFUSAL_LISTED_FILES, "%s, which comes before it, looks for files while it runs, so changed files would not be noticed. Use list_files", s.Node.GetName())
		}
	})
	if scheme := r.unversioned(); why.None() && scheme != "" {
		why = refuse(pecanv1.CacheRefusal_CACHE_REFUSAL_REMOTE_FILES, "the dataset names files by URL, and workers cannot ask for the versions of %s://, so changed files would not be noticed", scheme)
	}
	if why.None() {
		if reader := r.opensComputedNames(step); reader != nil {
			why = refuse(pecanv1.CacheRefusal_CACHE_REFUSAL_COMPUTED_FILES, "%s, so changed files would not be noticed. Move it before that step, name the files in the dataset, or give files_never_change=True if they never change", computedNames(reader))
		}
	}
	if why.None() && !freezes {
		step.Walk(func(s *graph.Step) {
			if r.IgnoresErrors(s) {
				why = refuse(pecanv1.CacheRefusal_CACHE_REFUSAL_ERRORS, "%s, which comes before it, leaves out elements that fail, and they may not fail in the next epoch. Put ignore_errors() after it, or give freeze_randomness=True to leave them out in all epochs", s.Node.GetName())
			}
		})
	}
	if why.None() && !freezes && !q.ByParts[step] {
		if random := r.drawsByEpoch(step); random != nil {
			why = refuse(pecanv1.CacheRefusal_CACHE_REFUSAL_RANDOM, "%s, which comes before it, is random in each epoch, and a cache would repeat one epoch. Move that step after it, or give freeze_randomness=True to repeat the first epoch", random.Node.GetName())
		}
	}
	return why
}

// drawsByEpoch returns the first step, from the source on, whose elements or order follow from seeds with the epoch; nil if
// there is none. Upstream of a cache, seeds have no epoch.
func (r *Rules) drawsByEpoch(s *graph.Step) *graph.Step {
	if s.Rule.Kind != ops.Cached && s.Node.GetOp() != "SnapshotDatasetV2" && !r.g.Freezes(s.Node) {
		for _, in := range slices.Concat(s.In, s.Captured) {
			if found := r.drawsByEpoch(in); found != nil {
				return found
			}
		}
	}
	if r.takesSeeds(s) && !analysis.FixedSeeds(s.Node) || r.Facts(s).Random || r.Facts(s).Seeded {
		return s
	}
	return nil
}

func (r *Rules) takesSeeds(s *graph.Step) bool {
	return r.g.InputIndex(s.Node, "seed") >= 0 && r.g.InputIndex(s.Node, "seed2") >= 0
}

// unversioned returns the scheme of URLs in the dataset whose versions workers cannot ask for (service/worker/objects); empty
// if there are none.
func (r *Rules) unversioned() string {
	if r.remote == nil {
		remote := ""
		_ = r.g.EachNode(func(n *tf.NodeDef, _ string) error {
			values, _ := nodedef.Strings(n)
			for _, v := range values {
				scheme, _, found := strings.Cut(string(v), "://")
				if found && scheme != "" && scheme != "gs" && !strings.ContainsAny(scheme, "/ ") {
					remote = scheme
				}
			}
			return nil
		})
		r.remote = &remote
	}
	return *r.remote
}

// DrawsSeeds reports whether the elements of a step depend on seeds.
func (r *Rules) DrawsSeeds(mark *graph.Step) bool {
	draws := false
	mark.Walk(func(s *graph.Step) {
		draws = draws || r.takesSeeds(s) || r.Facts(s).Seeded
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
