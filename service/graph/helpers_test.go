package graph

import (
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
)

// read gives a graph of testdata as bytes.
func read(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name+".pb"))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func parse(t testing.TB, name string) *Graph {
	t.Helper()
	g, err := Parse(read(t, name), Limits{})
	if err != nil {
		t.Fatalf("parsing %s: %v", name, err)
	}
	return g
}

func decode(t testing.TB, data []byte) *tf.GraphDef {
	t.Helper()
	var def tf.GraphDef
	if err := proto.Unmarshal(data, &def); err != nil {
		t.Fatal(err)
	}
	return &def
}

func encode(t testing.TB, def *tf.GraphDef) []byte {
	t.Helper()
	data, err := proto.Marshal(def)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// changed gives a graph of testdata after a change.
func changed(t testing.TB, name string, change func(*tf.GraphDef)) []byte {
	t.Helper()
	def := decode(t, read(t, name))
	change(def)
	return encode(t, def)
}

func ofOp(t testing.TB, def *tf.GraphDef, op string) *tf.NodeDef {
	t.Helper()
	for _, n := range def.GetNode() {
		if n.GetOp() == op {
			return n
		}
	}
	t.Fatalf("the graph has no %s", op)
	return nil
}

func hasOp(def *tf.GraphDef, op string) bool {
	for _, n := range def.GetNode() {
		if n.GetOp() == op {
			return true
		}
	}
	return false
}

func named(t testing.TB, def *tf.GraphDef, name string) *tf.NodeDef {
	t.Helper()
	for _, n := range def.GetNode() {
		if n.GetName() == name {
			return n
		}
	}
	t.Fatalf("the graph has no node %s", name)
	return nil
}

// number reads the constant behind input i of a node.
func number(t testing.TB, def *tf.GraphDef, n *tf.NodeDef, i int) int64 {
	t.Helper()
	v, ok := constInt(named(t, def, n.GetInput()[i]))
	if !ok {
		t.Fatalf("input %d of %s is no number", i, n.GetName())
	}
	return v
}

func plan(t testing.TB, g *Graph, opts *pecanv1.JobOptions, workers int) *pecanv1.Plan {
	t.Helper()
	p, err := Analyze(g, opts, Env{StaticWorkers: workers})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

var once = &pecanv1.JobOptions{Mode: pecanv1.Mode_MODE_EXACTLY_ONCE}

// stream writes one stream in exactly-once mode and gives its graph A.
func stream(t testing.TB, name string, at At) *tf.GraphDef {
	t.Helper()
	g := parse(t, name)
	if at.Mode == pecanv1.Mode_MODE_UNSPECIFIED {
		at.Mode = pecanv1.Mode_MODE_EXACTLY_ONCE
	}
	graphs, err := Instantiate(g, plan(t, g, once, 0), at)
	if err != nil {
		t.Fatal(err)
	}
	return decode(t, graphs.A)
}
