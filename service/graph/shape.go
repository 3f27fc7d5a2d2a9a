package graph

import (
	"slices"
	"strings"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
)

// This file reshapes the tree of steps before it is divided: an outermost repeat comes off, take, skip and shard sink.

// copyTree copies the steps, so that rewiring leaves the original alone.
func (s *step) copyTree() *step {
	c := *s
	c.in = make([]*step, len(s.in))
	for i, in := range s.in {
		c.in[i] = in.copyTree()
	}
	return &c
}

// takeRepeatOff removes outermost repeats and tells how many passes they stood for: 1 when there is none, -1 for ever.
// What may lie above a repeat treats each element, or each batch, of a pass for itself.
func (p *planner) takeRepeatOff(root *step) (*step, int64) {
	passes := int64(1)
	for {
		at := p.outerRepeat(root)
		if at == nil {
			return root, passes
		}
		times, _ := p.g.inputInt(at.node, "count")
		if times > 0 && passes > 0 && passes > (1<<40)/times {
			return root, passes
		}
		if times < 0 || passes < 0 {
			passes = -1
		} else {
			passes *= times
		}
		root = p.without(root, at)
	}
}

// without copies a tree and leaves out one step that reads a single other one.
func (p *planner) without(root, gone *step) *step {
	if root == gone {
		return root.in[0].copyTree()
	}
	c := *root
	c.in = make([]*step, len(root.in))
	for i, in := range root.in {
		c.in[i] = p.without(in, gone)
	}
	return &c
}

// outerRepeat finds the repeat that can come off next, nil when there is none.
func (p *planner) outerRepeat(root *step) *step {
	for s := root; ; s = s.in[0] {
		if p.g.isMark(s.node) {
			// What a cache keeps is the repeated elements.
			return nil
		}
		switch s.rule.kind {
		case repeated:
			times, ok := p.g.inputInt(s.node, "count")
			if !ok || times == 0 || times == 1 || p.endless(s.in[0]) {
				return nil
			}
			if p.cardinality(s.in[0]) == 1 {
				// One element over and over: an epoch for each would cost more than the element.
				return nil
			}
			if kept := p.cacheBelow(s.in[0]); kept == cacheInFile || (kept == cacheInMemory && times > 0) {
				// The cache serves the passes after the first, and two epochs at once would write one file.
				return nil
			}
			if !p.batchesFit(root, s) {
				return nil
			}
			return s
		case oneToOne, pass, batched:
		case asserted:
			// What is asserted above a repeat counts all passes.
			return nil
		case perElement:
			if s.rule.mixes || p.facts(s).endless {
				return nil
			}
		default:
			return nil
		}
	}
}

// What a cache below a step keeps.
const (
	cacheNone = iota
	cacheInMemory
	cacheInFile
)

// cacheBelow tells what caches lie in a tree.
func (p *planner) cacheBelow(root *step) int {
	found := cacheNone
	root.walk(func(s *step) {
		switch {
		case s.node.GetOp() == "SnapshotDatasetV2":
			found = cacheInFile
		case s.rule.kind == cached && isPath(p.g.input(s.node, "filename")):
			found = cacheInFile
		case s.rule.kind == cached:
			found = max(found, cacheInMemory)
		}
	})
	return found
}

// isPath tells whether a cache's name is one of files; one that only running the graph tells may be.
func isPath(name *tf.NodeDef) bool {
	path, ok := constStrings(name)
	return !ok || len(path) != 1 || len(path[0]) > 0
}

// writesFiles tells whether a cache or a snapshot keeps elements in files, also one that a function makes for each element.
func (g *Graph) writesFiles() bool {
	top := func(n *tf.NodeDef) bool {
		return n.GetOp() == "SnapshotDatasetV2" || g.ruleOf(n).kind == cached && isPath(g.input(n, "filename"))
	}
	if slices.ContainsFunc(g.def.GetNode(), top) {
		return true
	}
	for _, f := range g.def.GetLibrary().GetFunction() {
		nodes := map[string]*tf.NodeDef{}
		for _, n := range f.GetNodeDef() {
			nodes[n.GetName()] = n
		}
		for _, n := range f.GetNodeDef() {
			if n.GetOp() == "SnapshotDatasetV2" {
				return true
			}
			at := g.inputIndex(n, "filename")
			if g.ruleOf(n).kind != cached || at < 0 || at >= len(n.GetInput()) {
				continue
			}
			name, _, _ := strings.Cut(n.GetInput()[at], ":")
			if isPath(nodes[name]) {
				return true
			}
		}
	}
	return false
}

// batchesFit tells whether every batch above a repeat ends where a pass ends: only then does a pass for itself give the
// batches that local execution gives across passes.
func (p *planner) batchesFit(root, repeat *step) bool {
	single := p.without(root, repeat)
	for s, above := single, root; above != repeat; s, above = s.in[0], above.in[0] {
		if s.rule.kind != batched {
			continue
		}
		n := p.cardinality(s.in[0])
		size, ok := p.g.inputInt(s.node, "batch_size")
		if !ok || n < 0 || n%size != 0 {
			return false
		}
	}
	return true
}

// sink moves take, skip and shard below steps that make each element of one element, so that the cut above them needs
// less of the pipeline in every stream.
func (p *planner) sink(s *step) *step {
	c := *s
	c.in = make([]*step, len(s.in))
	for i, in := range s.in {
		c.in[i] = p.sink(in)
	}
	if c.rule.kind != position {
		return &c
	}
	var above []*step
	below := c.in[0]
	for below.rule.kind == pass && !p.g.isMark(below.node) || (below.rule.kind == oneToOne && p.facts(below).pure()) {
		above = append(above, below)
		below = below.in[0]
	}
	if len(above) == 0 {
		return &c
	}
	c.in = []*step{below}
	c.like = below.like
	top := &c
	for i := len(above) - 1; i >= 0; i-- {
		moved := *above[i]
		moved.in = append([]*step{top}, moved.in[1:]...)
		top = &moved
	}
	return top
}

// rootAssert gives what an assert_cardinality at the end of the pipeline promises, unknown without one.
func (p *planner) rootAssert(root *step) int64 {
	for s := root; len(s.in) > 0; s = s.in[0] {
		switch s.rule.kind {
		case asserted:
			if n, ok := p.g.inputInt(s.node, "cardinality"); ok {
				return n
			}
			return unknown
		case oneToOne, pass:
		default:
			return unknown
		}
	}
	return unknown
}
