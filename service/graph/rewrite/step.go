package rewrite

import (
	"fmt"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/analysis"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/ops"
	"github.com/pecan-ml/pecan/service/graph/split"
)

// rewriteStep changes a step and its functions for a stream: buffers, seeds, the order of elements and paths.
func (e *editor) rewriteStep(s *graph.Step, place position) {
	name := s.Node.GetName()
	op := s.Node.GetOp()
	if s.Rule.Kind == ops.Shuffled {
		e.fitBuffer(s, !place.upstreamOfCut && e.plan.streams > 1)
	}
	if e.plan.streams != 1 && (s.Rule.Kind == ops.Cached || op == "SnapshotDatasetV2") {
		e.separatePath(s.Node, map[bool]string{true: "path", false: "filename"}[op == "SnapshotDatasetV2"])
	}
	if place.upstreamOfCut && e.plan.streams > 1 || analysis.NeedsRepeatableOrder(e.at.Mode) {
		e.fixOrder(s.Node)
	}
	e.capBuffers(s.Node)
	e.readOneByOne(s)
	if crashesOnEmptyRows(e.g, s.Node) {
		e.sliceBatches(e.Edit(name), name)
	}
	e.privateVariables(s.Node, place)
	e.seedStep(s.Node, place)
	e.serial = e.sequenced[name] || e.at.Serial
	for _, called := range nodedef.CalledFunctions(s.Node) {
		if e.needsClone(called) || e.serial {
			clone := e.cloneFunction(called, name, place)
			nodedef.RenameCalls(e.Edit(name), called, clone)
		}
	}
	if e.serial && ops.IsParallel(op) {
		e.serialise(e.Edit(name))
	}
	if e.at.Serial {
		e.batchSerially(name)
		e.clearThreads(e.Node(name))
	}
}

// fitBuffer sets the buffer of a shuffle. Downstream of the cut it gets its part of the user's size, so that
// the streams that are open together hold that many elements. A buffer is not larger than the number of the shuffle's
// elements.
func (e *editor) fitBuffer(s *graph.Step, shared bool) {
	size, ok := e.g.InputInt(s.Node, "buffer_size")
	if !ok || size <= 1 {
		return
	}
	part := min(size, graph.MaxShuffleBuffer)
	if shared {
		part = min((size-1)/e.plan.open+1, graph.MaxShuffleBuffer)
	}
	if len(s.In) > 0 {
		if n := e.p.Cardinality(s); n > 0 {
			part = min(part, n)
		}
	}
	if part != size {
		e.SetInput(s.Node.GetName(), "buffer_size", e.AddInt("pecan_buffer/"+s.Node.GetName(), part))
	}
}

// separatePath gives each stream separate files. With common files, two writers of a cache would fail, or a
// stream would read the share of another one.
func (e *editor) separatePath(n *tf.NodeDef, arg string) {
	values, ok := nodedef.Strings(e.g.Input(n, arg))
	if !ok || len(values) != 1 || len(values[0]) == 0 {
		return
	}
	path := fmt.Sprintf("%s.stream-%d-of-%d", values[0], e.at.Stream, e.plan.streams)
	if e.plan.off {
		path = fmt.Sprintf("%s.stream-%d", values[0], e.at.Stream)
	}
	e.SetInput(n.GetName(), arg, e.Add(nodedef.Const("pecan_path/"+n.GetName(), &tf.TensorProto{
		Dtype: tf.DataType_DT_STRING, TensorShape: nodedef.Shape(), StringVal: [][]byte{[]byte(path)}})))
}

// fixOrder makes a parallel step return its elements in the order of its input.
func (e *editor) fixOrder(n *tf.NodeDef) {
	if v, ok := n.GetAttr()["deterministic"]; ok && string(v.GetS()) != "true" {
		e.Edit(n.GetName()).Attr["deterministic"] = nodedef.BytesAttr("true")
	}
	if n.GetAttr()["sloppy"].GetB() {
		e.Edit(n.GetName()).Attr["sloppy"] = nodedef.BoolAttr(false)
	}
	if i := e.g.InputIndex(n, "sloppy"); i >= 0 {
		e.SetInput(n.GetName(), "sloppy", e.Add(nodedef.BoolConst("pecan_order/"+n.GetName(), false)))
	}
	e.tightenOptions(n)
}

// capBuffers lowers arguments whose values would only cost memory or threads.
func (e *editor) capBuffers(n *tf.NodeDef) {
	for arg, limit := range map[string]int64{"num_parallel_calls": graph.MaxParallelism, "buffer_size": graph.MaxPrefetch} {
		if arg == "buffer_size" && n.GetOp() != "PrefetchDataset" {
			continue
		}
		if e.g.InputIndex(n, arg) < 0 {
			continue
		}
		i := e.g.Input(n, arg)
		v, ok := nodedef.Int(i)
		if !ok || v <= limit {
			continue
		}
		t := &tf.TensorProto{Dtype: nodedef.Tensor(i).GetDtype(), TensorShape: nodedef.Shape()}
		if t.Dtype == tf.DataType_DT_INT32 {
			t.IntVal = []int32{int32(limit)}
		} else {
			t.Int64Val = []int64{limit}
		}
		e.SetInput(n.GetName(), arg, e.Add(nodedef.Const("pecan_cap/"+n.GetName(), t)))
	}
}

// fillHints replaces shard(SHARD_HINT, SHARD_HINT) by the stream's share.
func (e *editor) fillHints() {
	hinted, _ := e.g.Hints()
	for _, name := range hinted {
		e.SetInput(name, "num_shards", e.AddInt(split.CutPrefix+name+"/shards", e.plan.streams))
		e.SetInput(name, "index", e.AddInt(split.CutPrefix+name+"/index", int64(e.at.Stream)))
	}
}
