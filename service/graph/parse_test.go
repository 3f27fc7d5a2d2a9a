package graph_test

import (
	"bytes"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/pecan-ml/pecan/proto/reason"
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/graphtest"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/rewrite"
	"github.com/pecan-ml/pecan/service/graph/split"
)

func addNode(def *tf.GraphDef, name, op string, inputs ...string) *tf.NodeDef {
	n := &tf.NodeDef{Name: name, Op: op, Input: inputs, Attr: map[string]*tf.AttrValue{}}
	def.Node = append(def.Node, n)
	return n
}

func TestInvalidGraphsAreRefused(t *testing.T) {
	valid := graphtest.Read(t, "map_batch")
	for name, c := range map[string]struct {
		data   []byte
		limits graph.Limits
		want   reason.Reason
		// text must be in the message. It says what is wrong and where.
		text string
	}{
		"nothing":               {data: nil, want: reason.GraphParse, text: "empty"},
		"random bytes":          {data: []byte("\x93\x01no graph at all\xff\xfe"), want: reason.GraphParse},
		"a truncated graph":     {data: valid[:len(valid)-7], want: reason.GraphParse},
		"trailing garbage":      {data: append(bytes.Clone(valid), 0x7a, 3, 'a', 'b', 'c'), want: reason.GraphParse, text: "no field"},
		"a graph without nodes": {data: graphtest.Encode(t, &tf.GraphDef{Versions: &tf.VersionDef{Producer: 1}}), want: reason.GraphParse, text: "no nodes"},
		"too many bytes":        {data: valid, limits: graph.Limits{MaxBytes: 100}, want: reason.MessageTooLarge, text: "limit is 100"},
		"too many nodes":        {data: valid, limits: graph.Limits{MaxNodes: 5}, want: reason.GraphLimit, text: "limit is 5"},
		"too many functions":    {data: graphtest.Read(t, "nested_shuffle"), limits: graph.Limits{MaxFunctions: 1}, want: reason.GraphLimit, text: "functions"},
		"calls nested too deep": {data: graphtest.Read(t, "nested_shuffle"), limits: graph.Limits{MaxDepth: 1}, want: reason.GraphLimit, text: "deep"},
		"a very long name": {data: graphtest.Changed(t, "range", func(d *tf.GraphDef) {
			d.Node[0].Name = strings.Repeat("n", 100_000)
		}), want: reason.GraphLimit, text: "100000 bytes"},
		"a control character in a name": {data: graphtest.Changed(t, "range", func(d *tf.GraphDef) {
			addNode(d, "evil\x1b[31m\n", "NoOp")
		}), want: reason.GraphStructure, text: `\x1b`},
		"a direction mark in a name": {data: graphtest.Changed(t, "range", func(d *tf.GraphDef) {
			addNode(d, "evil\u202e", "NoOp")
		}), want: reason.GraphStructure, text: `\u202e`},
		"two nodes of one name": {data: graphtest.Changed(t, "range", func(d *tf.GraphDef) {
			addNode(d, d.Node[0].Name, "NoOp")
		}), want: reason.GraphStructure, text: "Const/_0"},
		"a dangling input": {data: graphtest.Changed(t, "range", func(d *tf.GraphDef) {
			graphtest.OfOp(t, d, "RangeDataset").Input[1] = "nowhere"
		}), want: reason.GraphStructure, text: "nowhere"},
		"a dangling control input": {data: graphtest.Changed(t, "range", func(d *tf.GraphDef) {
			n := graphtest.OfOp(t, d, "RangeDataset")
			n.Input = append(n.Input, "^nowhere")
		}), want: reason.GraphStructure, text: "nowhere"},
		"an output that does not exist": {data: graphtest.Changed(t, "range", func(d *tf.GraphDef) {
			graphtest.OfOp(t, d, "RangeDataset").Input[1] = "Const/_1:3"
		}), want: reason.GraphStructure, text: "output 3"},
		"an output with no number": {data: graphtest.Changed(t, "range", func(d *tf.GraphDef) {
			graphtest.OfOp(t, d, "RangeDataset").Input[1] = "Const/_1:x"
		}), want: reason.GraphStructure, text: `"x"`},
		"a cycle": {data: graphtest.Changed(t, "map_batch", func(d *tf.GraphDef) {
			graphtest.OfOp(t, d, "ShuffleDatasetV3").Input[0] = graphtest.OfOp(t, d, "BatchDatasetV2").Name
		}), want: reason.GraphStructure, text: "depends on itself"},
		"no result": {data: graphtest.Changed(t, "range", func(d *tf.GraphDef) {
			d.Node = d.Node[:len(d.Node)-1]
		}), want: reason.GraphStructure, text: "_Retval"},
		"two results": {data: graphtest.Changed(t, "range", func(d *tf.GraphDef) {
			n := addNode(d, "second", "_Retval", graphtest.OfOp(t, d, "RangeDataset").Name)
			n.Attr = graphtest.OfOp(t, d, "_Retval").Attr
		}), want: reason.GraphStructure, text: "second"},
		"a result that is not a dataset": {data: graphtest.Changed(t, "range", func(d *tf.GraphDef) {
			graphtest.OfOp(t, d, "_Retval").Input[0] = "Const/_1"
		}), want: reason.GraphStructure, text: "not a dataset"},
		"a missing input": {data: graphtest.Changed(t, "range", func(d *tf.GraphDef) {
			n := graphtest.OfOp(t, d, "RangeDataset")
			n.Input = n.Input[:2]
		}), want: reason.GraphStructure, text: "2 inputs"},
		"a missing attribute": {data: graphtest.Changed(t, "range", func(d *tf.GraphDef) {
			delete(graphtest.OfOp(t, d, "RangeDataset").Attr, "output_types")
		}), want: reason.GraphStructure, text: "output_types"},
		"an attribute of another kind": {data: graphtest.Changed(t, "range", func(d *tf.GraphDef) {
			graphtest.OfOp(t, d, "RangeDataset").Attr["output_types"] = nodedef.IntAttr(3)
		}), want: reason.GraphStructure, text: "output_types"},
		"a missing function": {data: graphtest.Changed(t, "map_batch", func(d *tf.GraphDef) {
			d.Library.Function = nil
		}), want: reason.GraphFunction, text: "ParallelMapDatasetV2"},
		"a function without its result": {data: graphtest.Changed(t, "map_batch", func(d *tf.GraphDef) {
			d.Library.Function[0].Ret = nil
		}), want: reason.GraphFunction, text: "no value"},
		"a function node with a dangling input": {data: graphtest.Changed(t, "map_batch", func(d *tf.GraphDef) {
			f := d.Library.Function[0]
			f.NodeDef[len(f.NodeDef)-1].Input[0] = "nowhere:y:0"
		}), want: reason.GraphFunction, text: "nowhere"},
		"a function that calls itself": {data: graphtest.Changed(t, "map_batch", func(d *tf.GraphDef) {
			f := d.Library.Function[0]
			f.NodeDef = append(f.NodeDef, &tf.NodeDef{Name: "again", Op: "StatefulPartitionedCall", Attr: map[string]*tf.AttrValue{
				"Tin": nodedef.TypesAttr(nil), "Tout": nodedef.TypesAttr(nil), "f": nodedef.FuncAttr(f.Signature.Name)}})
		}), want: reason.GraphFunction, text: "calls itself"},
		"a function with another number of arguments": {data: graphtest.Changed(t, "map_batch", func(d *tf.GraphDef) {
			s := d.Library.Function[0].Signature
			s.InputArg = append(s.InputArg, &tf.OpDef_ArgDef{Name: "more", Type: tf.DataType_DT_INT64})
		}), want: reason.GraphFunction, text: "takes 2"},
		"unknown ops": {data: graphtest.Changed(t, "range", func(d *tf.GraphDef) {
			addNode(d, "a", "MyOwnOp")
			addNode(d, "b", "AnotherOne")
		}), want: reason.OpUnknown, text: `"AnotherOne" (node "b"), "MyOwnOp" (node "a")`},
		"an op without a CPU kernel": {data: graphtest.Changed(t, "range", func(d *tf.GraphDef) {
			addNode(d, "a", "CrossReplicaSum")
		}), want: reason.OpUnknown, text: "no CPU kernel"},
		"a graph for a newer TensorFlow": {data: graphtest.Changed(t, "range", func(d *tf.GraphDef) {
			d.Versions.MinConsumer = 999_999
		}), want: reason.GraphVersion, text: "999999"},
		"a graph that excludes this TensorFlow": {data: graphtest.Changed(t, "range", func(d *tf.GraphDef) {
			d.Versions.BadConsumers = []int32{77}
		}), limits: graph.Limits{GraphVersion: 77}, want: reason.GraphVersion, text: "77"},
		"a Python function": {data: graphtest.Read(t, "py_function"), want: reason.PyFunction, text: "debug mode"},
		"a generator":       {data: graphtest.Read(t, "generator"), want: reason.PyFunction, text: "PyFunc"},
		"a print":           {data: graphtest.Read(t, "print"), want: reason.ExternalState, text: "PrintV2"},
		"a written file":    {data: graphtest.Read(t, "write_file"), want: reason.OpForbidden, text: "WriteFile"},
		"a connection": {data: graphtest.Changed(t, "range", func(d *tf.GraphDef) {
			n := addNode(d, "s", "RegisterDatasetV2", "Const/_0", "Const/_0", "Const/_0")
			n.Attr["external_state_policy"] = &tf.AttrValue{Value: &tf.AttrValue_I{I: 1}}
		}), want: reason.OpForbidden, text: "RegisterDatasetV2"},
		"a counting variable that another step reads": {data: graphtest.Read(t, "two_counters"), want: reason.ExternalState, text: "equal value"},
		"a variable that the graph itself changes": {data: graphtest.Changed(t, "lookup", func(d *tf.GraphDef) {
			graphtest.OfOp(t, d, "AssignVariableOp").Op = "AssignAddVariableOp"
		}), want: reason.ExternalState, text: "AssignAddVariableOp"},
		"a handle made of bytes": {data: graphtest.Changed(t, "map_batch", func(d *tf.GraphDef) {
			f := d.Library.Function[0]
			f.NodeDef = append(f.NodeDef,
				&tf.NodeDef{Name: "bytes", Op: "Const", Attr: map[string]*tf.AttrValue{"dtype": nodedef.TypeAttr(tf.DataType_DT_STRING), "value": {Value: &tf.AttrValue_Tensor{
					Tensor: &tf.TensorProto{Dtype: tf.DataType_DT_STRING, TensorShape: nodedef.Shape(), StringVal: [][]byte{nil}}}}}},
				&tf.NodeDef{Name: "forged", Op: "ParseTensor", Input: []string{"bytes:output:0"}, Attr: map[string]*tf.AttrValue{"out_type": nodedef.TypeAttr(tf.DataType_DT_RESOURCE)}})
		}), want: reason.ExternalState, text: "forged"},
		"datasets as elements": {data: graphtest.Read(t, "nested_datasets"), want: reason.Unsupported, text: "WindowDataset"},
		"a table without content": {data: graphtest.Changed(t, "lookup", func(d *tf.GraphDef) {
			n := graphtest.OfOp(t, d, "LookupTableImportV2")
			n.Op, n.Input, n.Attr = "NoOp", nil, nil
		}), want: reason.ExternalState, text: "lookup table without content"},
		"a queue": {data: graphtest.Changed(t, "range", func(d *tf.GraphDef) {
			n := addNode(d, "q", "FIFOQueueV2")
			n.Attr["component_types"] = nodedef.TypesAttr([]tf.DataType{tf.DataType_DT_INT64})
		}), want: reason.ExternalState, text: "FIFOQueueV2"},
		"a nested data service": {data: graphtest.Changed(t, "range", func(d *tf.GraphDef) {
			addNode(d, "s", "DataServiceDatasetV4")
		}), want: reason.Unsupported, text: "data service"},
		"a hidden graph": {data: graphtest.Changed(t, "range", func(d *tf.GraphDef) {
			addNode(d, "s", "DatasetFromGraph", "Const/_0")
		}), want: reason.OpForbidden, text: "DatasetFromGraph"},
		"a huge batch": {data: graphtest.Changed(t, "map_batch", func(d *tf.GraphDef) {
			graphtest.SetConst(t, d, graphtest.OfOp(t, d, "BatchDatasetV2"), 1, 1<<62)
		}), want: reason.GraphLimit, text: fmt.Sprint(int64(1) << 62)},
		"a batch of size 0": {data: graphtest.Changed(t, "map_batch", func(d *tf.GraphDef) {
			graphtest.SetConst(t, d, graphtest.OfOp(t, d, "BatchDatasetV2"), 1, 0)
		}), want: reason.GraphLimit, text: "batch_size is 0"},
		"a huge shuffle": {data: graphtest.Changed(t, "map_batch", func(d *tf.GraphDef) {
			graphtest.SetConst(t, d, graphtest.OfOp(t, d, "ShuffleDatasetV3"), 1, 1<<62)
		}), want: reason.GraphLimit, text: "buffer_size"},
		"negative parallelism": {data: graphtest.Changed(t, "map_batch", func(d *tf.GraphDef) {
			graphtest.SetConst(t, d, graphtest.OfOp(t, d, "ParallelMapDatasetV2"), 1, -5)
		}), want: reason.GraphLimit, text: "-5"},
		"a constant of a huge shape": {data: graphtest.Changed(t, "range", func(d *tf.GraphDef) {
			graphtest.OfOp(t, d, "Const").Attr["value"].GetTensor().TensorShape = nodedef.Shape(1<<30, 1<<20)
		}), want: reason.GraphLimit, text: "limit of"},
		"a constant whose shape overflows": {data: graphtest.Changed(t, "range", func(d *tf.GraphDef) {
			graphtest.OfOp(t, d, "Const").Attr["value"].GetTensor().TensorShape = nodedef.Shape(1<<40, 1<<40)
		}), want: reason.GraphLimit, text: "too large to count"},
		"a constant of negative shape": {data: graphtest.Changed(t, "range", func(d *tf.GraphDef) {
			graphtest.OfOp(t, d, "Const").Attr["value"].GetTensor().TensorShape = nodedef.Shape(-3)
		}), want: reason.GraphLimit, text: "negative"},
		"a constant with bytes missing": {data: graphtest.Changed(t, "range", func(d *tf.GraphDef) {
			graphtest.OfOp(t, d, "Const").Attr["value"].GetTensor().TensorContent = []byte{1, 2, 3}
		}), want: reason.GraphStructure, text: "3 bytes"},
		"an impossible shape": {data: graphtest.Changed(t, "range", func(d *tf.GraphDef) {
			graphtest.OfOp(t, d, "RangeDataset").Attr["output_shapes"] = nodedef.ShapesAttr([]*tf.TensorShapeProto{nodedef.Shape(-7)})
		}), want: reason.GraphLimit, text: "-7"},
		"datasets that read their input twice, in a long chain": {data: graphtest.Changed(t, "range", func(d *tf.GraphDef) {
			result := graphtest.OfOp(t, d, "_Retval")
			for i := range 60 {
				below := result.Input[0]
				n := addNode(d, fmt.Sprint("both", i), "ConcatenateDataset", below, below)
				n.Attr["output_types"] = nodedef.TypesAttr([]tf.DataType{tf.DataType_DT_INT64})
				n.Attr["output_shapes"] = nodedef.ShapesAttr([]*tf.TensorShapeProto{nodedef.Shape()})
				result.Input[0] = n.Name
			}
		}), want: reason.GraphLimit, text: "more than 500000 steps"},
		"a negative limit": {data: valid, limits: graph.Limits{MaxNodes: -1}, want: reason.BadArgument, text: "MaxNodes"},
	} {
		t.Run(name, func(t *testing.T) {
			g, err := graph.Parse(c.data, c.limits)
			if err == nil || g != nil {
				t.Fatalf("the graph was accepted")
			}
			if !reason.Is(err, c.want) {
				t.Errorf("reason %s, want %s (%v)", reason.From(err).Reason, c.want, err)
			}
			if !strings.Contains(err.Error(), c.text) {
				t.Errorf("message %q does not contain %q", err, c.text)
			}
			if strings.ContainsAny(err.Error(), "\n\x1b") {
				t.Errorf("message %q contains unquoted characters of the graph", err)
			}
		})
	}
}

