package split

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/pecan-ml/pecan/proto/frame"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// A shuffle of records before a cached step only orders its elements if the steps in between compute each element from
// one element. It then runs after the cached step: the cache has the elements of a part, and each epoch shuffles what
// it reads. TensorFlow draws the same order there, because that follows from the number of elements and the seeds
// alone. A filter in between changes the number of elements, and therefore the order.

// mostLateBytes bounds what the buffers of shuffles hold after the cached step, whose elements may be larger.
const mostLateBytes = 1 << 30

// Arrange returns the tree of steps that the streams of a plan run. root is the tree of the dataset.
func (p *Planner) Arrange(root *graph.Step, plan *pecanv1.Plan) *graph.Step {
	root = p.pushPositionsUpstream(root)
	late, after := plan.GetCut().GetLateShuffles(), plan.GetCut().GetLateAfter()
	if len(late) == 0 {
		return root
	}
	var reader *graph.Step
	last := root
	for last.Node.GetName() != after {
		if len(last.In) != 1 {
			return root
		}
		reader, last = last, last.In[0]
	}
	var moved []*graph.Step
	for s := last; len(s.In) == 1 && p.passesShuffle(s); {
		in := s.In[0]
		if !slices.Contains(late, in.Node.GetName()) {
			s = in
			continue
		}
		moved = append(moved, in)
		s.In[0] = in.In[0]
	}
	downstream := last
	for _, s := range slices.Backward(moved) {
		downstream = &graph.Step{Node: s.Node, Rule: s.Rule, In: []*graph.Step{downstream}, InAt: s.InAt, OutputOf: last.OutputOf}
	}
	if reader == nil {
		return downstream
	}
	reader.In[0] = downstream
	return root
}

// passesShuffle reports whether a shuffle may run after a step instead of before it.
func (p *Planner) passesShuffle(s *graph.Step) bool {
	switch s.Rule.Kind {
	case ops.PassThrough:
		return true
	case ops.OneToOne:
		return p.Facts(s).Pure()
	case ops.PerElement:
		return ops.ElementFunctionAttr(s.Node.GetOp()) == "predicate" && p.Facts(s).Pure()
	}
	return false
}

// lateBuffer returns how many elements the buffer of a shuffle holds that may run later; 0 for other steps.
func (p *Planner) lateBuffer(s *graph.Step) int64 {
	size, known := p.g.InputInt(s.Node, "buffer_size")
	_, seeded := p.g.InputInt(s.Node, "seed")
	_, seeded2 := p.g.InputInt(s.Node, "seed2")
	if s.Rule.Kind != ops.Shuffled || !strings.HasPrefix(s.Node.GetOp(), "ShuffleDataset") || !known || !seeded || !seeded2 {
		return 0
	}
	if n := p.Cardinality(s); n > 0 && (size < 1 || size > n) {
		size = n
	}
	return max(size, 0)
}

// lateShuffles are the shuffles of records upstream of a step. buffered is the number of elements that their buffers
// hold together. computed is true if a step after the first one computes other elements.
type lateShuffles struct {
	names    []string
	buffered int64
	computed bool
}

// whyNotAfter says why shuffles may not run after a step; empty if they may.
func (p *Planner) whyNotAfter(s *graph.Step, late lateShuffles) string {
	if len(late.names) == 0 || p.passesShuffle(s) {
		return ""
	}
	return fmt.Sprintf("%s mixes the elements of all parts, and %s needs them in that order. Move the shuffle after the cached step", late.names[len(late.names)-1], s.Node.GetName())
}

// whyTooLarge says why the elements of a step are too large for the buffers of shuffles; empty if they are not.
func (p *Planner) whyTooLarge(s *graph.Step, late lateShuffles) string {
	if !late.computed {
		return ""
	}
	name, node := late.names[len(late.names)-1], s.Node.GetName()
	size, known := p.elementBytes(s)
	switch {
	case !known:
		return fmt.Sprintf("%s mixes the elements of all parts, and the size of the elements of %s is not known. Move the shuffle after the cached step", name, node)
	case size > 0 && late.buffered > mostLateBytes/size:
		return fmt.Sprintf("%s mixes the elements of all parts, and its buffer would hold %d MB of the elements of %s. Move the shuffle after the cached step", name, int64(float64(late.buffered)*float64(size)/1e6), node)
	}
	return ""
}

// elementBytes returns the size of the elements of a step, if all have the same.
func (p *Planner) elementBytes(s *graph.Step) (total int64, known bool) {
	types, shapes := p.g.OutputTypes(s.OutputOf), p.g.OutputShapes(s.OutputOf)
	for i, t := range types {
		size := int64(frame.Width(uint32(t)))
		if size == 0 || i >= len(shapes) || shapes[i].GetUnknownRank() {
			return 0, false
		}
		for _, dim := range shapes[i].GetDim() {
			if dim.GetSize() < 0 || dim.GetSize() > 0 && size > math.MaxInt32/dim.GetSize() {
				return 0, false
			}
			size *= dim.GetSize()
		}
		total += size
	}
	return total, true
}
