package analysis

import (
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// MayBeEndless reports whether a step may produce elements without end. It returns an answer for filters too,
// whose elements Cardinality cannot count.
func (a *Analysis) MayBeEndless(s *graph.Step) bool {
	return answer(a.ends, s, a.mayNotEnd)
}

// mayNotEnd is MayBeEndless without the memory of earlier answers. An unknown number counts as endless if tf.data allows
// it.
func (a *Analysis) mayNotEnd(s *graph.Step) bool {
	if n := a.Cardinality(s); n != Unknown {
		return n == Infinite || n > 1<<60
	}
	switch s.Rule.Kind {
	case ops.Source:
		return false
	case ops.Positional:
		k, ok := a.g.InputInt(s.Node, "count")
		if s.Node.GetOp() == "TakeDataset" && ok && k >= 0 {
			return false
		}
		return a.MayBeEndless(s.In[0])
	case ops.Zipped:
		for _, in := range s.In {
			if !a.MayBeEndless(in) {
				return false
			}
		}
		return true
	case ops.Concatenated:
		return a.MayBeEndless(s.In[0]) || a.MayBeEndless(s.In[1])
	case ops.Repeated:
		k, ok := a.g.InputInt(s.Node, "count")
		return !ok || k < 0 || a.MayBeEndless(s.In[0])
	case ops.Directed:
		if a.g.Attr(s.Node, "stop_on_empty_dataset").GetB() {
			return a.AllEndless(s.In)
		}
		return a.MayBeEndless(s.In[0]) && a.anyEndless(s.In[1:])
	case ops.PerElement:
		return a.MayBeEndless(s.In[0]) || a.Facts(s).Endless
	case ops.Undivided:
		if s.Node.GetOp() == "TakeWhileDataset" || s.Node.GetOp() == "GroupByReducerDataset" {
			return false
		}
	}
	return a.anyEndless(s.In)
}

func (a *Analysis) anyEndless(steps []*graph.Step) bool {
	for _, s := range steps {
		if a.MayBeEndless(s) {
			return true
		}
	}
	return false
}

// AllEndless reports whether each of the steps may give elements without end.
func (a *Analysis) AllEndless(steps []*graph.Step) bool {
	for _, s := range steps {
		if !a.MayBeEndless(s) {
			return false
		}
	}
	return true
}
