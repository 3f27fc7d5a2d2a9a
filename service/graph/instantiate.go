package graph

import (
	"fmt"
	"strings"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
)

// At says which stream of which epoch is wanted, and how the worker runs it.
type At struct {
	// Stream is 0..S-1, or S for the closing stream. With sharding off any number: every stream is the whole dataset.
	Stream int
	Epoch  uint64
	// Seed is the job's seed.
	Seed uint64
	Mode pecanv1.Mode
	// Start is the index at which the stream begins. Elements before it are left out as low in the graph as can be.
	Start uint64
	// Restored is the index at which an iterator over the graph goes on with a checkpoint's state. Random ops, whose state
	// is in none, then draw other values than they drew for the first elements.
	Restored uint64
	// Source is the handle that PecanPull passes to the worker's source op, -1 when there is none.
	Source int64
	// Keep divides the graph at the plan's cached step: what lies below is StreamGraphs.Below, and KeptSource is the handle under
	// which the rest pulls its elements.
	Keep       bool
	KeptSource int64
	// Files are the states of those of Graph.TableFiles that are files, and Job is the id of the job: tables are shared by them.
	Files map[string]string
	Job   string
	// Threads, when positive, gives the stream a thread pool of its own of that size unless the user chose one.
	Threads int
	// RAMBudget, when positive, bounds what tf.data's autotuning may use for buffers, bytes.
	RAMBudget int64
	// Serial has every step make one element after another, when it is asked for. In a context with one thread for functions the CPU that
	// an element takes is then spent while it is asked for, by the thread that asks and by that one.
	Serial bool
	// Keyed has the stream run as in mode deterministic, with all that can be keyed keyed.
	Keyed bool
	// Top, when not empty, is the step whose elements the stream gives: what stands above it is left out.
	Top string
	// Meters, when not empty, has steps counted that tf.data's own model of a running iterator forgets, under this name: one
	// that no other iterator of the process has.
	Meters string
}

// StreamGraphs are the graphs that a worker runs for one stream: A alone, or A feeding B through PecanPull.
//
// Divided at a cached step, Below is what lies under it, and A begins with what the worker gives.
type StreamGraphs struct {
	A     []byte
	B     []byte
	Below []byte
	// Names are the strings in Below that may be names of files.
	Names []string
	// Files are At.Files.
	Files map[string]string
	// Shared are the tables and variables in the graphs that other streams find by their names: made with the graphs' datasets, and
	// freed by Freeing.
	Shared []Shared
	// Ops are the ops of the registered graph's dataset nodes, by name. A stream may run a step as another op.
	Ops map[string]string
	// Output is the name of the _Retval node that marks the dataset in A and B.
	Output string
}

// Instantiate writes the graphs of one stream. Equal arguments give equal bytes, on every worker.
func Instantiate(g *Graph, plan *pecanv1.Plan, at At) (*StreamGraphs, error) {
	switch {
	case plan.GetFingerprint() != g.fingerprint:
		return nil, reason.New(reason.Internal, "a plan for dataset %s does not fit dataset %s", plan.GetFingerprint(), g.fingerprint)
	case plan.GetHash() != planHash(plan):
		return nil, reason.New(reason.Internal, "the plan for dataset %s was changed after it was made", g.fingerprint)
	case at.Stream < 0, plan.GetNumStreams() > 0 && at.Stream > lastStream(plan):
		return nil, reason.New(reason.StreamUnknown, "stream %d is asked for, the plan has streams 0 to %d", at.Stream, lastStream(plan))
	}
	if at.Keyed {
		at.Mode = pecanv1.Mode_MODE_DETERMINISTIC
	}
	if at.Serial {
		if err := g.serialises(); err != nil {
			return nil, err
		}
	}
	e := &editor{
		g: g, p: newPlanner(g), at: at, nodes: map[string]*tf.NodeDef{}, funcs: map[string]*tf.FunctionDef{},
		touched: map[string]bool{}, assigned: g.assignments(),
		seeds: seedSource{job: at.Seed, epoch: at.Epoch, stream: uint64(at.Stream)},
		plan:  planFacts{streams: int64(plan.GetNumStreams()), off: plan.GetNumStreams() == 0, hint: plan.GetCut().GetKind() == pecanv1.Cut_HINT},
	}
	e.skips, e.sunk = map[*step]int64{}, map[*step]bool{}
	e.nameResources()
	graphs, err := e.stream(plan)
	if err == nil {
		graphs.Shared = e.sharedByName()
	}
	return graphs, err
}

