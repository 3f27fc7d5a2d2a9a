package graph

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
)

// rewriteStep changes what a step needs changed in a stream: buffers, seeds, order, paths, and the same in its functions.
func (e *editor) rewriteStep(s *step, at place) {
	name := s.node.GetName()
	op := s.node.GetOp()
	if s.rule.kind == shuffled {
		e.fitBuffer(s, !at.head && e.plan.streams > 1)
	}
	if e.plan.streams != 1 && (s.rule.kind == cached || op == "SnapshotDatasetV2") {
		e.separatePath(s.node, map[bool]string{true: "path", false: "filename"}[op == "SnapshotDatasetV2"])
	}
	if at.head && e.plan.streams > 1 || keepsOrder(e.at.Mode) {
		e.fixOrder(s.node)
	}
	e.capBuffers(s.node)
	if e.g.diesOfEmptyRows(s.node) {
		e.sliceBatches(e.edit(name), name)
	}
	e.ownVariables(s.node, at)
	e.seedStep(s.node, at)
	e.serial = e.mended[name] || e.at.Serial
	for _, called := range calledFunctions(s.node) {
		if e.touches(called) || e.serial {
			clone := e.cloneFunction(called, name, at)
			renameCalls(e.edit(name), called, clone)
		}
	}
	if e.serial && sideBySide(op) {
		e.serialise(e.edit(name))
	}
	if e.at.Serial {
		e.batchSerially(name)
		e.noThreads(e.node(name))
	}
}

// serialise makes a parallel step work on one element at a time, in order. tf.data does not do so by itself: its own
// determinism option orders what comes out, not who draws first. Nothing of the step may be set by argument afterwards.
func (e *editor) serialise(c *tf.NodeDef) {
	to := serialOps[c.GetOp()]
	keep := e.g.inputIndex(c, to.lastArg) + 1
	if to.lastArg == "other_arguments" {
		keep = len(c.GetInput())
		for keep > 0 && strings.HasPrefix(c.GetInput()[keep-1], "^") {
			keep--
		}
		keep--
	}
	inputs := append([]string(nil), c.Input[:keep]...)
	for _, input := range c.Input[keep:] {
		if strings.HasPrefix(input, "^") {
			inputs = append(inputs, input)
		}
	}
	c.Op, c.Input = to.op, inputs
	def := e.g.ops.byName[to.op]
	for key := range c.Attr {
		if attrDef(def, key) == nil && !strings.HasPrefix(key, "_") {
			delete(c.Attr, key)
		}
	}
}

// fitBuffer gives a shuffle above the cut its part of the user's buffer, so that S streams together hold what the user
// asked for, and no shuffle more room than it can use.
func (e *editor) fitBuffer(s *step, shared bool) {
	size, ok := e.g.inputInt(s.node, "buffer_size")
	if !ok || size <= 1 {
		return
	}
	part := min(size, maxShuffleRoom)
	if shared {
		part = min((size-1)/e.plan.streams+1, maxShuffleRoom)
	}
	if len(s.in) > 0 {
		if n := e.p.cardinality(s); n > 0 {
			part = min(part, n)
		}
	}
	if part != size {
		e.setInput(s.node.GetName(), "buffer_size", e.addInt("pecan_buffer/"+s.node.GetName(), part))
	}
}

// separatePath gives each stream files of its own: two writers of one cache fail, or one reads the other's share.
func (e *editor) separatePath(n *tf.NodeDef, arg string) {
	values, ok := constStrings(e.g.input(n, arg))
	if !ok || len(values) != 1 || len(values[0]) == 0 {
		return
	}
	path := fmt.Sprintf("%s.stream-%d-of-%d", values[0], e.at.Stream, e.plan.streams)
	if e.plan.off {
		path = fmt.Sprintf("%s.stream-%d", values[0], e.at.Stream)
	}
	e.setInput(n.GetName(), arg, e.add(constNode("pecan_path/"+n.GetName(), &tf.TensorProto{
		Dtype: tf.DataType_DT_STRING, TensorShape: shapeOf(), StringVal: [][]byte{[]byte(path)}})))
}

