package rewrite

import (
	"maps"
	"slices"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/split"
)

// findCached returns the cached step upstream of a step at a position, with its own position; nil if there is none.
func (e *editor) findCached(s *graph.Step, place position) (*graph.Step, position) {
	if s.Node.GetName() == e.cached.GetNode() {
		return s, place
	}
	upstream := e.upstreamOf(s, place)
	for _, in := range s.In {
		if found, place := e.findCached(in, upstream); found != nil {
			return found, place
		}
	}
	return nil, place
}

// splitAtCache writes the cached step and all steps upstream as a separate graph. The rest of the graph
// gets their elements from the worker. last is the last step of the rest.
func (e *editor) splitAtCache(last *graph.Step, place position) error {
	mark, place := e.findCached(last, place)
	if mark == nil {
		return nil
	}
	byParts := e.cached.GetParts() > 0
	if e.parts = e.plan.parts; byParts {
		e.parts = split.PartsIn(e.cached, e.plan.share)
	}
	if !byParts || e.at.Part != nil {
		upstream := e.fork()
		// A cache segment has all elements, so the skip at the stream's start is in the other graph.
		upstream.skips = nil
		if byParts {
			upstream.plan.share = split.OnePart(*e.at.Part)
		}
		graphs, err := upstream.finishCached(mark, upstream.emit(mark, place))
		if err != nil {
			return err
		}
		e.upstreamGraph = graphs.A
	}
	e.stored, _ = withoutVariants(e.outputOf(mark))
	e.names = e.fileNames(mark)
	e.stop, e.stopOutput = mark, e.pullCached(mark)
	return nil
}

// splitAfterBatch writes the graphs of a stream whose cached step is downstream of a batch that is in another graph.
// The stream keeps back the short last batch between the two graphs. The worker runs three graphs: up to the batch,
// from there to the cached step, and the rest.
func (e *editor) splitAfterBatch(root, mark *graph.Step) (*StreamGraphs, error) {
	batch := e.plan.division.Batch
	batches, upstream := e.fork(), e.fork()
	// A cache segment has all elements, so the skip at the stream's start is in the last graph.
	batches.skips = nil
	batches.relaxBatches(batch, batch)
	first, err := batches.finishGraph(batches.emit(batch, e.positionOf(root, batch)), batch.Node)
	if err != nil {
		return nil, err
	}
	pulled := upstream.addPull(e.g.OutputTypes(batch.Node), e.g.OutputShapes(batch.Node), e.at.Source)
	second, err := upstream.finishCached(mark, upstream.emitDownstream(mark, batch, pulled, e.positionOf(root, mark)))
	if err != nil {
		return nil, err
	}
	graphs, err := e.finishGraph(e.emitDownstream(root, mark, e.pullCached(mark), position{}), root.OutputOf)
	if err != nil {
		return nil, err
	}
	graphs.Batches, graphs.UpstreamOfCache, graphs.Parts, graphs.Files = first.A, second.A, e.plan.parts, e.at.Files
	graphs.StoredTypes, _ = withoutVariants(e.outputOf(mark))
	graphs.FileNames = e.fileNames(mark)
	return graphs, nil
}

// finishCached completes the graph of a cached step and all steps upstream. output is the node of the step's output.
func (e *editor) finishCached(mark *graph.Step, output string) (*StreamGraphs, error) {
	types, shapes := e.outputOf(mark)
	like := mark.Node
	if slices.Contains(types, tf.DataType_DT_VARIANT) {
		like = e.writeVariants(output, types, shapes)
		output = like.GetName()
	}
	return e.finishGraph(output, like)
}

// pullCached makes a graph get the elements of the cached step from the worker. It returns the node of the step's output.
func (e *editor) pullCached(mark *graph.Step) string {
	types, shapes := e.outputOf(mark)
	switch {
	case slices.Contains(types, tf.DataType_DT_VARIANT):
		written, writtenShapes := withoutVariants(types, shapes)
		return e.skip(mark, e.readVariants(e.addPull(written, writtenShapes, e.at.CacheSource), types, shapes))
	case !e.cached.GetPacked():
		return e.skip(mark, e.addPull(types, shapes, e.at.CacheSource))
	}
	packs := make([]*tf.TensorShapeProto, len(shapes))
	for i, s := range shapes {
		packs[i] = &tf.TensorShapeProto{Dim: append([]*tf.TensorShapeProto_Dim{{Size: -1}}, s.GetDim()...)}
	}
	return e.skip(mark, e.Add(&tf.NodeDef{Name: pullElements, Op: "UnbatchDataset",
		Input: []string{e.addPull(types, packs, e.at.CacheSource)}, Attr: nodedef.DatasetAttrs(types, shapes)}))
}

// fileNames returns the function that StreamGraphs.FileNames describes, for a cached step. It needs no graph of a part: those of
// two parts differ only in the rows of the divided lists.
func (e *editor) fileNames(mark *graph.Step) func(part uint32) []string {
	lists, share, byParts := e.p.Lists(e.plan.division), e.plan.share, e.cached.GetParts() > 0
	everywhere := namesUpstream(e.g, mark.Node, lists)
	return func(part uint32) []string {
		if byParts {
			share = split.OnePart(part)
		}
		found := maps.Clone(everywhere)
		for _, list := range lists {
			addFileNames(list.Of(share), found)
		}
		return sortedNames(found)
	}
}