// stream writes the graphs.
func (e *editor) stream(plan *pecanv1.Plan) (*StreamGraphs, error) {
	g, at := e.g, e.at
	root, isTree := g.tree()
	if !isTree {
		root = &step{node: g.root, like: g.root, rule: rule{kind: source}}
		for _, n := range g.order {
			if g.ops.isDataset(n.GetOp()) {
				e.rewriteStep(&step{node: n, like: n, rule: g.ruleOf(n)}, place{head: true})
			}
		}
		return e.whole(root)
	}
	if plan.GetRepeat() != 1 {
		root, _ = e.p.takeRepeatOff(root)
	}
	e.p.keyed = map[string]bool{}
	for _, name := range plan.GetKeyed() {
		e.p.keyed[name] = true
	}
	if at.Keyed {
		e.p.key(root, at.Mode)
	}
	e.mended = e.p.mended(root, at.Mode)
	if e.plan.hint {
		e.fillHints()
	}
	if at.Keep && plan.GetCache() != nil && at.Stream < int(plan.GetNumStreams()) {
		e.keep, e.p.kept = plan, plan.GetCache().GetNode()
	}
	if e.plan.off || e.plan.hint || plan.GetNumStreams() == 1 {
		top, _, err := e.top(root, way{})
		if err != nil {
			return nil, err
		}
		return e.whole(top)
	}
	root = e.p.sink(root)
	w, err := e.p.findWay(root, plan)
	if err != nil {
		return nil, err
	}
	if root, e.plan.way, err = e.top(root, w); err != nil {
		return nil, err
	}
	return e.parts(root)
}

// top gives the step at which the stream ends, and the way without a batch that stands above it.
func (e *editor) top(root *step, w way) (*step, way, error) {
	for s := root; ; s = s.in[0] {
		if e.at.Top == "" || s.node.GetName() == e.at.Top {
			return s, w, nil
		}
		if s == w.batch {
			w.batch, w.batchWay = nil, exact
		}
		if len(s.in) != 1 || s.in[0] == nil {
			return nil, way{}, reason.New(reason.Internal, "there is no step %s below the result alone", quoteName(e.at.Top))
		}
		if _, cut := w.cuts[s]; cut {
			return nil, way{}, reason.New(reason.Internal, "step %s stands below the cut", quoteName(e.at.Top))
		}
	}
}

func lastStream(plan *pecanv1.Plan) int {
	last := int(plan.GetNumStreams()) - 1
	if plan.GetBatchStrategy() != pecanv1.BatchStrategy_BATCH_STRATEGY_EXACT {
		last++
	}
	return last
}

// findWay finds the division that a plan recorded among those that the rules offer.
func (p *planner) findWay(root *step, plan *pecanv1.Plan) (way, error) {
	for _, keepFiles := range []bool{false, true} {
		candidates := []way{p.exactWay(root, keepFiles)}
		if w, ok := p.joinedWay(root, keepFiles); ok {
			candidates = append(candidates, w)
		}
		for _, w := range candidates {
			made := &pecanv1.Plan{Cut: &pecanv1.Cut{}, BatchStrategy: pecanv1.BatchStrategy_BATCH_STRATEGY_EXACT}
			p.writeCut(made, w, int64(plan.GetNumStreams()))
			if samePlanCut(made, plan) {
				return w, nil
			}
		}
	}
	return way{}, reason.New(reason.Internal, "the plan for dataset %s was made by another version of Pecan: create the job anew", plan.GetFingerprint())
}

func samePlanCut(a, b *pecanv1.Plan) bool {
	x, y := a.GetCut(), b.GetCut()
	if a.GetBatchStrategy() != b.GetBatchStrategy() || a.GetBatchRows() != b.GetBatchRows() || x.GetBlock() != y.GetBlock() || len(x.GetEdges()) != len(y.GetEdges()) {
		return false
	}
	for i := range x.GetEdges() {
		if x.GetEdges()[i] != y.GetEdges()[i] {
			return false
		}
	}
	return true
}

// whole writes a graph without a cut.
func (e *editor) whole(root *step) (*StreamGraphs, error) {
	e.carry(root)
	e.begin(root, e.at.Start)
	return e.tree(root, root.like, place{head: !e.plan.hint})
}

// tree writes a step and all below it, divided at the cached step when there is one; like is whose elements come out.
func (e *editor) tree(root *step, like *tf.NodeDef, at place) (*StreamGraphs, error) {
	if e.keep != nil {
		if err := e.divideAtKept(root, at); err != nil {
			return nil, err
		}
	}
	graphs, err := e.single(e.emit(root, at), like)
	if err != nil {
		return nil, err
	}
	graphs.Below, graphs.Names, graphs.Files = e.below, e.names, e.at.Files
	return graphs, nil
}