func TestValidGraphsAreParsed(t *testing.T) {
	for _, name := range []string{"range", "records", "lookup", "nested_shuffle", "slices", "zip", "padded", "options"} {
		t.Run(name, func(t *testing.T) {
			g := graphtest.Parse(t, name)
			if len(g.Fingerprint()) != 64 || len(g.Outputs()) == 0 {
				t.Errorf("fingerprint %q, outputs %v", g.Fingerprint(), g.Outputs())
			}
		})
	}
}

func TestAnAdministratorMayAllowAnOp(t *testing.T) {
	if _, err := graph.Parse(graphtest.Read(t, "write_file"), graph.Limits{AllowOps: []string{"WriteFile"}}); err != nil {
		t.Error(err)
	}
}

func TestCopiedVariablesGiveANotice(t *testing.T) {
	if warnings := graphtest.Parse(t, "lookup").Warnings(); len(warnings) != 1 || !strings.Contains(warnings[0], "value") {
		t.Errorf("warnings %q", warnings)
	}
}

func TestChangedVariablesGiveANotice(t *testing.T) {
	for graph, want := range map[string]string{
		"counter": "1 variable(s) are changed", "seed_generator": "1 random generator(s)", "two_seed_generators": "draw the same numbers",
	} {
		if warnings := graphtest.Parse(t, graph).Warnings(); len(warnings) != 1 || !strings.Contains(warnings[0], want) {
			t.Errorf("%s: warnings %q", graph, warnings)
		}
	}
}

