package rewrite

import (
	"cmp"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/ops"
	"github.com/pecan-ml/pecan/service/graph/split"
)

// Instantiate returns the graphs of one stream. Equal arguments give equal bytes, on every worker.
func Instantiate(g *graph.Graph, plan *pecanv1.Plan, at At) (*StreamGraphs, error) {
	switch {
	case plan.GetFingerprint() != g.Fingerprint():
		return nil, reason.New(reason.Internal, "the plan is for dataset %s, not for dataset %s", plan.GetFingerprint(), g.Fingerprint())
	case plan.GetHash() != split.PlanHash(plan):
		return nil, reason.New(reason.Internal, "the plan for dataset %s changed after the dispatcher made it", g.Fingerprint())
	case at.Stream < 0, plan.GetNumStreams() > 0 && at.Stream > split.LastStream(plan):
		return nil, reason.New(reason.StreamUnknown, "the plan has no stream %d, only streams 0 to %d", at.Stream, split.LastStream(plan))
	}
	if at.Keyed {
		at.Mode = pecanv1.Mode_MODE_DETERMINISTIC
	}
	if at.Serial {
		if err := checkSerial(g); err != nil {
			return nil, err
		}
	}
	e := &editor{
		Editor: graph.NewEditor(g), g: g, p: split.NewPlanner(g), at: at,
		seededFunctions: map[string]bool{}, assigned: g.Assignments(),
		seeds: seedSource{job: at.Seed, epoch: at.Epoch, stream: uint64(at.Stream)},
		plan:  planFacts{streams: int64(plan.GetNumStreams()), open: int64(cmp.Or(plan.GetGroup(), plan.GetNumStreams())), off: plan.GetNumStreams() == 0, hint: plan.GetCut().GetKind() == pecanv1.Cut_HINT, carry: plan.GetCarry()},
	}
	e.skips, e.skippedUpstream = map[*graph.Step]int64{}, map[*graph.Step]bool{}
	e.nameResources()
	graphs, err := e.stream(plan)
	if err == nil {
		graphs.Shared = e.sharedByName()
	}
	return graphs, err
}

// stream writes the graphs of a dataset whose steps are a tree, or of an undivided one.
func (e *editor) stream(plan *pecanv1.Plan) (*StreamGraphs, error) {
	g, at := e.g, e.at
	root, isTree := g.Steps()
	if !isTree {
		root = &graph.Step{Node: g.Root(), OutputOf: g.Root(), Rule: ops.Rule{Kind: ops.Source}}
		for _, n := range g.Order() {
			if g.Ops().IsDataset(n.GetOp()) {
				e.rewriteStep(&graph.Step{Node: n, OutputOf: n, Rule: g.RuleOf(n)}, position{upstreamOfCut: true})
			}
		}
		return e.writeUndivided(root)
	}
	e.p.Carry = plan.GetCarry()
	if plan.GetRepeat() != 1 {
		root, _ = e.p.RemoveOuterRepeat(root)
	}
	e.p.Keyed = map[string]bool{}
	for _, name := range plan.GetKeyed() {
		e.p.Keyed[name] = true
	}
	if at.Keyed {
		e.p.KeySteps(root, at.Mode)
	}
	e.sequenced = e.p.SequencedSteps(root, at.Mode)
	if e.plan.hint {
		e.fillHints()
	}
	if at.Cached != nil && at.Stream < int(plan.GetNumStreams()) {
		e.cached, e.p.CachedStep = at.Cached, at.Cached.GetNode()
		e.plan.parts = split.PartsOf(plan, at.Cached, split.EpochStream{Stream: at.Stream, Epoch: at.Epoch, Seed: at.Seed})
	}
	if e.plan.off || e.plan.hint || plan.GetNumStreams() == 1 {
		last, _, err := e.streamEnd(root, split.Division{})
		if err != nil {
			return nil, err
		}
		return e.writeUndivided(last)
	}
	root = e.p.Arrange(root, plan)
	e.plan.cut = plan.GetCut()
	e.plan.frozen = e.frozenLate()
	d, err := e.p.FindDivision(root, plan)
	if err != nil {
		return nil, err
	}
	if at.Stream < int(plan.GetNumStreams()) {
		e.plan.share = e.p.ShareOf(root, d, plan, split.EpochStream{Stream: at.Stream, Epoch: at.Epoch, Seed: at.Seed})
		e.orderParts(root)
	}
	if root, e.plan.division, err = e.streamEnd(root, d); err != nil {
		return nil, err
	}
	return e.writeDivided(root, at.Stream == split.LastStream(plan))
}

