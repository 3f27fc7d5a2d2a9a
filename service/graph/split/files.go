package split

import (
	"slices"
	"strings"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// Files gives the names of the files that a stream reads, in the order in which it comes to them, when its dataset is divided by
// files that are listed in the graph; nil otherwise.
func Files(g *graph.Graph, plan *pecanv1.Plan, stream uint32) []string {
	if plan.GetCut().GetKind() != pecanv1.Cut_FILES || len(plan.GetCut().GetEdges()) != 1 {
		return nil
	}
	list := g.Node(plan.GetCut().GetEdges()[0])
	if list.GetOp() != "TensorSliceDataset" {
		return nil
	}
	names, ok := nodedef.Strings(g.Input(list, "components"))
	if !ok {
		return nil
	}
	var files []string
	for i := uint64(stream); i < uint64(len(names)); i += uint64(plan.GetNumStreams()) {
		files = append(files, string(names[i]))
	}
	return files
}

// What a cache below a step keeps.
const (
	cacheNone = iota
	cacheInMemory
	cacheInFile
)

// cacheBelow tells what caches lie in a tree.
func (p *Planner) cacheBelow(root *graph.Step) int {
	found := cacheNone
	root.Walk(func(s *graph.Step) {
		switch {
		case s.Node.GetOp() == "SnapshotDatasetV2":
			found = cacheInFile
		case s.Rule.Kind == ops.Cached && isPath(p.g.Input(s.Node, "filename")):
			found = cacheInFile
		case s.Rule.Kind == ops.Cached:
			found = max(found, cacheInMemory)
		}
	})
	return found
}

// isPath tells whether a cache's name is one of files; one that only running the graph tells may be.
func isPath(name *tf.NodeDef) bool {
	path, ok := nodedef.Strings(name)
	return !ok || len(path) != 1 || len(path[0]) > 0
}

// writesFiles tells whether a cache or a snapshot keeps elements in files, also one that a function makes for each element.
func writesFiles(g *graph.Graph) bool {
	top := func(n *tf.NodeDef) bool {
		return n.GetOp() == "SnapshotDatasetV2" || g.RuleOf(n).Kind == ops.Cached && isPath(g.Input(n, "filename"))
	}
	if slices.ContainsFunc(g.Def().GetNode(), top) {
		return true
	}
	for _, f := range g.Def().GetLibrary().GetFunction() {
		nodes := map[string]*tf.NodeDef{}
		for _, n := range f.GetNodeDef() {
			nodes[n.GetName()] = n
		}
		for _, n := range f.GetNodeDef() {
			if n.GetOp() == "SnapshotDatasetV2" {
				return true
			}
			at := g.InputIndex(n, "filename")
			if g.RuleOf(n).Kind != ops.Cached || at < 0 || at >= len(n.GetInput()) {
				continue
			}
			name, _, _ := strings.Cut(n.GetInput()[at], ":")
			if isPath(nodes[name]) {
				return true
			}
		}
	}
	return false
}