// A node has two bytes on the wire, and must not take much more memory.
func TestManyEmptyNodesAreRefusedBeforeTheyAreRead(t *testing.T) {
	data := bytes.Repeat([]byte{0x0a, 0x00}, 4_000_000)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := graph.Parse(data, graph.Limits{})
	runtime.ReadMemStats(&after)
	if !reason.Is(err, reason.GraphLimit) {
		t.Errorf("error %v", err)
	}
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 16<<20 {
		t.Errorf("%d bytes were allocated", grown)
	}
}

func TestFunctionsThatGrowExponentiallyAreRefused(t *testing.T) {
	data := graphtest.Changed(t, "map_batch", func(d *tf.GraphDef) {
		last := d.Library.Function[0].Signature.Name
		for i := 0; i < 60; i++ {
			f := &tf.FunctionDef{Signature: &tf.OpDef{Name: fmt.Sprintf("double_%d", i)}}
			for j := 0; j < 2; j++ {
				f.NodeDef = append(f.NodeDef, &tf.NodeDef{Name: fmt.Sprintf("call_%d", j), Op: "PartitionedCall", Attr: map[string]*tf.AttrValue{
					"Tin": nodedef.TypesAttr(nil), "Tout": nodedef.TypesAttr(nil), "f": nodedef.FuncAttr(last)}})
			}
			d.Library.Function = append(d.Library.Function, f)
			last = f.Signature.Name
		}
	})
	if _, err := graph.Parse(data, graph.Limits{}); !reason.Is(err, reason.GraphLimit) {
		t.Errorf("error %v", err)
	}
}

