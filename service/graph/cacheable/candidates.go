package cacheable

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/analysis"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// Division is where a dataset is divided into streams. Cuts has the steps whose outputs are divided. Batch is the step whose
// short last elements are joined, nil without one. ByParts are the steps whose elements come from one part of the source
// after another: neither seeds nor epochs change those of a part.
type Division struct {
	Cuts    map[*graph.Step]int
	Batch   *graph.Step
	ByParts map[*graph.Step]bool
}

// Request has the options on which the candidates depend.
type Request struct {
	Division
	Mode  pecanv1.Mode
	Cache pecanv1.Cache
	// Refusal is the reason why no step of the dataset can be cached, empty if there is none.
	Refusal Refusal
	// Profile has the costs of the steps that an earlier job measured, nil without one.
	Profile []*pecanv1.NodeMetrics
	// Keyed has the steps that draw random values by the index of an element.
	Keyed map[string]bool
}

// Refusal is a reason why a step cannot be cached; empty if it can.
type Refusal struct {
	Code pecanv1.CacheRefusal
	Why  string
}

func refuse(code pecanv1.CacheRefusal, format string, args ...any) Refusal {
	return Refusal{code, fmt.Sprintf(format, args...)}
}

// None reports whether the step can be cached.
func (r Refusal) None() bool { return r.Code == pecanv1.CacheRefusal_CACHE_REFUSAL_UNSPECIFIED }

// Candidate is a step whose elements may be cached, or a mark that cannot be used.
type Candidate struct {
	*pecanv1.CacheCandidate
	// Step is nil for a mark inside a function.
	Step *graph.Step
	// AfterBatch is set if its elements come after the batch whose short last elements are joined.
	AfterBatch bool
	// end is set if the elements are the elements of the dataset.
	end bool
	// spent is the CPU of all steps up to this one.
	spent float64
}

// Legal reports whether the step can be cached.
func (c *Candidate) Legal() bool {
	return c.Refusal == pecanv1.CacheRefusal_CACHE_REFUSAL_UNSPECIFIED
}

func (c *Candidate) refuse(r Refusal) { c.Refusal, c.Why = r.Code, r.Why }

func (c *Candidate) isForced() bool { return c.Origin == pecanv1.CacheCandidate_FORCED }

// Candidates returns the candidates of a dataset from the source on. At most MaxCandidates can be cached. omitted is the
// number of steps that the planner found and left out for that bound. root is the tree of steps that was cut.
func (r *Rules) Candidates(root *graph.Step, q Request) (candidates []*Candidate, omitted int) {
	f := &finder{Rules: r, Request: q, cpu: map[string]float64{}}
	for _, n := range q.Profile {
		f.cpu[n.GetNode()] += n.GetSelfCpuS()
	}
	f.visit(root, place{refusal: q.Refusal, joinsDownstream: q.Batch == nil, end: true})
	nested := r.g.NestedCacheMarks()
	for _, path := range slices.Sorted(maps.Keys(nested)) {
		c := marked(nested[path], path)
		c.Freezes = false
		c.refuse(refuse(pecanv1.CacheRefusal_CACHE_REFUSAL_FUNCTION, "it is inside the function of a step, which runs for each element. Put it between the steps of the dataset"))
		f.found = append(f.found, c)
	}
	f.settleForced()
	return f.selected()
}

// place has the facts about a step's elements that follow from the steps downstream.
type place struct {
	// refusal is why nothing from here on upstream can be cached.
	refusal Refusal
	// joinsDownstream is set if the batch whose short last elements are joined is downstream, or if there is none.
	joinsDownstream bool
	// end is set if the dataset has the elements of this step, without a mark in between.
	end bool
	// marked is set if a mark downstream has the elements of this step.
	marked bool
	// indexed is set if a step downstream draws random values by the index of these elements.
	indexed bool
}

// finder walks through the steps of a dataset.
type finder struct {
	*Rules
	Request
	// cpu is the CPU of each step. spent is the sum of the steps that were visited.
	cpu   map[string]float64
	spent float64
	found []*Candidate
}

// visit finds the candidates upstream of a step, and then the step itself.
func (f *finder) visit(s *graph.Step, at place) {
	name := s.Node.GetName()
	if _, cut := f.Cuts[s]; (cut || f.g.IsHint(s.Node, f.g.NodeOf)) && at.refusal.None() {
		at.refusal = refuse(pecanv1.CacheRefusal_CACHE_REFUSAL_UNDIVIDED, "it is upstream of %s, where the dataset is divided, so every stream would cache the same elements. Move it after that step", name)
	}
	mark, passes := f.g.CacheMarkOf(s.Node), s.Rule.Kind == ops.PassThrough
	up := at
	if mark != nil || !passes {
		up.end, up.marked = false, mark != nil
	}
	up.joinsDownstream = at.joinsDownstream || s == f.Batch
	through := at.indexed && f.passesIndex(s)
	up.indexed = through || f.Keyed[name]
	partial := refuse(pecanv1.CacheRefusal_CACHE_REFUSAL_PARTIAL, "it comes before %s, which may read it more than once, or not to its end. Move it after that step", name)
	if s.Rule.Kind == ops.Zipped {
		partial = refuse(pecanv1.CacheRefusal_CACHE_REFUSAL_PARTIAL, "it comes before %s, which reads it to its end only if its length is known and no other input is shorter. Move it after that step", name)
	}
	for _, in := range s.In {
		input := up
		if input.refusal.None() && !f.readsOnce(s, in) {
			input.refusal = partial
		}
		f.visit(in, input)
	}
	if up.refusal.None() {
		up.refusal = partial
	}
	for _, c := range s.Captured {
		f.visit(c, up)
	}
	f.spent += f.cpu[name]
	if first := f.shiftsIndex(s); at.refusal.None() && through && first != nil {
		at.refusal = refuse(pecanv1.CacheRefusal_CACHE_REFUSAL_INDEX, "a step after it draws random values by the number of the element, and %s leaves elements out. Move it before that step", first.Node.GetName())
	}
	switch {
	case mark != nil:
		f.addMark(s, mark, at)
	case !passes && !at.marked:
		f.addFound(s, at)
	}
}