// streamEnd returns the last step of the stream, and the division without a batch downstream of that step. A late shuffle
// belongs to the step after which it runs, because a trial compares orders whose last steps may be before and after it.
func (e *editor) streamEnd(root *graph.Step, d split.Division) (*graph.Step, split.Division, error) {
	for s := root; ; s = s.In[0] {
		if e.at.LastStep == "" || s.Node.GetName() == e.at.LastStep || e.at.LastStep == e.plan.cut.GetLateAfter() && e.isLate(s) {
			return s, d, nil
		}
		if s == d.Batch {
			d.Batch, d.Strategy = nil, split.ExactBatches
		}
		if len(s.In) != 1 || s.In[0] == nil {
			return nil, split.Division{}, reason.New(reason.Internal, "the dataset has no step %s with only one path to the result", nodedef.Quote(e.at.LastStep))
		}
		if _, cut := d.Cuts[s]; cut {
			return nil, split.Division{}, reason.New(reason.Internal, "step %s is upstream of the cut", nodedef.Quote(e.at.LastStep))
		}
	}
}

// writeUndivided writes a graph without a cut.
func (e *editor) writeUndivided(root *graph.Step) (*StreamGraphs, error) {
	e.planIndex(root)
	e.startAt(root, e.at.Start)
	return e.writeTree(root, root.OutputOf, position{upstreamOfCut: !e.plan.hint})
}

// writeDivided writes the graphs of a divided dataset. The last closing stream batches all rows that it joins. Every
// other stream keeps its incomplete last batch back, the closing stream of a group too.
func (e *editor) writeDivided(root *graph.Step, last bool) (*StreamGraphs, error) {
	d := e.plan.division
	closing := int64(e.at.Stream) >= e.plan.streams
	e.planIndex(root)
	if !closing && e.p.WhyNoStart(root, d, e.at.Mode) == "" {
		e.startAt(root, e.at.Start)
	} else if e.at.Start > 0 {
		return nil, reason.New(reason.Internal, "stream %d cannot start at element %d", e.at.Stream, e.at.Start)
	}
	if d.Batch == nil {
		return e.writeTree(root, root.OutputOf, position{})
	}
	if closing && last {
		e.pullInto(d.Batch)
		if e.plan.carry {
			e.onlyFullBatches(d.Batch)
		}
		return e.finishGraph(e.emitDownstream(root, d.Batch, d.Batch.Node.GetName(), position{}), root.OutputOf)
	}
	write := func(end *graph.Step) (*StreamGraphs, error) {
		if !closing {
			return e.writeTree(end, d.Batch.Node, e.positionOf(root, end))
		}
		e.pullInto(d.Batch)
		return e.finishGraph(e.emitDownstream(end, d.Batch, d.Batch.Node.GetName(), position{}), d.Batch.Node)
	}
	if d.Strategy == split.RemainderBatches {
		e.relaxBatches(root, d.Batch)
		return write(root)
	}
	if e.cached != nil && !closing {
		if mark, _ := e.findCached(root, position{}); mark != nil && e.comesAfterBatch(mark) {
			return e.splitAfterBatch(root, mark)
		}
	}
	downstream := e.fork()
	handle := e.at.Source
	if closing {
		handle = e.at.Relay
	}
	e.relaxBatches(d.Batch, d.Batch)
	a, err := write(d.Batch)
	if err != nil || e.at.Part != nil {
		return a, err
	}
	source := downstream.addPull(e.g.OutputTypes(d.Batch.Node), e.g.OutputShapes(d.Batch.Node), handle)
	b, err := downstream.finishGraph(downstream.emitDownstream(root, d.Batch, source, position{}), root.OutputOf)
	if err != nil {
		return nil, err
	}
	return &StreamGraphs{A: a.A, B: b.A, UpstreamOfCache: a.UpstreamOfCache, Parts: a.Parts, StoredTypes: a.StoredTypes, FileNames: a.FileNames, Files: a.Files, Nodes: a.Nodes, Output: a.Output}, nil
}

// positionOf returns the position of a step on the path from the root. Only one path leads there.
func (e *editor) positionOf(root, s *graph.Step) (place position) {
	for ; root != s; root = root.In[0] {
		place = e.upstreamOf(root, place)
	}
	return place
}
