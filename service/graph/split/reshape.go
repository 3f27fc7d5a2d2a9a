package split

import (
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/analysis"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// pushPositionsUpstream moves take, skip and shard before steps that produce each element from one element. A
// cut after them then needs less of the pipeline in every stream.
func (p *Planner) pushPositionsUpstream(s *graph.Step) *graph.Step {
	c := *s
	c.In = make([]*graph.Step, len(s.In))
	for i, in := range s.In {
		c.In[i] = p.pushPositionsUpstream(in)
	}
	if c.Rule.Kind != ops.Positional {
		return &c
	}
	var downstream []*graph.Step
	upstream := c.In[0]
	for upstream.Rule.Kind == ops.PassThrough || (upstream.Rule.Kind == ops.OneToOne && p.Facts(upstream).Pure()) {
		downstream = append(downstream, upstream)
		upstream = upstream.In[0]
	}
	if len(downstream) == 0 {
		return &c
	}
	c.In = []*graph.Step{upstream}
	c.OutputOf = upstream.OutputOf
	last := &c
	for i := len(downstream) - 1; i >= 0; i-- {
		moved := *downstream[i]
		moved.In = append([]*graph.Step{last}, moved.In[1:]...)
		last = &moved
	}
	return last
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