// The planning time of long chains and long lists must grow linearly.
func TestPlanningTimeGrowsLinearly(t *testing.T) {
	for name, grow := range map[string]func(d *tf.GraphDef, i int, last string) string{
		"a chain of prefetches": func(d *tf.GraphDef, i int, last string) string {
			n := addNode(d, fmt.Sprintf("p%d", i), "PrefetchDataset", last, "Const/_2")
			n.Attr = nodedef.DatasetAttrs([]tf.DataType{tf.DataType_DT_INT64}, []*tf.TensorShapeProto{nodedef.Shape()})
			return n.Name
		},
		"a list of concatenated datasets": func(d *tf.GraphDef, i int, last string) string {
			attrs := nodedef.DatasetAttrs([]tf.DataType{tf.DataType_DT_INT64}, []*tf.TensorShapeProto{nodedef.Shape()})
			more := addNode(d, fmt.Sprintf("r%d", i), "RangeDataset", "Const/_0", "Const/_1", "Const/_2")
			n := addNode(d, fmt.Sprintf("c%d", i), "ConcatenateDataset", last, more.Name)
			more.Attr, n.Attr = attrs, attrs
			return n.Name
		},
	} {
		data := graphtest.Changed(t, "range", func(d *tf.GraphDef) {
			last := graphtest.OfOp(t, d, "RangeDataset").Name
			for i := range 5000 {
				last = grow(d, i, last)
			}
			graphtest.OfOp(t, d, "_Retval").Input[0] = last
		})
		start := time.Now()
		g, err := graph.Parse(data, graph.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		p := graphtest.Plan(t, g, graphtest.Once, 0)
		if _, err := rewrite.Instantiate(g, p, rewrite.At{Mode: graphtest.Once.Mode}); err != nil || p.NumStreams < 2 {
			t.Fatalf("%s: plan %v, error %v", name, p.NumStreams, err)
		}
		if took := time.Since(start); took > time.Minute {
			t.Errorf("%s took %v", name, took)
		} else {
			t.Logf("%s took %v", name, took)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, name := range []string{"range", "map_batch", "lookup", "nested_shuffle", "slices", "zip", "hint", "endless_batch", "padded"} {
		f.Add(graphtest.Read(f, name))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		g, err := graph.Parse(data, graph.Limits{MaxNodes: 2000})
		if err != nil {
			if reason.From(err).Reason == reason.Internal {
				t.Fatalf("no reason: %v", err)
			}
			return
		}
		p, err := split.MakePlan(g, graphtest.Once, split.Env{})
		if err != nil {
			return
		}
		for s := range []int{0, 1} {
			if s < int(p.NumStreams) {
				if _, err := rewrite.Instantiate(g, p, rewrite.At{Stream: s, Mode: graphtest.Once.Mode, Source: -1}); err != nil && reason.From(err).Reason == reason.Internal {
					t.Fatalf("writing stream %d: %v", s, err)
				}
			}
		}
	})
}
