package graph_test

import (
	"fmt"
	"strings"
	"testing"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/graphtest"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
)

// renumber changes a graph as another process would: other counters in names, metadata and handles, and
// another order.
func renumber(def *tf.GraphDef) {
	rename := func(s string) string { return strings.ReplaceAll(s, "_1", "_9000") }
	for i, j := 0, len(def.Node)-1; i < j; i, j = i+1, j-1 {
		def.Node[i], def.Node[j] = def.Node[j], def.Node[i]
	}
	nodes := append([]*tf.NodeDef(nil), def.Node...)
	for _, f := range def.GetLibrary().GetFunction() {
		f.Signature.Name = rename(f.Signature.Name)
		nodes = append(nodes, f.NodeDef...)
	}
	for i, n := range nodes {
		if _, ok := n.Attr["metadata"]; ok {
			n.Attr["metadata"] = nodedef.BytesAttr(fmt.Sprint("counter ", i))
		}
		if i < len(def.Node) {
			n.Name = rename(n.Name)
			for j := range n.Input {
				n.Input[j] = rename(n.Input[j])
			}
		}
		for _, v := range n.Attr {
			if f := v.GetFunc(); f != nil {
				f.Name = rename(f.Name)
			}
			for _, h := range v.GetTensor().GetResourceHandleVal() {
				h.Name += "7"
			}
		}
	}
}

func TestNumberingDoesNotChangeTheFingerprint(t *testing.T) {
	for _, name := range []string{"map_batch", "records", "nested_shuffle", "lookup", "zip", "slices", "cache_file"} {
		if graphtest.FingerprintOf(t, graphtest.Read(t, name)) != graphtest.FingerprintOf(t, graphtest.Changed(t, name, renumber)) {
			t.Errorf("%s: the fingerprint depends on counters", name)
		}
	}
}

func TestAChangedComputationChangesTheFingerprint(t *testing.T) {
	base := graphtest.FingerprintOf(t, graphtest.Read(t, "map_batch"))
	for name, change := range map[string]func(*tf.GraphDef){
		"a batch size": func(d *tf.GraphDef) { graphtest.SetConst(t, d, graphtest.OfOp(t, d, "BatchDatasetV2"), 1, 9) },
		"a buffer":     func(d *tf.GraphDef) { graphtest.SetConst(t, d, graphtest.OfOp(t, d, "ShuffleDatasetV3"), 1, 41) },
		"a seed":       func(d *tf.GraphDef) { graphtest.SetConst(t, d, graphtest.OfOp(t, d, "ShuffleDatasetV3"), 2, 1) },
		"a switch": func(d *tf.GraphDef) {
			graphtest.OfOp(t, d, "ShuffleDatasetV3").Attr["reshuffle_each_iteration"] = nodedef.BoolAttr(false)
		},
		"an op in a function": func(d *tf.GraphDef) {
			for _, n := range d.Library.Function[0].NodeDef {
				if n.Op == "Mul" {
					n.Op = "Sub"
				}
			}
		},
		"a constant in a function": func(d *tf.GraphDef) {
			for _, n := range d.Library.Function[0].NodeDef {
				if n.Op == "Const" {
					n.Attr["value"].GetTensor().Int64Val = []int64{3}
				}
			}
		},
	} {
		if graphtest.FingerprintOf(t, graphtest.Changed(t, "map_batch", change)) == base {
			t.Errorf("%s does not change the fingerprint", name)
		}
	}
	if graphtest.FingerprintOf(t, graphtest.Read(t, "two_noises")) == graphtest.FingerprintOf(t, graphtest.Read(t, "one_noise_twice")) {
		t.Error("two random draws have the fingerprint of one draw used twice")
	}
}

func TestAllDatasetsDiffer(t *testing.T) {
	seen := map[string]string{}
	for name, g := range graphtest.All(t) {
		if other, dup := seen[g.Fingerprint()]; dup {
			t.Errorf("%s and %s have the same fingerprint", name, other)
		}
		seen[g.Fingerprint()] = name
	}
	if len(seen) < 20 {
		t.Errorf("only %d graphs were compared", len(seen))
	}
}

func TestASpecMustFitTheDataset(t *testing.T) {
	spec := func(dtype tf.DataType, dims ...int64) *graph.ComponentSpec {
		return &pecanv1.ComponentSpec{Dtype: int32(dtype), Dims: dims}
	}
	i64, f32, text := tf.DataType_DT_INT64, tf.DataType_DT_FLOAT, tf.DataType_DT_STRING
	for name, c := range map[string]struct {
		graph string
		spec  []*graph.ComponentSpec
		text  string
	}{
		"the dataset's own":          {"map_batch", []*graph.ComponentSpec{spec(i64, 8)}, ""},
		"the dataset's own, several": {"slices", []*graph.ComponentSpec{spec(tf.DataType_DT_INT32, -1), spec(text, -1), spec(f32, -1)}, ""},
		"more than the graph knows":  {"slices", []*graph.ComponentSpec{spec(tf.DataType_DT_INT32, 3), spec(text, -1), spec(f32, -1)}, ""},
		"too few":                    {"slices", []*graph.ComponentSpec{spec(i64, -1)}, "1 components, but the dataset gives 3"},
		"another type":               {"map_batch", []*graph.ComponentSpec{spec(f32, 8)}, "component 0 is float32, but the dataset gives int64"},
		"another rank":               {"map_batch", []*graph.ComponentSpec{spec(i64, 8, 1)}, "rank 2"},
		"another size":               {"map_batch", []*graph.ComponentSpec{spec(i64, 9)}, "size 9"},
		"unknown where known":        {"map_batch", []*graph.ComponentSpec{spec(i64, -1)}, ""},
		"unknown rank where known":   {"map_batch", []*graph.ComponentSpec{{Dtype: int32(i64), UnknownRank: true}}, ""},
		"not a plain tensor":         {"map_batch", []*graph.ComponentSpec{spec(tf.DataType_DT_VARIANT)}, "not a plain tensor"},
	} {
		t.Run(name, func(t *testing.T) {
			err := graph.CheckSpec(graphtest.Parse(t, c.graph), c.spec)
			switch {
			case c.text == "" && err != nil:
				t.Error(err)
			case c.text != "" && (!reason.Is(err, reason.SpecMismatch) || !strings.Contains(err.Error(), c.text)):
				t.Errorf("error %v does not contain %q", err, c.text)
			}
		})
	}
}