// parts writes the graphs of a divided dataset.
func (e *editor) parts(root *step) (*StreamGraphs, error) {
	w := e.plan.way
	e.carry(root)
	if int64(e.at.Stream) < e.plan.streams && e.p.begins(root, w, e.at.Mode) == "" {
		e.begin(root, e.at.Start)
	} else if e.at.Start > 0 {
		return nil, reason.New(reason.Internal, "stream %d cannot begin at element %d", e.at.Stream, e.at.Start)
	}
	if w.batch == nil {
		return e.tree(root, root.like, place{})
	}
	if int64(e.at.Stream) == e.plan.streams {
		e.pullInto(w.batch)
		return e.single(e.emitAbove(root, w.batch, w.batch.node.GetName()), root.like)
	}
	if w.batchWay == remainder {
		e.relaxBatches(root, w.batch)
		return e.tree(root, w.batch.node, place{})
	}
	above := e.fork()
	e.relaxBatches(w.batch, w.batch)
	a, err := e.tree(w.batch, w.batch.node, place{})
	if err != nil {
		return nil, err
	}
	source := above.addPull(e.g.outputTypes(w.batch.node), e.g.outputShapes(w.batch.node), e.at.Source)
	b, err := above.single(above.emitAbove(root, w.batch, source), root.like)
	if err != nil {
		return nil, err
	}
	return &StreamGraphs{A: a.A, B: b.A, Below: a.Below, Names: a.Names, Files: a.Files, Ops: a.Ops, Output: a.Output}, nil
}

// single ends one graph: our options last, then the result.
func (e *editor) single(root string, like *tf.NodeDef) (*StreamGraphs, error) {
	if e.clones > e.g.limits.MaxNodes {
		return nil, reason.New(reason.GraphLimit, "the dataset's functions grow to more than %d nodes when each call gets seeds of its own: simplify the pipeline", e.g.limits.MaxNodes)
	}
	shapes := e.g.outputShapes(like)
	if n := e.node(like.GetName()); n != nil && !strings.HasPrefix(root, indexPrefix) {
		shapes = e.g.outputShapes(n)
	}
	options := &tf.NodeDef{Name: "pecan_options", Op: "OptionsDataset", Input: []string{e.meter(root)}, Attr: datasetAttrs(e.g.outputTypes(like), shapes)}
	options.Attr["serialized_options"] = bytesAttr(string(e.streamOptions()))
	raw, err := e.finish(e.add(options))
	if err != nil {
		return nil, reason.New(reason.Internal, "writing the graph of stream %d: %w", e.at.Stream, err)
	}
	return &StreamGraphs{A: raw, Ops: e.ops(), Output: e.g.retval.GetName()}, nil
}

// emit wires a step and all below it, with the cut where the plan has it, and gives the node that stands for its output.
func (e *editor) emit(s *step, at place) string {
	if s == e.stop {
		return e.stopOutput
	}
	cut, isCut := e.plan.way.cuts[s]
	at.head = at.head || isCut
	below := at
	if s.rule.kind == cached || s.node.GetOp() == "SnapshotDatasetV2" || e.g.isMark(s.node) {
		below.cached = true
	}
	inputs := make([]string, len(s.in))
	for i, in := range s.in {
		inputs[i] = e.number(in, e.emit(in, below))
	}
	for _, c := range s.captured {
		e.emit(c, below)
	}
	name := s.node.GetName()
	if s.rule.kind == asserted && e.plan.streams > 1 || e.at.Serial && s.node.GetOp() == prefetchOp {
		name = inputs[0]
	} else {
		switch {
		case e.at.Restored > 0 && !at.head && !e.p.keyed[name]:
			at.start = e.at.Restored
		case e.sunk[s] && !e.p.keyed[name]:
			at.start = e.at.Start
		}
		e.wire(s, inputs)
		e.rewriteStep(s, at)
		name = e.passOn(s)
	}
	if isCut {
		name = e.cut(s, e.plan.way.edges[cut], name)
	}
	return e.skip(s, name)
}

// emitAbove wires the steps from the root down to one step, whose output is given by a node.
func (e *editor) emitAbove(s, stop *step, output string) string {
	if s == stop {
		return output
	}
	input := e.number(s.in[0], e.emitAbove(s.in[0], stop, output))
	if s.rule.kind == asserted || e.at.Serial && s.node.GetOp() == prefetchOp {
		return input
	}
	for _, c := range s.captured {
		e.emit(c, place{})
	}
	e.wire(s, []string{input})
	e.rewriteStep(s, place{})
	return e.passOn(s)
}

// wire connects a step to its inputs where they changed.
func (e *editor) wire(s *step, inputs []string) {
	for i, input := range inputs {
		if e.node(s.node.GetName()).GetInput()[s.inAt[i]] != input {
			e.edit(s.node.GetName()).Input[s.inAt[i]] = input
		}
	}
	if s.like != s.node {
		n := e.edit(s.node.GetName())
		n.Attr["output_types"] = typesAttr(e.g.outputTypes(s.like))
		n.Attr["output_shapes"] = shapesAttr(e.g.outputShapes(s.like))
	}
}

