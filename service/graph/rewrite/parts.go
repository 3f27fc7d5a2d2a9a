package rewrite

import (
	"slices"

	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// In a plan by parts, a stream gives the elements of one part after another, whether it computes them or reads them. The stream
// therefore does not run steps that only order. The shuffle of a list decides the order of the parts, and an interleave reads
// one dataset after another. Shuffles of records run after the cached step (split.Arrange).

// orderParts puts the stream's parts into the order that the shuffle of the list decides. root is the tree that is cut.
func (e *editor) orderParts(root *graph.Step) {
	for s := root; len(s.In) == 1; s = s.In[0] {
		if !e.ordersParts(s) {
			continue
		}
		seed, _ := e.g.InputInt(s.Node, "seed")
		seed2, _ := e.g.InputInt(s.Node, "seed2")
		e.plan.share.Mixed, e.plan.share.Key = true, drawKey(e.seedPair(s.Node, e.positionOf(root, s), seed, seed2, s.Node.GetName()))
	}
}

// ordersParts reports whether a step is the shuffle of a list that decides the order of parts.
func (e *editor) ordersParts(s *graph.Step) bool {
	return s.Rule.Kind == ops.Shuffled && slices.Contains(e.plan.cut.GetOrdering(), s.Node.GetName())
}

// readOneByOne makes an interleave read one dataset after another if the plan says so.
func (e *editor) readOneByOne(s *graph.Step) {
	name := s.Node.GetName()
	if !s.Rule.Mixes || !slices.Contains(e.plan.cut.GetOrdering(), name) {
		return
	}
	one := e.AddInt("pecan_cycle/"+name, 1)
	e.SetInput(name, "cycle_length", one)
	// TensorFlow refuses more parallel calls than datasets.
	if calls, ok := e.g.InputInt(s.Node, "num_parallel_calls"); ok && calls > 1 {
		e.SetInput(name, "num_parallel_calls", one)
	}
}

// isLate reports whether a step is a shuffle that runs later than in the registered graph.
func (e *editor) isLate(s *graph.Step) bool {
	return slices.Contains(e.plan.cut.GetLateShuffles(), s.Node.GetName())
}

// frozenLate returns the late shuffles that a mark freezes. They run after the mark, and repeat the order of the first epoch all
// the same.
func (e *editor) frozenLate() map[string]bool {
	found, freezes := map[string]bool{}, false
	for s, _ := e.g.Steps(); len(s.In) == 1; s = s.In[0] {
		freezes = freezes || e.g.Freezes(s.Node)
		if freezes && e.isLate(s) {
			found[s.Node.GetName()] = true
		}
	}
	return found
}