// fixOrder makes a parallel step give its elements in the order of its input.
func (e *editor) fixOrder(n *tf.NodeDef) {
	if v, ok := n.GetAttr()["deterministic"]; ok && string(v.GetS()) != "true" {
		e.edit(n.GetName()).Attr["deterministic"] = bytesAttr("true")
	}
	if n.GetAttr()["sloppy"].GetB() {
		e.edit(n.GetName()).Attr["sloppy"] = boolAttr(false)
	}
	if i := e.g.inputIndex(n, "sloppy"); i >= 0 {
		e.setInput(n.GetName(), "sloppy", e.add(boolConst("pecan_order/"+n.GetName(), false)))
	}
	e.tightenOptions(n)
}

// capBuffers lowers numbers that would only cost memory or threads.
func (e *editor) capBuffers(n *tf.NodeDef) {
	for arg, limit := range map[string]int64{"num_parallel_calls": maxParallelism, "buffer_size": maxPrefetch} {
		if arg == "buffer_size" && n.GetOp() != "PrefetchDataset" {
			continue
		}
		if e.g.inputIndex(n, arg) < 0 {
			continue
		}
		i := e.g.input(n, arg)
		v, ok := constInt(i)
		if !ok || v <= limit {
			continue
		}
		t := &tf.TensorProto{Dtype: constTensor(i).GetDtype(), TensorShape: shapeOf()}
		if t.Dtype == tf.DataType_DT_INT32 {
			t.IntVal = []int32{int32(limit)}
		} else {
			t.Int64Val = []int64{limit}
		}
		e.setInput(n.GetName(), arg, e.add(constNode("pecan_cap/"+n.GetName(), t)))
	}
}

// seedStep sets the two seeds that a dataset op takes as inputs.
func (e *editor) seedStep(n *tf.NodeDef, at place) {
	if !e.takesSeeds(n) {
		return
	}
	seed, ok1 := e.g.inputInt(n, "seed")
	seed2, ok2 := e.g.inputInt(n, "seed2")
	if !ok1 || !ok2 {
		return
	}
	at.start = 0
	a, b := e.seedPair(n, at, seed, seed2, n.GetName())
	if a == seed && b == seed2 {
		return
	}
	e.setInput(n.GetName(), "seed", e.addInt("pecan_seed/"+n.GetName(), a))
	e.setInput(n.GetName(), "seed2", e.addInt("pecan_seed2/"+n.GetName(), b))
}

func (e *editor) takesSeeds(n *tf.NodeDef) bool {
	return e.g.ops.isDataset(n.GetOp()) && e.g.inputIndex(n, "seed") >= 0 && e.g.inputIndex(n, "seed2") >= 0
}

// seedPair asks for the seeds of one op, which may say itself that all epochs are alike.
func (e *editor) seedPair(n *tf.NodeDef, at place, seed, seed2 int64, path string) (int64, int64) {
	fixed := false
	for _, key := range []string{"reshuffle_each_iteration", "rerandomize_each_iteration"} {
		if v, ok := n.GetAttr()[key]; ok && !v.GetB() {
			fixed = true
		}
	}
	if e.plan.off && (seed != 0 || seed2 != 0) {
		at.head = true
	} else if e.plan.off {
		at.head = false
	}
	return e.seeds.seeds(at, seed, seed2, path, fixed)
}

// touches tells whether a function, or one it calls, holds something that a stream sets.
func (e *editor) touches(name string) bool {
	if known, ok := e.touched[name]; ok {
		return known
	}
	e.touched[name] = e.touchesAny(name)
	return e.touched[name]
}

func (e *editor) touchesAny(name string) bool {
	for _, n := range e.g.functions[name].GetNodeDef() {
		if e.g.ops.isSeeded(n.GetOp()) || e.takesSeeds(n) || e.g.diesOfEmptyRows(n) {
			return true
		}
		if v, ok := n.GetAttr()["deterministic"]; ok && string(v.GetS()) != "true" {
			return true
		}
		if n.GetAttr()["sloppy"].GetB() || e.g.ops.isDataset(n.GetOp()) && e.g.inputIndex(n, "cycle_length") >= 0 {
			return true
		}
		for _, called := range calledFunctions(n) {
			if e.touches(called) {
				return true
			}
		}
	}
	return false
}

// clonedMark stands between the name of a function and what tells its copies apart.
const clonedMark = "_pecan_"