// relaxBatches lets the batch concerned give its short last group, whatever the user said: it is the remainder that the
// closing stream batches again, and there the user's word counts.
func (e *editor) relaxBatches(root, batch *step) {
	e.add(boolConst("pecan_keep_remainder", false))
	e.setInput(batch.node.GetName(), "drop_remainder", "pecan_keep_remainder")
	for s := root; ; s = s.in[0] {
		if s.rule.kind != asserted {
			n := e.edit(s.node.GetName())
			n.Attr["output_shapes"] = shapesAttr(anyRows(e.g.outputShapes(s.node)))
		}
		if s == batch {
			return
		}
	}
}

// anyRows makes the first dimension of each shape unknown.
func anyRows(shapes []*tf.TensorShapeProto) []*tf.TensorShapeProto {
	out := make([]*tf.TensorShapeProto, len(shapes))
	for i, s := range shapes {
		out[i] = s
		if !s.GetUnknownRank() && len(s.GetDim()) > 0 {
			dims := append([]*tf.TensorShapeProto_Dim{{Size: -1}}, s.GetDim()[1:]...)
			out[i] = &tf.TensorShapeProto{Dim: dims}
		}
	}
	return out
}

func rowShapes(shapes []*tf.TensorShapeProto) []*tf.TensorShapeProto {
	out := make([]*tf.TensorShapeProto, len(shapes))
	for i, s := range shapes {
		out[i] = s
		if !s.GetUnknownRank() && len(s.GetDim()) > 0 {
			out[i] = &tf.TensorShapeProto{Dim: s.GetDim()[1:]}
		}
	}
	return out
}

// pullInto feeds a grouping step from our source: the rows of the remainders, one by one, or as they come for a step
// that regroups rows itself.
func (e *editor) pullInto(batch *step) {
	types := e.g.outputTypes(batch.node)
	shapes := anyRows(e.g.outputShapes(batch.node))
	input := e.addPull(types, shapes, e.at.Source)
	if batch.rule.kind == batched {
		rows := &tf.NodeDef{Name: pullPrefix + "/rows", Input: []string{input}, Attr: datasetAttrs(types, rowShapes(shapes))}
		e.sliceBatches(rows, rows.Name)
		input = e.add(rows)
	}
	e.edit(batch.node.GetName()).Input[batch.inAt[0]] = input
	e.rewriteStep(batch, place{})
}

// PullOp is the source op in stream graphs. The worker registers it: no inputs, attributes source (int), output_types
// and output_shapes, one output "components" (a list), OUT_OF_RANGE at the end.
const PullOp = "PecanPull"

// addPull adds the source: an endless range whose map asks the worker for what the handle stands for.
func (e *editor) addPull(types []tf.DataType, shapes []*tf.TensorShapeProto, handle int64) string {
	e.addInt(pullPrefix+"/start", 0)
	e.addInt(pullPrefix+"/stop", 1<<62)
	e.addInt(pullPrefix+"/step", 1)
	e.add(&tf.NodeDef{Name: pullPrefix + "/range", Op: "RangeDataset",
		Input: []string{pullPrefix + "/start", pullPrefix + "/stop", pullPrefix + "/step"},
		Attr:  datasetAttrs([]tf.DataType{tf.DataType_DT_INT64}, []*tf.TensorShapeProto{shapeOf()})})
	pull := &tf.NodeDef{Name: "pull", Op: PullOp, Attr: datasetAttrs(types, shapes)}
	pull.Attr["source"] = intAttr(handle)
	f := &tf.FunctionDef{
		Signature: &tf.OpDef{Name: "pecan_pull_function", IsStateful: true,
			InputArg: []*tf.OpDef_ArgDef{{Name: "index", Type: tf.DataType_DT_INT64}}},
		NodeDef: []*tf.NodeDef{pull}, Ret: map[string]string{}, ControlRet: map[string]string{"pull": "pull"},
	}
	f.Signature.ControlOutput = []string{"pull"}
	for i, t := range types {
		name := fmt.Sprintf("component_%d", i)
		f.Signature.OutputArg = append(f.Signature.OutputArg, &tf.OpDef_ArgDef{Name: name, Type: t})
		f.Ret[name] = fmt.Sprintf("pull:components:%d", i)
	}
	e.funcs[f.Signature.Name] = f
	source := &tf.NodeDef{Name: pullPrefix, Op: "MapDataset", Input: []string{pullPrefix + "/range"}, Attr: datasetAttrs(types, shapes)}
	source.Attr["f"] = funcAttr(f.Signature.Name)
	source.Attr["Targuments"] = typesAttr(nil)
	source.Attr["use_inter_op_parallelism"] = boolAttr(true)
	source.Attr["preserve_cardinality"] = boolAttr(false)
	return e.add(source)
}
