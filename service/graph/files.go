package graph

import (
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// Files gives the names of the files that a stream reads, in the order in which it comes to them, when its dataset is divided by
// files that are listed in the graph; nil otherwise.
func (g *Graph) Files(plan *pecanv1.Plan, stream uint32) []string {
	if plan.GetCut().GetKind() != pecanv1.Cut_FILES || len(plan.GetCut().GetEdges()) != 1 {
		return nil
	}
	list := g.nodes[plan.GetCut().GetEdges()[0]]
	if list.GetOp() != "TensorSliceDataset" {
		return nil
	}
	names, ok := constStrings(g.input(list, "components"))
	if !ok {
		return nil
	}
	var files []string
	for i := uint64(stream); i < uint64(len(names)); i += uint64(plan.GetNumStreams()) {
		files = append(files, string(names[i]))
	}
	return files
}
