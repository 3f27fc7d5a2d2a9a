package graph

import (
	"slices"
	"testing"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
)

// vocabulary is the dataset "lookup" with a table that is filled from a file; ops, when given, compute the file's name.
func vocabulary(t *testing.T, computed bool) *Graph {
	t.Helper()
	data := changed(t, "lookup", func(d *tf.GraphDef) {
		text := &tf.TensorProto{Dtype: tf.DataType_DT_STRING, TensorShape: shapeOf(), StringVal: [][]byte{[]byte("/data/words")}}
		d.Node = append(d.Node, constNode("file", text))
		name := "file"
		if computed {
			d.Node = append(d.Node, &tf.NodeDef{Name: "joined", Op: "StringJoin", Input: []string{"file", "file"},
				Attr: map[string]*tf.AttrValue{"N": intAttr(2), "separator": bytesAttr("")}})
			name = "joined"
		}
		n := ofOp(t, d, "LookupTableImportV2")
		n.Op, n.Input = "InitializeTableFromTextFileV2", []string{n.GetInput()[0], name}
		n.Attr = map[string]*tf.AttrValue{"vocab_size": intAttr(-1), "key_index": intAttr(-2), "value_index": intAttr(-1),
			"delimiter": bytesAttr("\t"), "offset": intAttr(0)}
	})
	g, err := Parse(data, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func tableName(t *testing.T, g *Graph, at At) string {
	t.Helper()
	at.Mode = once.Mode
	graphs, err := Instantiate(g, plan(t, g, once, 0), at)
	if err != nil {
		t.Fatal(err)
	}
	return string(ofOp(t, decode(t, graphs.A), "HashTableV2").GetAttr()["shared_name"].GetS())
}

func TestATableIsSharedWhileItsFileIsAsItWas(t *testing.T) {
	g := vocabulary(t, false)
	if files := g.TableFiles(); !slices.Equal(files, []string{"/data/words"}) {
		t.Fatalf("the table's files are %q", files)
	}
	in := func(state, job string) At { return At{Files: map[string]string{"/data/words": state}, Job: job} }
	first := tableName(t, g, in("1", "a"))
	if other := tableName(t, g, in("1", "b")); other != first {
		t.Errorf("two jobs have tables %q and %q of one file", first, other)
	}
	if other := tableName(t, g, in("2", "a")); other == first {
		t.Errorf("two states of a file share the table %q", first)
	}
}

func TestATableWhoseFilesCannotBeToldIsOfOneJob(t *testing.T) {
	for what, at := range map[string]struct {
		g  *Graph
		at At
	}{
		"a file that is not of the host": {g: vocabulary(t, false)},
		"a name that is computed":        {vocabulary(t, true), At{Files: map[string]string{"/data/words": "1"}}},
	} {
		names := map[string]string{}
		for _, job := range []string{"a", "b"} {
			at.at.Job = job
			names[job] = tableName(t, at.g, at.at)
			if again := tableName(t, at.g, at.at); again != names[job] {
				t.Errorf("%s: a job has tables %q and %q", what, names[job], again)
			}
		}
		if names["a"] == names["b"] {
			t.Errorf("%s: two jobs share the table %q", what, names["a"])
		}
	}
}