// cloneFunction copies a function for one path of calls, so that what is seeded in it is seeded for that path alone.
func (e *editor) cloneFunction(name, path string, at place) string {
	clone := name + clonedMark + shortHash(path)
	original := e.function(name)
	f := copySignature(original)
	f.Signature = renamed(original.GetSignature(), clone)
	e.funcs[clone] = f
	e.clones += len(original.GetNodeDef())
	if e.clones > e.g.limits.MaxNodes {
		return clone
	}
	inside := map[string]*tf.NodeDef{}
	for _, n := range original.GetNodeDef() {
		inside[n.GetName()] = n
	}
	for _, n := range original.GetNodeDef() {
		c := copyNode(n)
		nodePath := path + "/" + n.GetName()
		f.NodeDef = append(f.NodeDef, e.rewriteNested(c, nodePath, at, inside)...)
		for _, called := range calledFunctions(n) {
			if e.touches(called) || e.serial {
				renameCalls(c, called, e.cloneFunction(called, nodePath, at))
			}
		}
		f.NodeDef = append(f.NodeDef, c)
	}
	return clone
}

// renamed gives a signature under another name. The parts are shared.
func renamed(sig *tf.OpDef, name string) *tf.OpDef {
	return &tf.OpDef{
		Name: name, InputArg: sig.GetInputArg(), OutputArg: sig.GetOutputArg(), ControlOutput: sig.GetControlOutput(),
		Attr: sig.GetAttr(), IsStateful: sig.GetIsStateful(), IsCommutative: sig.GetIsCommutative(),
		IsAggregate: sig.GetIsAggregate(), AllowsUninitializedInput: sig.GetAllowsUninitializedInput(),
		IsDistributedCommunication: sig.GetIsDistributedCommunication(),
	}
}

// copySignature gives a function of the same arguments and results, without nodes. The parts are shared.
func copySignature(f *tf.FunctionDef) *tf.FunctionDef {
	return &tf.FunctionDef{
		Signature: f.GetSignature(), Attr: f.GetAttr(), ArgAttr: f.GetArgAttr(), ResourceArgUniqueId: f.GetResourceArgUniqueId(),
		Ret: f.GetRet(), ControlRet: f.GetControlRet(),
	}
}

// cycleLength is how many inputs an interleave inside a function reads in turn whose user left that to tf.data: there it is
// the number of the worker's cores, and so would be the order. Outside of functions the trainer has put in its own number.
const cycleLength = 8

// rewriteNested changes one node of a cloned function and gives the constants that it needs beside it.
func (e *editor) rewriteNested(c *tf.NodeDef, path string, at place, inside map[string]*tf.NodeDef) (beside []*tf.NodeDef) {
	if e.plan.streams > 1 && at.head || keepsOrder(e.at.Mode) {
		if v, ok := c.Attr["deterministic"]; ok && string(v.GetS()) != "true" {
			c.Attr["deterministic"] = bytesAttr("true")
		}
		if c.Attr["sloppy"].GetB() {
			c.Attr["sloppy"] = boolAttr(false)
		}
		if cycle, ok := e.p.nestedInt(c, "cycle_length", inside); ok && cycle < 0 {
			fixed := "pecan_cycle_" + c.GetName()
			c.Input[e.g.inputIndex(c, "cycle_length")] = fixed + ":output:0"
			beside = append(beside, int64Const(fixed, cycleLength))
		}
	}
	if e.g.diesOfEmptyRows(c) {
		e.sliceBatches(c, path)
	}
	if size, ok := e.p.nestedInt(c, "buffer_size", inside); ok && rules[c.GetOp()].kind == shuffled && size > maxShuffleRoom {
		room := "pecan_buffer_" + c.GetName()
		c.Input[e.g.inputIndex(c, "buffer_size")] = room + ":output:0"
		beside = append(beside, int64Const(room, maxShuffleRoom))
	}
	if e.serial && c.GetOp() == "PrefetchDataset" {
		// Elements are made when they are asked for, so that datasets which are read in turn draw in turn.
		off := "pecan_buffer_" + c.GetName()
		c.Input[e.g.inputIndex(c, "buffer_size")] = off + ":output:0"
		beside = append(beside, int64Const(off, 0))
	}
	if e.serial && e.g.ops.isDataset(c.GetOp()) && sideBySide(c.GetOp()) {
		e.serialise(c)
	}
	switch {
	case e.g.ops.isSeeded(c.GetOp()):
		a, b := e.seedPair(c, at, c.Attr["seed"].GetI(), c.Attr["seed2"].GetI(), path)
		c.Attr["seed"], c.Attr["seed2"] = intAttr(a), intAttr(b)
	case e.takesSeeds(c):
		seed, ok1 := e.p.nestedInt(c, "seed", inside)
		seed2, ok2 := e.p.nestedInt(c, "seed2", inside)
		if !ok1 || !ok2 {
			return beside
		}
		at.start = 0
		a, b := e.seedPair(c, at, seed, seed2, path)
		one, two := "pecan_seed_"+c.GetName(), "pecan_seed2_"+c.GetName()
		c.Input[e.g.inputIndex(c, "seed")] = one + ":output:0"
		c.Input[e.g.inputIndex(c, "seed2")] = two + ":output:0"
		beside = append(beside, int64Const(one, a), int64Const(two, b))
	}
	return beside
}

