package rewrite

import (
	"slices"
	"strings"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/ops"
	"github.com/pecan-ml/pecan/service/graph/split"
)

// maxPath is greater than the length of any path.
const maxPath = 4096

// TableFiles returns the strings of the graph that may be names of files for the content of tables, sorted. A
// worker sets the states of these files in At.Files.
func TableFiles(g *graph.Graph) []string {
	found := map[string]bool{}
	for _, n := range g.Order() {
		if ops.FillsTableFromFiles(n.GetOp()) {
			names, _ := tableFileNames(g, n)
			for _, name := range names {
				found[name] = true
			}
		}
	}
	return sortedNames(found)
}

// tableFileNames returns the names that may be of files from which a node fills a table. all is false if there
// may be others: if a dataset fills the table, or ops compute the name.
func tableFileNames(g *graph.Graph, n *tf.NodeDef) (names []string, all bool) {
	if values, ok := nodedef.Strings(g.Input(n, "filename")); ok && len(values) == 1 {
		return []string{string(values[0])}, true
	}
	return sortedNames(namesUpstream(g, n, nil)), false
}

// namesUpstream returns the strings that may be names of files: those of a node, of the nodes upstream of it and of their
// functions. Divided lists do not count.
func namesUpstream(g *graph.Graph, n *tf.NodeDef, divided []split.List) map[string]bool {
	found, seen := map[string]bool{}, map[string]bool{}
	queue, called := []*tf.NodeDef{n}, []string(nil)
	take := func(n *tf.NodeDef) {
		values, _ := nodedef.Strings(n)
		addFileNames(values, found)
		called = append(called, nodedef.CalledFunctions(n)...)
	}
	for len(queue) > 0 {
		n, queue = queue[0], queue[1:]
		take(n)
		for i, input := range n.GetInput() {
			isDivided := slices.ContainsFunc(divided, func(l split.List) bool { return l.Node == n && l.Input == i })
			if from, _, _ := nodedef.SplitInput(input); !seen[from] && !isDivided {
				seen[from] = true
				queue = append(queue, g.Node(from))
			}
		}
	}
	for seen := map[string]bool{}; len(called) > 0; {
		name := called[0]
		called = called[1:]
		if !seen[name] {
			seen[name] = true
			for _, n := range g.Function(name).GetNodeDef() {
				take(n)
			}
		}
	}
	return found
}

// tableContentKey returns the parts of the name of a table that a node fills from files: the states of the
// files. If not all are versions, the job's id is a part too, so that jobs do not share the table.
func (e *editor) tableContentKey(n *tf.NodeDef) []string {
	var parts []string
	names, all := tableFileNames(e.g, n)
	for _, name := range names {
		// Most strings of a dataset are not names of files.
		file := e.at.Files[name]
		parts, all = append(parts, name, file.State), all && file.Version
	}
	if !all {
		parts = append(parts, "job", e.at.Job)
	}
	return parts
}

// privateTables removes the shared names of the tables of a function. TensorFlow then creates them when an iterator first
// runs the function, and frees them with the iterator. With a name, every stream, job and dataset of the worker would share
// the table. Filling it again from a changed file has no effect. No other node needs the name, because a function fills the
// tables that it creates (filledTables).
func (e *editor) privateTables(name string, f *tf.FunctionDef) {
	own := nodedef.CopySignature(f)
	for _, n := range f.GetNodeDef() {
		if namesTable(n) {
			n = nodedef.Copy(n)
			n.Attr["container"], n.Attr["shared_name"], n.Attr["use_node_name_sharing"] = nodedef.BytesAttr(""), nodedef.BytesAttr(""), nodedef.BoolAttr(false)
			e.AddFunction(name, own)
		}
		own.NodeDef = append(own.NodeDef, n)
	}
}

// namesTable returns whether a node creates a table that is shared by name.
func namesTable(n *tf.NodeDef) bool {
	return ops.IsTable(n.GetOp()) && (len(n.GetAttr()["shared_name"].GetS()) > 0 || n.GetAttr()["use_node_name_sharing"].GetB())
}

// addFileNames adds the strings that may be names of files.
func addFileNames(values [][]byte, found map[string]bool) {
	for _, v := range values {
		if len(v) > 0 && len(v) < maxPath && !strings.ContainsAny(string(v), "\x00\n") {
			found[string(v)] = true
		}
	}
}

func sortedNames(found map[string]bool) []string {
	names := make([]string, 0, len(found))
	for name := range found {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
