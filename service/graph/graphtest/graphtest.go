package graphtest

import (
	"iter"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
)

// testdata is the directory of the graphs, from the root of the repository.
const testdata = "service/graph/testdata"

// root returns the root of the repository, as the package of the calling test sees it.
func root(t testing.TB) string {
	t.Helper()
	for path, depth := ".", 0; depth < 8; path, depth = filepath.Join("..", path), depth+1 {
		if _, err := os.Stat(filepath.Join(path, "go.mod")); err == nil {
			return path
		}
	}
	t.Fatal("the test does not run in the repository")
	return ""
}

// FingerprintOf parses a graph and returns its fingerprint.
func FingerprintOf(t *testing.T, data []byte) string {
	t.Helper()
	g, err := graph.Parse(data, graph.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	return g.Fingerprint()
}

// Read returns the bytes of a graph in testdata.
func Read(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root(t), testdata, name+".pb"))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// All parses the graphs in testdata, and those in the files of further patterns, which begin at the root of the repository. It yields
// each with its name. Graphs that graph.Parse refuses are left out.
func All(t testing.TB, further ...string) iter.Seq2[string, *graph.Graph] {
	t.Helper()
	var files []string
	for _, pattern := range append([]string{testdata + "/*.pb"}, further...) {
		found, err := filepath.Glob(filepath.Join(root(t), pattern))
		if err != nil || len(found) == 0 {
			t.Fatalf("no graphs in %s: %v", pattern, err)
		}
		files = append(files, found...)
	}
	return func(yield func(string, *graph.Graph) bool) {
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			g, err := graph.Parse(data, graph.Limits{})
			if err != nil {
				continue
			}
			if name := filepath.Base(file); !yield(strings.TrimSuffix(name, filepath.Ext(name)), g) {
				return
			}
		}
	}
}

// Parse parses a graph in testdata.
func Parse(t testing.TB, name string) *graph.Graph {
	t.Helper()
	g, err := graph.Parse(Read(t, name), graph.Limits{})
	if err != nil {
		t.Fatalf("parsing %s: %v", name, err)
	}
	return g
}

// Decode decodes a GraphDef.
func Decode(t testing.TB, data []byte) *tf.GraphDef {
	t.Helper()
	var def tf.GraphDef
	if err := proto.Unmarshal(data, &def); err != nil {
		t.Fatal(err)
	}
	return &def
}

// Encode encodes a GraphDef.
func Encode(t testing.TB, def *tf.GraphDef) []byte {
	t.Helper()
	data, err := proto.Marshal(def)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// Changed returns the bytes of a graph in testdata after a change.
func Changed(t testing.TB, name string, change func(*tf.GraphDef)) []byte {
	t.Helper()
	def := Decode(t, Read(t, name))
	change(def)
	return Encode(t, def)
}

// OfOp returns the first node with an op.
func OfOp(t testing.TB, def *tf.GraphDef, op string) *tf.NodeDef {
	t.Helper()
	for _, n := range def.GetNode() {
		if n.GetOp() == op {
			return n
		}
	}
	t.Fatalf("the graph has no %s node", op)
	return nil
}

// HasOp reports whether a graph has a node with an op.
func HasOp(def *tf.GraphDef, op string) bool {
	for _, n := range def.GetNode() {
		if n.GetOp() == op {
			return true
		}
	}
	return false
}

// Named returns the node with a name.
func Named(t testing.TB, def *tf.GraphDef, name string) *tf.NodeDef {
	t.Helper()
	for _, n := range def.GetNode() {
		if n.GetName() == name {
			return n
		}
	}
	t.Fatalf("the graph has no node %s", name)
	return nil
}

// SetConst replaces the constant of one input of a node.
func SetConst(t *testing.T, def *tf.GraphDef, n *tf.NodeDef, input int, value int64) {
	Named(t, def, n.GetInput()[input]).Attr["value"].GetTensor().Int64Val = []int64{value}
}

// Marked returns the bytes of a graph in testdata. The steps that pecan.cache() marks have other user names there, in the
// order of the graph. The last name stands for all further ones, and "" for no name.
func Marked(t testing.TB, name string, names ...string) []byte {
	t.Helper()
	marks := 0
	return Changed(t, name, func(def *tf.GraphDef) {
		for _, n := range def.GetNode() {
			var metadata tf.Metadata
			if err := proto.Unmarshal(n.GetAttr()["metadata"].GetS(), &metadata); err != nil {
				t.Fatal(err)
			}
			if n.GetOp() != "TakeDataset" || string(metadata.GetName()) != "pecan_cache" {
				continue
			}
			metadata.Name = []byte(names[min(marks, len(names)-1)])
			raw, err := proto.Marshal(&metadata)
			if err != nil {
				t.Fatal(err)
			}
			n.Attr["metadata"] = &tf.AttrValue{Value: &tf.AttrValue_S{S: raw}}
			marks++
		}
		if marks == 0 {
			t.Fatalf("%s has no cached step", name)
		}
	})
}
