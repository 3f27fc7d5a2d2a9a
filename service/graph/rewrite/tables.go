package rewrite

import (
	"sort"
	"strings"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// maxPath is more than a path may have.
const maxPath = 4096

// TableFiles gives the strings of the graph that may be names of files from which tables are filled, sorted. A worker tells the
// states of those files in At.Files.
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

// tableFileNames gives the names that may be of files from which a node fills a table, and whether these are all there can be: a
// dataset, and a name that is computed, may come to others.
func tableFileNames(g *graph.Graph, n *tf.NodeDef) (names []string, all bool) {
	if values, ok := nodedef.Strings(g.Input(n, "filename")); ok && len(values) == 1 {
		return []string{string(values[0])}, true
	}
	found, seen := map[string]bool{}, map[string]bool{}
	queue, called := []*tf.NodeDef{n}, []string(nil)
	take := func(n *tf.NodeDef) {
		takeFileNames(n, found)
		called = append(called, nodedef.CalledFunctions(n)...)
	}
	for len(queue) > 0 {
		n, queue = queue[0], queue[1:]
		take(n)
		for _, input := range n.GetInput() {
			if from, _, _ := nodedef.SplitInput(input); !seen[from] {
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
	return sortedNames(found), false
}

// tableContentKey says by what a table that a node fills from files is known: by the states of the files, and by the job as well where
// these do not tell all. Jobs then have tables of their own.
func (e *editor) tableContentKey(n *tf.NodeDef) []string {
	var parts []string
	names, all := tableFileNames(e.g, n)
	for _, name := range names {
		state, ok := e.at.Files[name]
		parts = append(parts, name, state)
		// Of a dataset's strings, most are no names.
		all = all && ok
	}
	if !all {
		parts = append(parts, "job", e.at.Job)
	}
	return parts
}

// privateTables makes the tables of a function those of its nodes: TensorFlow makes them when an iterator first runs the function, and
// frees them with it. By a name they would be shared with every stream, job and dataset that the worker comes to run, and filling one
// anew from a file that has changed does nothing. A name may not be missed: a function fills the tables that it makes (filledTables).
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

// namesTable tells whether a node makes a table that others find by its name.
func namesTable(n *tf.NodeDef) bool {
	return ops.IsTable(n.GetOp()) && (len(n.GetAttr()["shared_name"].GetS()) > 0 || n.GetAttr()["use_node_name_sharing"].GetB())
}

// takeFileNames adds the strings of a node that may be names of files.
func takeFileNames(n *tf.NodeDef, found map[string]bool) {
	values, _ := nodedef.Strings(n)
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
	sort.Strings(names)
	return names
}
