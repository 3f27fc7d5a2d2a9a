package rewrite

import (
	"maps"
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/ops"
	"github.com/pecan-ml/pecan/service/graph/split"
)

// findCached returns the cached step upstream of a step, with its position. The position records whether a
// tf.data cache is between the two steps.
func findCached(top *graph.Step, cached *pecanv1.CachePlan, at position) (*graph.Step, position) {
	for s := top; ; s = s.In[0] {
		if s.Node.GetName() == cached.GetNode() {
			return s, at
		}
		at.upstreamOfCache = at.upstreamOfCache || s.Rule.Kind == ops.Cached
		if len(s.In) != 1 {
			return nil, at
		}
	}
}

// splitAtCache writes the cached step and all steps upstream as a separate graph. The rest of the graph
// gets their elements from the worker. top is the last step of the rest.
func (e *editor) splitAtCache(top *graph.Step, at position) error {
	mark, at := findCached(top, e.cached, at)
	if mark == nil {
		return nil
	}
	types, shapes := e.g.OutputTypes(mark.OutputOf), e.g.OutputShapes(mark.OutputOf)
	byParts, variants := e.cached.GetParts() > 0, slices.Contains(types, tf.DataType_DT_VARIANT)
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
		last, like := upstream.emit(mark, at), mark.Node
		if variants {
			like = upstream.writeVariants(last, types, shapes)
			last = like.GetName()
		}
		graphs, err := upstream.finishGraph(last, like)
		if err != nil {
			return err
		}
		e.upstreamGraph = graphs.A
	}
	e.stored, _ = withoutVariants(types, shapes)
	e.names = e.fileNames(mark)
	e.stop = mark
	switch {
	case variants:
		written, writtenShapes := withoutVariants(types, shapes)
		e.stopOutput = e.skip(mark, e.readVariants(e.addPull(written, writtenShapes, e.at.CacheSource), types, shapes))
		return nil
	case !e.cached.GetPacked():
		e.stopOutput = e.skip(mark, e.addPull(types, shapes, e.at.CacheSource))
		return nil
	}
	packs := make([]*tf.TensorShapeProto, len(shapes))
	for i, s := range shapes {
		packs[i] = &tf.TensorShapeProto{Dim: append([]*tf.TensorShapeProto_Dim{{Size: -1}}, s.GetDim()...)}
	}
	e.stopOutput = e.skip(mark, e.Add(&tf.NodeDef{Name: pullPrefix + "/elements", Op: "UnbatchDataset",
		Input: []string{e.addPull(types, packs, e.at.CacheSource)}, Attr: nodedef.DatasetAttrs(types, shapes)}))
	return nil
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
