package graphtest

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/protobuf/proto"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
)

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
	data, err := os.ReadFile(filepath.Join("testdata", name+".pb"))
	if errors.Is(err, os.ErrNotExist) {
		// The calling test is in a package below service/graph.
		data, err = os.ReadFile(filepath.Join("..", "testdata", name+".pb"))
	}
	if err != nil {
		t.Fatal(err)
	}
	return data
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
