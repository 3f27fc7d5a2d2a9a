package rewrite_test

import (
	"slices"
	"testing"

	"github.com/pecan-ml/pecan/proto/reason"
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/graphtest"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/rewrite"
)

// vocabulary returns the dataset "lookup" with a table that is filled from a file. With computed, an op
// computes the file's name.
func vocabulary(t *testing.T, computed bool) *graph.Graph {
	t.Helper()
	data := graphtest.Changed(t, "lookup", func(d *tf.GraphDef) {
		text := &tf.TensorProto{Dtype: tf.DataType_DT_STRING, TensorShape: nodedef.Shape(), StringVal: [][]byte{[]byte("/data/words")}}
		d.Node = append(d.Node, nodedef.Const("file", text))
		name := "file"
		if computed {
			d.Node = append(d.Node, &tf.NodeDef{Name: "joined", Op: "StringJoin", Input: []string{"file", "file"},
				Attr: map[string]*tf.AttrValue{"N": nodedef.IntAttr(2), "separator": nodedef.BytesAttr("")}})
			name = "joined"
		}
		n := graphtest.OfOp(t, d, "LookupTableImportV2")
		n.Op, n.Input = "InitializeTableFromTextFileV2", []string{n.GetInput()[0], name}
		n.Attr = map[string]*tf.AttrValue{"vocab_size": nodedef.IntAttr(-1), "key_index": nodedef.IntAttr(-2), "value_index": nodedef.IntAttr(-1),
			"delimiter": nodedef.BytesAttr("\t"), "offset": nodedef.IntAttr(0)}
	})
	g, err := graph.Parse(data, graph.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func tableName(t *testing.T, g *graph.Graph, at rewrite.At) string {
	t.Helper()
	at.Mode = graphtest.Once.Mode
	graphs, err := rewrite.Instantiate(g, graphtest.Plan(t, g, graphtest.Once, 0), at)
	if err != nil {
		t.Fatal(err)
	}
	return string(graphtest.OfOp(t, graphtest.Decode(t, graphs.A), "HashTableV2").GetAttr()["shared_name"].GetS())
}

func TestStreamsShareATableWhileItsFileIsUnchanged(t *testing.T) {
	g := vocabulary(t, false)
	if files := rewrite.TableFiles(g); !slices.Equal(files, []string{"/data/words"}) {
		t.Fatalf("the table's files are %q", files)
	}
	in := func(state, job string) rewrite.At {
		return rewrite.At{Files: map[string]rewrite.FileState{"/data/words": {State: state, Version: true}}, Job: job}
	}
	first := tableName(t, g, in("1", "a"))
	if other := tableName(t, g, in("1", "b")); other != first {
		t.Errorf("two jobs have the tables %q and %q for one file", first, other)
	}
	if other := tableName(t, g, in("2", "a")); other == first {
		t.Errorf("two states of a file share the table %q", first)
	}
}

func TestJobsDoNotShareATableWithUnknownFiles(t *testing.T) {
	for what, at := range map[string]struct {
		g  *graph.Graph
		at rewrite.At
	}{
		"a file without a known state": {g: vocabulary(t, false)},
		"a file that may still change": {vocabulary(t, false), rewrite.At{Files: map[string]rewrite.FileState{"/data/words": {State: "1"}}}},
		"a computed name":              {vocabulary(t, true), rewrite.At{Files: map[string]rewrite.FileState{"/data/words": {State: "1", Version: true}}}},
	} {
		names := map[string]string{}
		for _, job := range []string{"a", "b"} {
			at.at.Job = job
			names[job] = tableName(t, at.g, at.at)
			if again := tableName(t, at.g, at.at); again != names[job] {
				t.Errorf("%s: a job has the tables %q and %q", what, names[job], again)
			}
		}
		if names["a"] == names["b"] {
			t.Errorf("%s: two jobs share the table %q", what, names["a"])
		}
	}
}

// withTable returns a dataset whose first function creates a table with a shared name and fills it from a file.
func withTable(t *testing.T, graph string, change func(table *tf.NodeDef, fill *tf.NodeDef)) []byte {
	t.Helper()
	return graphtest.Changed(t, graph, func(d *tf.GraphDef) {
		f := d.GetLibrary().GetFunction()[0]
		table := &tf.NodeDef{Name: "made", Op: "HashTableV2", Attr: map[string]*tf.AttrValue{"container": nodedef.BytesAttr("theirs"),
			"shared_name": nodedef.BytesAttr("words"), "use_node_name_sharing": nodedef.BoolAttr(true),
			"key_dtype": nodedef.TypeAttr(tf.DataType_DT_STRING), "value_dtype": nodedef.TypeAttr(tf.DataType_DT_INT64)}}
		file := nodedef.Const("made_from", &tf.TensorProto{Dtype: tf.DataType_DT_STRING, TensorShape: nodedef.Shape(), StringVal: [][]byte{[]byte("/data/words")}})
		fill := &tf.NodeDef{Name: "filled", Op: "InitializeTableFromTextFileV2", Input: []string{"made:table_handle:0", "made_from:output:0"},
			Attr: map[string]*tf.AttrValue{"vocab_size": nodedef.IntAttr(-1), "key_index": nodedef.IntAttr(-2), "value_index": nodedef.IntAttr(-1),
				"delimiter": nodedef.BytesAttr("\t"), "offset": nodedef.IntAttr(0)}}
		change(table, fill)
		f.NodeDef = append(f.NodeDef, table, file, fill)
	})
}

func TestTablesCreatedInFunctionsHaveNoSharedName(t *testing.T) {
	// Functions with seeds are cloned, others are not.
	for _, name := range []string{"map_batch", "noise"} {
		g, err := graph.Parse(withTable(t, name, func(_, _ *tf.NodeDef) {}), graph.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		graphs, err := rewrite.Instantiate(g, graphtest.Plan(t, g, graphtest.Once, 0), rewrite.At{Mode: graphtest.Once.Mode})
		if err != nil {
			t.Fatal(err)
		}
		found := 0
		for _, f := range graphtest.Decode(t, graphs.A).GetLibrary().GetFunction() {
			for _, n := range f.GetNodeDef() {
				if n.GetOp() != "HashTableV2" {
					continue
				}
				found++
				if a := n.GetAttr(); len(a["container"].GetS()) > 0 || len(a["shared_name"].GetS()) > 0 || a["use_node_name_sharing"].GetB() {
					t.Errorf("%s: the table of %s has a shared name: %v", name, f.GetSignature().GetName(), a)
				}
			}
		}
		if found == 0 {
			t.Errorf("%s: the table is missing", name)
		}
	}
}

func TestAFunctionMustFillTheTablesThatItCreates(t *testing.T) {
	_, err := graph.Parse(withTable(t, "noise", func(table, fill *tf.NodeDef) { fill.Input[0] = "other:table_handle:0"; table.Name = "other" }), graph.Limits{})
	if err != nil {
		t.Error(err)
	}
	data := withTable(t, "noise", func(_, fill *tf.NodeDef) {
		fill.Op, fill.Input, fill.Attr = "LookupTableSizeV2", fill.GetInput()[:1], nil
	})
	if _, err := graph.Parse(data, graph.Limits{}); !reason.Is(err, reason.ExternalState) {
		t.Errorf("a function that reads a table filled elsewhere was accepted: %v", err)
	}
}
