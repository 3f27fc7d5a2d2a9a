package split

import (
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// This file reshapes the tree of steps before it is divided: an outermost repeat comes off, take, skip and shard sink.

// copyTree copies the steps, so that rewiring leaves the original alone.
func copyTree(s *graph.Step) *graph.Step {
	c := *s
	c.In = make([]*graph.Step, len(s.In))
	for i, in := range s.In {
		c.In[i] = copyTree(in)
	}
	return &c
}

// RemoveOuterRepeat removes outermost repeats and tells how many passes they stood for: 1 when there is none, -1 for ever.
// What may lie above a repeat treats each element, or each batch, of a pass for itself.
func (p *Planner) RemoveOuterRepeat(root *graph.Step) (*graph.Step, int64) {
	passes := int64(1)
	for {
		at := p.outerRepeat(root)
		if at == nil {
			return root, passes
		}
		times, _ := p.g.InputInt(at.Node, "count")
		if times > 0 && passes > 0 && passes > (1<<40)/times {
			return root, passes
		}
		if times < 0 || passes < 0 {
			passes = -1
		} else {
			passes *= times
		}
		root = p.removeStep(root, at)
	}
}

// removeStep copies a tree and leaves out one step that reads a single other one.
func (p *Planner) removeStep(root, gone *graph.Step) *graph.Step {
	if root == gone {
		return copyTree(root.In[0])
	}
	c := *root
	c.In = make([]*graph.Step, len(root.In))
	for i, in := range root.In {
		c.In[i] = p.removeStep(in, gone)
	}
	return &c
}

// outerRepeat finds the repeat that can come off next, nil when there is none.
func (p *Planner) outerRepeat(root *graph.Step) *graph.Step {
	for s := root; ; s = s.In[0] {
		if p.g.IsCacheMark(s.Node) {
			// What a cache keeps is the repeated elements.
			return nil
		}
		switch s.Rule.Kind {
		case ops.Repeated:
			times, ok := p.g.InputInt(s.Node, "count")
			if !ok || times == 0 || times == 1 || p.MayBeEndless(s.In[0]) {
				return nil
			}
			if p.Cardinality(s.In[0]) == 1 {
				// One element over and over: an epoch for each would cost more than the element.
				return nil
			}
			if kept := p.cacheBelow(s.In[0]); kept == cacheInFile || (kept == cacheInMemory && times > 0) {
				// The cache serves the passes after the first, and two epochs at once would write one file.
				return nil
			}
			if !p.batchesFit(root, s) {
				return nil
			}
			return s
		case ops.OneToOne, ops.PassThrough, ops.Batched:
		case ops.Asserted:
			// What is asserted above a repeat counts all passes.
			return nil
		case ops.PerElement:
			if s.Rule.Mixes || p.Facts(s).Endless {
				return nil
			}
		default:
			return nil
		}
	}
}

// batchesFit tells whether every batch above a repeat ends where a pass ends: only then does a pass for itself give the
// batches that local execution gives across passes.
func (p *Planner) batchesFit(root, repeat *graph.Step) bool {
	single := p.removeStep(root, repeat)
	for s, above := single, root; above != repeat; s, above = s.In[0], above.In[0] {
		if s.Rule.Kind != ops.Batched {
			continue
		}
		n := p.Cardinality(s.In[0])
		size, ok := p.g.InputInt(s.Node, "batch_size")
		if !ok || n < 0 || n%size != 0 {
			return false
		}
	}
	return true
}