// passesIndex reports whether the index of an element passes a step. Downstream of all others it begins again.
func (f *finder) passesIndex(s *graph.Step) bool {
	_, cut := f.Cuts[s]
	return !cut && s != f.Batch && !f.g.Freezes(s.Node) && analysis.PassesIndex(s)
}

// shiftsIndex returns the first step, from this one upstream, after which the index of an element is not its number. It
// returns nil if there is none before the index begins. Cached elements have no index, only numbers.
func (f *finder) shiftsIndex(s *graph.Step) *graph.Step {
	for ; f.passesIndex(s) && len(s.In) == 1; s = s.In[0] {
		if !analysis.KeepsIndex(s) {
			return s
		}
	}
	return nil
}

// readsOnce reports whether a step reads an input exactly once, to the end.
func (f *finder) readsOnce(s, in *graph.Step) bool {
	switch s.Rule.Kind {
	case ops.OneToOne, ops.PassThrough, ops.PerElement, ops.Batched, ops.Rebatched, ops.Windowed, ops.Cached, ops.Asserted:
		return len(s.In) == 1
	case ops.Shuffled:
		return len(s.In) == 1 && s.Node.GetOp() != "SnapshotDatasetV2"
	case ops.Zipped:
		// A zip asks all inputs for an element after its last one. Each stream has the same positions of all inputs.
		n := f.Cardinality(s)
		return n >= 0 && f.Cardinality(in) == n
	}
	return false
}

func marked(mark *graph.CacheMark, node string) *Candidate {
	c := &Candidate{CacheCandidate: &pecanv1.CacheCandidate{Name: mark.Name, Node: node, Origin: pecanv1.CacheCandidate_MARKED, Freezes: mark.Freezes}}
	if mark.Forced {
		c.Origin = pecanv1.CacheCandidate_FORCED
	}
	return c
}

func (f *finder) addMark(s *graph.Step, mark *graph.CacheMark, at place) {
	c := marked(mark, s.Node.GetName())
	c.Step, c.AfterBatch, c.end, c.spent = s, !at.joinsDownstream, at.end, f.spent
	why := at.refusal
	if why.None() {
		why = f.refusal(s, f.Request, mark.Freezes)
	}
	if c.refuse(why); c.Legal() && mark.Unchanging {
		if reader := f.opensComputedNames(s.In[0]); reader != nil {
			c.Why = computedNames(reader) + ". The mark says that they never change"
		}
	}
	f.found = append(f.found, c)
}

// addFound adds a step that no user marked, if that is asked for. It adds the end of the dataset even if
// that step cannot be cached: the refusal says what prevents the best cache.
func (f *finder) addFound(s *graph.Step, at place) {
	wanted := f.Cache == pecanv1.Cache_CACHE_AUTO || f.Cache == pecanv1.Cache_CACHE_PAPER
	if !wanted || !at.refusal.None() && !at.end || f.CostOfHead(s) == 0 {
		return
	}
	c := &Candidate{Step: s, AfterBatch: !at.joinsDownstream, end: at.end, spent: f.spent,
		CacheCandidate: &pecanv1.CacheCandidate{Node: s.Node.GetName(), Origin: pecanv1.CacheCandidate_FOUND}}
	why := at.refusal
	if why.None() {
		why = f.refusal(s, f.Request, false)
	}
	// The text after the reason is about marks, which a user can move.
	why.Why, _, _ = strings.Cut(why.Why, ". ")
	if why.Code == pecanv1.CacheRefusal_CACHE_REFUSAL_COMPUTED_FILES {
		why.Why += ". Mark the step with pecan.cache_candidate() and files_never_change=True if they never change"
	}
	if c.refuse(why); c.Legal() || c.end {
		f.found = append(f.found, c)
	}
}

func computedNames(reader *graph.Step) string {
	return fmt.Sprintf("%s opens files whose names are computed while the pipeline runs", reader.Node.GetName())
}

// settleForced refuses all pecan.cache() but the last one that can be used, and with cache="off" every mark.
func (f *finder) settleForced() {
	last := Forced(f.found)
	for _, c := range f.found {
		switch {
		case c.Legal() && c.isForced() && c != last:
			c.refuse(refuse(pecanv1.CacheRefusal_CACHE_REFUSAL_NOT_LAST, "%s, which comes after it, is a cache() too. Remove one of them", last.Node))
		case c.Legal() && f.Cache == pecanv1.Cache_CACHE_OFF:
			c.refuse(refuse(pecanv1.CacheRefusal_CACHE_REFUSAL_OFF, `the job has cache="off", so it passes elements on`))
		}
	}
}

// Forced returns the last pecan.cache() that can be used; if there is none, the last one; nil without any.
func Forced(candidates []*Candidate) *Candidate {
	var last *Candidate
	for _, c := range candidates {
		if c.isForced() && (last == nil || c.Legal() || !last.Legal()) {
			last = c
		}
	}
	return last
}
