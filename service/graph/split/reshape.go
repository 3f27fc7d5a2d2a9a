package split

import (
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/analysis"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// PushPositionsUpstream moves take, skip and shard before steps that produce each element from one element. A
// cut after them then needs less of the pipeline in every stream.
func (p *Planner) PushPositionsUpstream(s *graph.Step) *graph.Step {
	c := *s
	c.In = make([]*graph.Step, len(s.In))
	for i, in := range s.In {
		c.In[i] = p.PushPositionsUpstream(in)
	}
	if c.Rule.Kind != ops.Positional {
		return &c
	}
	var above []*graph.Step
	below := c.In[0]
	for below.Rule.Kind == ops.PassThrough || (below.Rule.Kind == ops.OneToOne && p.Facts(below).Pure()) {
		above = append(above, below)
		below = below.In[0]
	}
	if len(above) == 0 {
		return &c
	}
	c.In = []*graph.Step{below}
	c.OutputOf = below.OutputOf
	top := &c
	for i := len(above) - 1; i >= 0; i-- {
		moved := *above[i]
		moved.In = append([]*graph.Step{top}, moved.In[1:]...)
		top = &moved
	}
	return top
}

// rootAssert returns the number that an assert_cardinality at the end of the pipeline asserts, unknown
// without one.
func (p *Planner) rootAssert(root *graph.Step) int64 {
	for s := root; len(s.In) > 0; s = s.In[0] {
		switch s.Rule.Kind {
		case ops.Asserted:
			if n, ok := p.g.InputInt(s.Node, "cardinality"); ok {
				return n
			}
			return analysis.Unknown
		case ops.OneToOne, ops.PassThrough:
		default:
			return analysis.Unknown
		}
	}
	return analysis.Unknown
}
