package rewrite

import (
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/analysis"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// needsClone returns whether a stream changes a node of a function, or of a function that it calls.
func (e *editor) needsClone(name string) bool {
	if known, ok := e.seededFunctions[name]; ok {
		return known
	}
	e.seededFunctions[name] = e.findNeedsClone(name)
	return e.seededFunctions[name]
}

func (e *editor) findNeedsClone(name string) bool {
	for _, n := range e.g.Function(name).GetNodeDef() {
		if e.g.Ops().IsSeeded(n.GetOp()) || e.takesSeeds(n) || crashesOnEmptyRows(e.g, n) {
			return true
		}
		if v, ok := n.GetAttr()["deterministic"]; ok && string(v.GetS()) != "true" {
			return true
		}
		if n.GetAttr()["sloppy"].GetB() || e.g.Ops().IsDataset(n.GetOp()) && e.g.InputIndex(n, "cycle_length") >= 0 {
			return true
		}
		for _, called := range nodedef.CalledFunctions(n) {
			if e.needsClone(called) {
				return true
			}
		}
	}
	return false
}

// cloneFunction copies a function for one path of calls, so that its seeds hold for that path only.
func (e *editor) cloneFunction(name, path string, place position) string {
	clone := name + nodedef.CloneInfix + nodedef.ShortHash(path)
	original := e.Function(name)
	f := nodedef.CopySignature(original)
	f.Signature = nodedef.RenameSignature(original.GetSignature(), clone)
	e.AddFunction(clone, f)
	e.clones += len(original.GetNodeDef())
	if e.clones > e.g.Limits().MaxNodes {
		return clone
	}
	inside := map[string]*tf.NodeDef{}
	for _, n := range original.GetNodeDef() {
		inside[n.GetName()] = n
	}
	for _, n := range original.GetNodeDef() {
		c := nodedef.Copy(n)
		nodePath := path + "/" + n.GetName()
		f.NodeDef = append(f.NodeDef, e.rewriteNested(c, nodePath, place, inside)...)
		for _, called := range nodedef.CalledFunctions(n) {
			if e.needsClone(called) || e.serial {
				nodedef.RenameCalls(c, called, e.cloneFunction(called, nodePath, place))
			}
		}
		f.NodeDef = append(f.NodeDef, c)
	}
	return clone
}

// cycleLength is the number of inputs that an interleave inside a function reads in turn, if the user left it
// to tf.data. tf.data would use the number of the worker's cores, and the order of elements would depend on the
// worker. Outside of functions the trainer has set its own number.
const cycleLength = 8

// rewriteNested changes a node of a cloned function, and returns the constants that the node needs.
func (e *editor) rewriteNested(c *tf.NodeDef, path string, place position, inside map[string]*tf.NodeDef) (constants []*tf.NodeDef) {
	if e.plan.streams > 1 && place.upstreamOfCut || analysis.NeedsRepeatableOrder(e.at.Mode) {
		if v, ok := c.Attr["deterministic"]; ok && string(v.GetS()) != "true" {
			c.Attr["deterministic"] = nodedef.BytesAttr("true")
		}
		if c.Attr["sloppy"].GetB() {
			c.Attr["sloppy"] = nodedef.BoolAttr(false)
		}
		if cycle, ok := e.p.NestedInt(c, "cycle_length", inside); ok && cycle < 0 {
			fixed := "pecan_cycle_" + c.GetName()
			c.Input[e.g.InputIndex(c, "cycle_length")] = fixed + ":output:0"
			constants = append(constants, nodedef.Int64Const(fixed, cycleLength))
		}
	}
	if crashesOnEmptyRows(e.g, c) {
		e.sliceBatches(c, path)
	}
	if size, ok := e.p.NestedInt(c, "buffer_size", inside); ok && ops.Rules[c.GetOp()].Kind == ops.Shuffled && size > graph.MaxShuffleBuffer {
		size := "pecan_buffer_" + c.GetName()
		c.Input[e.g.InputIndex(c, "buffer_size")] = size + ":output:0"
		constants = append(constants, nodedef.Int64Const(size, graph.MaxShuffleBuffer))
	}
	if e.serial && c.GetOp() == "PrefetchDataset" {
		// Elements are computed on request, so that datasets that are read in turn draw random values in turn.
		off := "pecan_buffer_" + c.GetName()
		c.Input[e.g.InputIndex(c, "buffer_size")] = off + ":output:0"
		constants = append(constants, nodedef.Int64Const(off, 0))
	}
	if e.serial && e.g.Ops().IsDataset(c.GetOp()) && ops.IsParallel(c.GetOp()) {
		e.serialise(c)
	}
	switch {
	case e.g.Ops().IsSeeded(c.GetOp()):
		a, b := e.seedPair(c, place, c.Attr["seed"].GetI(), c.Attr["seed2"].GetI(), path)
		c.Attr["seed"], c.Attr["seed2"] = nodedef.IntAttr(a), nodedef.IntAttr(b)
	case e.takesSeeds(c):
		seed, ok1 := e.p.NestedInt(c, "seed", inside)
		seed2, ok2 := e.p.NestedInt(c, "seed2", inside)
		if !ok1 || !ok2 {
			return constants
		}
		place.start = 0
		a, b := e.seedPair(c, place, seed, seed2, path)
		one, two := "pecan_seed_"+c.GetName(), "pecan_seed2_"+c.GetName()
		c.Input[e.g.InputIndex(c, "seed")] = one + ":output:0"
		c.Input[e.g.InputIndex(c, "seed2")] = two + ":output:0"
		constants = append(constants, nodedef.Int64Const(one, a), nodedef.Int64Const(two, b))
	}
	return constants
}