// renameCalls makes a node call another function; its attributes are copied before they change.
func renameCalls(n *tf.NodeDef, from, to string) {
	for key, v := range n.Attr {
		switch x := v.GetValue().(type) {
		case *tf.AttrValue_Func:
			if x.Func.GetName() == from {
				n.Attr[key] = &tf.AttrValue{Value: &tf.AttrValue_Func{Func: &tf.NameAttrList{Name: to, Attr: x.Func.GetAttr()}}}
			}
		case *tf.AttrValue_List:
			if len(x.List.GetFunc()) == 0 {
				continue
			}
			list := &tf.AttrValue_ListValue{}
			for _, f := range x.List.GetFunc() {
				called := f
				if f.GetName() == from {
					called = &tf.NameAttrList{Name: to, Attr: f.GetAttr()}
				}
				list.Func = append(list.Func, called)
			}
			n.Attr[key] = &tf.AttrValue{Value: &tf.AttrValue_List{List: list}}
		}
	}
}

func shortHash(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:8])
}

// nameResources gives tables and variables names made of their content: two graphs in one worker share them by name,
// and then share only what is equal. The content of a table may be in files, whose states stand for it: a worker's table
// outlives the job, and the files may be others by the next one. Tables that functions make are the iterator's own.
//
// Handles of the trainer's seed generators and caches get names that no worker knows: a step then makes its own.
func (e *editor) nameResources() {
	for _, n := range e.g.order {
		if t := constTensor(n); t.GetDtype() == tf.DataType_DT_RESOURCE {
			absent := &tf.TensorProto{Dtype: t.GetDtype(), TensorShape: t.GetTensorShape()}
			for _, handle := range t.GetResourceHandleVal() {
				absent.ResourceHandleVal = append(absent.ResourceHandleVal, &tf.ResourceHandleProto{
					Device: handle.GetDevice(), Container: handle.GetContainer(), Name: "pecan_absent/" + n.GetName(),
					HashCode: handle.GetHashCode(), MaybeTypeName: handle.GetMaybeTypeName(),
				})
			}
			e.edit(n.GetName()).Attr["value"] = &tf.AttrValue{Value: &tf.AttrValue_Tensor{Tensor: absent}}
		}
	}
	for name, f := range e.g.functions {
		e.ownTables(name, f)
	}
	if !e.hasResources() {
		// Hashing reads every constant, which may be most of the graph.
		return
	}
	h := newHasher(e.g)
	content := map[string][]string{}
	for _, n := range e.g.order {
		if fillsTable(n.GetOp()) || n.GetOp() == "AssignVariableOp" {
			target, _, _ := splitInput(n.GetInput()[0])
			content[target] = append(content[target], string(h.node(n.GetName())))
			if fillsFromFiles(n.GetOp()) {
				content[target] = append(content[target], e.filling(n)...)
			}
		}
	}
	for _, n := range e.g.order {
		if isTable(n.GetOp()) && n.GetAttr()["shared_name"] != nil || n.GetOp() == "VarHandleOp" {
			name := "pecan_" + shortHash(append(content[n.GetName()], string(h.node(n.GetName())))...)
			e.edit(n.GetName()).Attr["shared_name"] = bytesAttr(name)
			e.share(e.node(n.GetName()))
		}
	}
}

func (e *editor) hasResources() bool {
	for _, n := range e.g.order {
		if isTable(n.GetOp()) || n.GetOp() == "VarHandleOp" {
			return true
		}
	}
	return false
}

// fillHints replaces shard(SHARD_HINT, SHARD_HINT) by the stream's own share.
func (e *editor) fillHints() {
	hinted, _ := e.g.hints()
	for _, name := range hinted {
		e.setInput(name, "num_shards", e.addInt(cutPrefix+name+"/shards", e.plan.streams))
		e.setInput(name, "index", e.addInt(cutPrefix+name+"/index", int64(e.at.Stream)))
	}
}
