package split

import (
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// This file changes the tree of steps before it is divided: it removes the outermost repeat.

// copyTree copies the steps, so that rewiring does not change the original.
func copyTree(s *graph.Step) *graph.Step {
	c := *s
	c.In = make([]*graph.Step, len(s.In))
	for i, in := range s.In {
		c.In[i] = copyTree(in)
	}
	return &c
}

// RemoveOuterRepeat removes the outermost repeats. It also returns the number of passes that they stood for:
// 1 without a repeat, -1 for an endless one. Steps may stay downstream of a removed repeat if they treat each
// element, or each batch, of a pass on its own.
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

// removeStep copies a tree without one step. That step must read a single other step.
func (p *Planner) removeStep(root, removed *graph.Step) *graph.Step {
	if root == removed {
		return copyTree(root.In[0])
	}
	c := *root
	c.In = make([]*graph.Step, len(root.In))
	for i, in := range root.In {
		c.In[i] = p.removeStep(in, removed)
	}
	return &c
}

// outerRepeat finds the repeat that can be removed next, nil when there is none.
func (p *Planner) outerRepeat(root *graph.Step) *graph.Step {
	for s := root; ; s = s.In[0] {
		if p.g.IsCacheMark(s.Node) {
			// The cache stores the repeated elements.
			return nil
		}
		switch s.Rule.Kind {
		case ops.Repeated:
			times, ok := p.g.InputInt(s.Node, "count")
			if !ok || times == 0 || times == 1 || p.MayBeEndless(s.In[0]) {
				return nil
			}
			if p.Cardinality(s.In[0]) == 1 {
				// The repeat produces one element over and over. An epoch per element would cost more than the element.
				return nil
			}
			if kept := p.cacheUpstream(s.In[0]); kept == cacheInFile || (kept == cacheInMemory && times > 0) {
				// The cache serves the passes after the first, and two epochs at the same time would write one file.
				return nil
			}
			if !p.batchesFit(root, s) {
				return nil
			}
			return s
		case ops.OneToOne, ops.PassThrough, ops.Batched:
		case ops.Asserted:
			// An assertion downstream of a repeat counts the elements of all passes.
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

// batchesFit reports whether every batch downstream of a repeat ends where a pass ends. Only then do separate
// passes give the batches that local execution gives across passes.
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
