package split_test

import (
	"testing"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/graphtest"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/split"
)

// inFunctions changes the nodes of a graph's functions that have an op.
func inFunctions(op string, change func(*tf.NodeDef)) func(*tf.GraphDef) {
	return func(def *tf.GraphDef) {
		for _, f := range def.GetLibrary().GetFunction() {
			for _, n := range f.GetNodeDef() {
				if n.GetOp() == op {
					change(n)
				}
			}
		}
	}
}

// The elements are counted only if the steps between the files and the shuffle give one for each record or batch.
func TestTheNumberOfElementsIsEstimatedFromTheRecords(t *testing.T) {
	// onList adds a step between the list of files and the step that reads them.
	onList := func(op string, arguments ...*tf.NodeDef) func(*tf.GraphDef) {
		return func(def *tf.GraphDef) {
			reader := graphtest.OfOp(t, def, "FlatMapDataset")
			list := graphtest.Named(t, def, reader.GetInput()[0])
			attrs := nodedef.DatasetAttrs(list.GetAttr()["Toutput_types"].GetList().GetType(), list.GetAttr()["output_shapes"].GetList().GetShape())
			step := &tf.NodeDef{Name: "added", Op: op, Input: []string{list.GetName()}, Attr: attrs}
			for _, argument := range arguments {
				step.Input = append(step.Input, argument.GetName())
			}
			def.Node, reader.Input[0] = append(append(def.Node, step), arguments...), step.Name
		}
	}
	for name, c := range map[string]struct {
		graph  string
		change func(*tf.GraphDef)
		want   int64
	}{
		"batches of records":           {graph: "records", want: 125},
		"records of half of the files": {graph: "records", change: onList("TakeDataset", nodedef.Int64Const("n", 4)), want: 62},
		"lists of files":               {graph: "records", change: onList("BatchDatasetV2", nodedef.Int64Const("n", 2), nodedef.BoolConst("drop", true))},
		"maps after an interleave":     {graph: "cached_records", want: 125},
		"maps in the function":         {graph: "steps_in_a_function", want: 1000},
		"maps that may drop records":   {graph: "steps_in_a_function", change: inFunctions("MapDataset", func(n *tf.NodeDef) { n.Attr["preserve_cardinality"] = nodedef.BoolAttr(false) })},
		"a filter":                     {graph: "parts_records_shuffled_filtered"},
		"positions beside records":     {graph: "enumerate_records"},
		"lines of text":                {graph: "records", change: inFunctions("TFRecordDataset", func(n *tf.NodeDef) { n.Op = "TextLineDataset" })},
		"files that no constant lists": {graph: "listed"},
		"numbers":                      {graph: "range"},
	} {
		t.Run(name, func(t *testing.T) {
			data := graphtest.Read(t, c.graph)
			if c.change != nil {
				data = graphtest.Changed(t, c.graph, c.change)
			}
			g, err := graph.Parse(data, graph.Limits{})
			if err != nil {
				t.Fatal(err)
			}
			if n := split.Estimate(g, 1000); n != c.want {
				t.Errorf("about %d elements for 1000 records, want %d", n, c.want)
			}
			if n := split.Estimate(g, 0); n != 0 {
				t.Errorf("about %d elements for an unknown number of records", n)
			}
		})
	}
}
