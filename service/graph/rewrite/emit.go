package rewrite

import (
	"strings"

	"github.com/pecan-ml/pecan/proto/reason"
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/ops"
	"github.com/pecan-ml/pecan/service/graph/split"
)

// outputOf returns the types and shapes of a step's output, with the index if the step returns it.
func (e *editor) outputOf(s *graph.Step) ([]tf.DataType, []*tf.TensorShapeProto) {
	types, shapes := e.g.OutputTypes(s.OutputOf), e.g.OutputShapes(s.OutputOf)
	if e.plan.division.Strategy == split.RemainderBatches && e.comesAfterBatch(s) {
		shapes = anyRows(shapes)
	}
	if e.index.out[s] {
		return numbered(types, shapes)
	}
	return types, shapes
}

// writeTree writes a step and all steps upstream, divided at the cached step if there is one. like is the node
// whose types and shapes the output has.
func (e *editor) writeTree(root *graph.Step, like *tf.NodeDef, place position) (*StreamGraphs, error) {
	if e.cached != nil {
		if err := e.splitAtCache(root, place); err != nil {
			return nil, err
		}
		if e.at.Part != nil {
			return &StreamGraphs{UpstreamOfCache: e.upstreamGraph, Files: e.at.Files, Nodes: e.nodes()}, nil
		}
	}
	graphs, err := e.finishGraph(e.emit(root, place), like)
	if err != nil {
		return nil, err
	}
	graphs.UpstreamOfCache, graphs.Parts, graphs.StoredTypes, graphs.FileNames, graphs.Files = e.upstreamGraph, e.parts, e.stored, e.names, e.at.Files
	return graphs, nil
}

// finishGraph completes a graph: it adds meters, the options of Pecan and the result.
func (e *editor) finishGraph(root string, like *tf.NodeDef) (*StreamGraphs, error) {
	if e.clones > e.g.Limits().MaxNodes {
		return nil, reason.New(reason.GraphLimit, "the dataset's functions have more than %d nodes if each call gets its own seeds: simplify the pipeline", e.g.Limits().MaxNodes)
	}
	shapes := e.g.OutputShapes(like)
	if n := e.Node(like.GetName()); n != nil && !strings.HasPrefix(root, indexPrefix) {
		shapes = e.g.OutputShapes(n)
	}
	options := &tf.NodeDef{Name: "pecan_options", Op: "OptionsDataset", Input: []string{e.meter(root)}, Attr: nodedef.DatasetAttrs(e.g.OutputTypes(like), shapes)}
	options.Attr["serialized_options"] = nodedef.BytesAttr(string(e.streamOptions()))
	raw, err := e.Finish(e.Add(options))
	if err != nil {
		return nil, reason.New(reason.Internal, "writing the graph of stream %d: %w", e.at.Stream, err)
	}
	return &StreamGraphs{A: raw, Nodes: e.nodes(), Output: e.g.Retval().GetName()}, nil
}

// emit connects a step and all steps upstream, with the cut of the plan. It returns the node of the step's output.
func (e *editor) emit(s *graph.Step, place position) string {
	if s == e.stop {
		return e.stopOutput
	}
	cut, isCut := e.plan.division.Cuts[s]
	place.upstreamOfCut = place.upstreamOfCut || isCut
	upstream := e.upstreamOf(s, place)
	inputs := make([]string, len(s.In))
	for i, in := range s.In {
		inputs[i] = e.addIndex(in, e.emit(in, upstream))
	}
	for _, c := range s.Captured {
		e.emit(c, upstream)
	}
	name := s.Node.GetName()
	if s.Rule.Kind == ops.Asserted && e.plan.streams > 1 || e.passesOn(s) || e.ordersParts(s) {
		name = inputs[0]
	} else {
		switch {
		case e.at.Restored > 0 && !place.upstreamOfCut && !e.p.Keyed[name]:
			place.start = e.at.Restored
		case e.skippedUpstream[s] && !e.p.Keyed[name]:
			place.start = e.at.Start
		}
		place.upstreamOfCache = place.upstreamOfCache || e.plan.frozen[name]
		e.wire(s, inputs)
		e.rewriteStep(s, place)
		name = e.passIndex(s)
	}
	if isCut {
		types, shapes := e.outputOf(s)
		name = e.p.Cut(e.Editor, s, e.plan.division.Edges[cut], e.plan.share, name, types, shapes)
	}
	return e.skip(s, name)
}

// passesOn reports whether a stream can do without a step, because the step only passes elements on. Marks are such steps. They
// would make meters necessary, which take CPU for each element.
func (e *editor) passesOn(s *graph.Step) bool {
	return len(s.In) > 0 && (takesAll(e.g, s.Node) || e.at.Serial && s.Node.GetOp() == prefetchOp)
}

// takesAll reports whether a node is a take(-1).
func takesAll(g *graph.Graph, n *tf.NodeDef) bool {
	if n.GetOp() != "TakeDataset" {
		return false
	}
	count, known := g.InputInt(n, "count")
	return known && count < 0
}

// upstreamOf returns the position of the inputs of a step at a position.
func (e *editor) upstreamOf(s *graph.Step, place position) position {
	if s.Rule.Kind == ops.Cached || s.Node.GetOp() == "SnapshotDatasetV2" || e.g.Freezes(s.Node) {
		place.upstreamOfCache = true
	}
	return place
}

// emitDownstream connects the steps downstream of a step up to the root. output is the node of that step's output.
func (e *editor) emitDownstream(s, stop *graph.Step, output string, place position) string {
	if s == stop {
		return output
	}
	upstream := e.upstreamOf(s, place)
	input := e.addIndex(s.In[0], e.emitDownstream(s.In[0], stop, output, upstream))
	if s.Rule.Kind == ops.Asserted || e.passesOn(s) {
		return input
	}
	for _, c := range s.Captured {
		e.emit(c, upstream)
	}
	e.wire(s, []string{input})
	e.rewriteStep(s, place)
	return e.passIndex(s)
}

// wire connects a step to its changed inputs.
func (e *editor) wire(s *graph.Step, inputs []string) {
	for i, input := range inputs {
		if e.Node(s.Node.GetName()).GetInput()[s.InAt[i]] != input {
			e.Edit(s.Node.GetName()).Input[s.InAt[i]] = input
		}
	}
	if s.OutputOf != s.Node {
		n := e.Edit(s.Node.GetName())
		n.Attr["output_types"] = nodedef.TypesAttr(e.g.OutputTypes(s.OutputOf))
		n.Attr["output_shapes"] = nodedef.ShapesAttr(e.g.OutputShapes(s.OutputOf))
	}
}
