package rewrite

import (
	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// findCached finds the cached step of a plan under a step, and tells whether a cache of tf.data stands between them.
func findCached(top *graph.Step, plan *pecanv1.Plan, at position) (*graph.Step, position) {
	for s := top; ; s = s.In[0] {
		if s.Node.GetName() == plan.GetCache().GetNode() {
			return s, at
		}
		at.belowCache = at.belowCache || s.Rule.Kind == ops.Cached
		if len(s.In) != 1 {
			return nil, at
		}
	}
}

// splitAtCache writes what lies below the plan's cached step as a graph of its own, and has the rest take its elements from
// the worker. top is the step whose graph is about to be written.
func (e *editor) splitAtCache(top *graph.Step, at position) error {
	mark, at := findCached(top, e.cachePlan, at)
	if mark == nil {
		return nil
	}
	under := e.fork()
	// What is left out at the start is left out above: a segment has all elements.
	under.skips = nil
	graphs, err := under.finishGraph(under.emit(mark, at), mark.Node)
	if err != nil {
		return err
	}
	e.below = graphs.A
	e.names = mayBeFiles(graphs.A)
	types, shapes := e.g.OutputTypes(mark.OutputOf), e.g.OutputShapes(mark.OutputOf)
	e.stop = mark
	if !e.cachePlan.GetCache().GetPacked() {
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

// mayBeFiles gives the strings of a serialised graph that may be names of files, sorted.
func mayBeFiles(serialised []byte) []string {
	var def tf.GraphDef
	if proto.Unmarshal(serialised, &def) != nil {
		return nil
	}
	found := map[string]bool{}
	for _, n := range def.GetNode() {
		takeFileNames(n, found)
	}
	for _, f := range def.GetLibrary().GetFunction() {
		for _, n := range f.GetNodeDef() {
			takeFileNames(n, found)
		}
	}
	return sortedNames(found)
}
