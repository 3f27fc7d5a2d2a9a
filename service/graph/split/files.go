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

// Files returns the names of the files that a stream reads in an epoch, in reading order. The dataset has one stream, or is divided
// by files or by extents of files. Files returns nil for other datasets, and unless the graph lists the files. A file comes once
// for extents that follow each other.
func Files(g *graph.Graph, plan *pecanv1.Plan, of EpochStream) []string {
	switch {
	case len(plan.GetCut().GetEdges()) == 0 && plan.GetNumStreams() == 1:
		return filesOfOneStream(g, plan)
	case plan.GetCut().GetKind() != pecanv1.Cut_FILES || len(plan.GetCut().GetEdges()) != 1:
		return nil
	}
	names := namesOf(g, g.Node(plan.GetCut().GetEdges()[0]))
	if len(names) == 0 {
		return nil
	}
	cut, share, ok := edgeAndShare(g, plan, of)
	if !ok {
		return nil
	}
	var files []string
	for _, rows := range cut.rows(int64(len(names)), share).list() {
		files = append(files, names[rows[0]:rows[1]]...)
	}
	return slices.Compact(files)
}

// filesOfOneStream returns the names of all files of a dataset that is not divided.
func filesOfOneStream(g *graph.Graph, plan *pecanv1.Plan) []string {
	p, root, ok := plannedEpoch(g, plan)
	if !ok {
		return nil
	}
	edges := p.choose(root, false).Edges
	if len(edges) != 1 || !edges[0].files {
		return nil
	}
	return namesOf(g, edges[0].at.Node)
}

// namesOf returns the strings of a constant list; nil if the step has none.
func namesOf(g *graph.Graph, list *tf.NodeDef) (names []string) {
	if list.GetOp() != "TensorSliceDataset" {
		return nil
	}
	values, _ := nodedef.Strings(g.Input(list, "components"))
	for _, value := range values {
		names = append(names, string(value))
	}
	return names
}

// List is a constant list of strings at an edge of a cut. A share has some of its rows.
type List struct {
	// Node is the step that slices the list. Input is the number of its input that has the list.
	Node   *tf.NodeDef
	Input  int
	values [][]byte
	rows   int64
	edge   Edge
}

// Lists returns the constant lists of strings at the edges of a division.
func (p *Planner) Lists(d Division) (lists []List) {
	for _, e := range d.Edges {
		rows := p.Cardinality(e.at)
		if e.at.Node.GetOp() != "TensorSliceDataset" || rows < 1 {
			continue
		}
		for i, input := range e.at.Node.GetInput() {
			if values, ok := nodedef.Strings(p.g.NodeOf(input)); ok && len(values) > 0 && int64(len(values))%rows == 0 {
				lists = append(lists, List{e.at.Node, i, values, rows, e})
			}
		}
	}
	return lists
}

// Of returns the strings in the rows of a share.
func (l List) Of(share Share) (values [][]byte) {
	cells := int64(len(l.values)) / l.rows
	for _, rows := range l.edge.rows(l.rows, share).list() {
		values = append(values, l.values[rows[0]*cells:rows[1]*cells]...)
	}
	return values
}

// plannedEpoch returns the planner of a plan, and the root of one epoch. ok is false if the steps are no tree.
func plannedEpoch(g *graph.Graph, plan *pecanv1.Plan) (p *Planner, root *graph.Step, ok bool) {
	p = NewPlanner(g)
	p.Carry = plan.GetCarry()
	if root, ok = g.Steps(); ok && plan.GetRepeat() != 1 {
		root, _ = p.RemoveOuterRepeat(root)
	}
	return p, root, ok
}

// edgeAndShare finds the edge of a plan with one edge, and the share that a stream reads in an epoch, without rewriting the graph.
func edgeAndShare(g *graph.Graph, plan *pecanv1.Plan, of EpochStream) (Edge, Share, bool) {
	p, root, ok := plannedEpoch(g, plan)
	if !ok || of.Stream >= int(plan.GetNumStreams()) {
		return Edge{}, Share{}, false
	}
	root = p.Arrange(root, plan)
	d, err := p.FindDivision(root, plan)
	if err != nil || len(d.Edges) != 1 {
		return Edge{}, Share{}, false
	}
	return d.Edges[0], p.ShareOf(root, d, plan, of), true
}

// These constants say where a cache upstream of a step stores its elements.
const (
	cacheNone = iota
	cacheInMemory
	cacheInFile
)

// cacheUpstream returns cacheInFile if a tree stores elements in files, else cacheInMemory if it has a cache.
func (p *Planner) cacheUpstream(root *graph.Step) int {
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

// isPath reports whether the name of a cache may be a path. A name that is known only when the graph runs may
// be one.
func isPath(name *tf.NodeDef) bool {
	path, ok := nodedef.Strings(name)
	return !ok || len(path) != 1 || len(path[0]) > 0
}

// writesFiles reports whether a cache or a snapshot stores elements in files. It includes those that a
// function creates for each element.
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
