package rewrite_test

import (
	"testing"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph/analysis"
	"github.com/pecan-ml/pecan/service/graph/graphtest"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/rewrite"
)

// In modes without a repeatable order, steps stay as they are: an order would only make them slower.
func TestParallelStepsAreOrderedOnlyIfTheModeNeedsIt(t *testing.T) {
	for name, c := range map[string]struct {
		graph, op string
		mode      pecanv1.Mode
		want      bool
	}{
		"values in exactly-once":               {"noise", "MapDataset", graphtest.ExactlyOnce, false},
		"values in deterministic are keyed":    {"noise", "MapDataset", graphtest.Deterministic, false},
		"counts in exactly-once are keyed":     {"noise_filter", "MapDataset", graphtest.ExactlyOnce, false},
		"a generator's state in deterministic": {"seed_generator_in_parallel", "MapDataset", graphtest.Deterministic, true},
		"counts inside of datasets":            {"nested_choice", "InterleaveDataset", graphtest.ExactlyOnce, true},
		"values inside of datasets":            {"nested_shuffle", "InterleaveDataset", graphtest.ExactlyOnce, false},
		"values inside of datasets, in order":  {"nested_shuffle", "InterleaveDataset", graphtest.Deterministic, true},
		"variables in deterministic":           {"counter_in_parallel", "MapDataset", graphtest.Deterministic, true},
		"variables of values, in exactly-once": {"counter_in_parallel", "MapDataset", graphtest.ExactlyOnce, false},
	} {
		t.Run(name, func(t *testing.T) {
			g := graphtest.Parse(t, c.graph)
			graphs, err := rewrite.Instantiate(g, graphtest.Plan(t, g, &pecanv1.JobOptions{Mode: c.mode}, 0), rewrite.At{Mode: c.mode})
			if err != nil {
				t.Fatal(err)
			}
			if got := graphtest.HasOp(graphtest.Decode(t, graphs.A), c.op); got != c.want {
				t.Errorf("%s in the stream: %v", c.op, got)
			}
		})
	}
}

func TestParallelStepsInsideFunctionsAreOrdered(t *testing.T) {
	g := graphtest.Parse(t, "nested_parallel")
	graphs, err := rewrite.Instantiate(g, graphtest.Plan(t, g, &pecanv1.JobOptions{Mode: graphtest.Deterministic}, 0), rewrite.At{Mode: graphtest.Deterministic})
	if err != nil {
		t.Fatal(err)
	}
	maps := 0
	for _, f := range graphtest.Decode(t, graphs.A).GetLibrary().GetFunction() {
		for _, n := range f.GetNodeDef() {
			switch n.GetOp() {
			case "ParallelMapDatasetV2":
				t.Errorf("%s still runs in parallel", n.GetName())
			case "MapDataset":
				maps++
			case "PrefetchDataset":
				for _, size := range f.GetNodeDef() {
					if size.GetName() == nodedef.InputNode(n.GetInput()[1]) && size.GetAttr()["value"].GetTensor().GetInt64Val()[0] != 0 {
						t.Errorf("%s still prefetches", n.GetName())
					}
				}
			}
		}
	}
	if maps == 0 {
		t.Error("the graph has no map")
	}
}

// If the user leaves the cycle length to tf.data, it takes the number of cores, which differs between workers.
func TestTheOrderDoesNotDependOnTheWorkersCores(t *testing.T) {
	g := graphtest.Parse(t, "automatic_cycle")
	for mode, want := range map[pecanv1.Mode]int64{graphtest.ExactlyOnce: rewrite.CycleLength, graphtest.Deterministic: rewrite.CycleLength, graphtest.AtLeastOnce: -1} {
		graphs, err := rewrite.Instantiate(g, graphtest.Plan(t, g, &pecanv1.JobOptions{Mode: mode}, 0), rewrite.At{Mode: mode})
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, f := range graphtest.Decode(t, graphs.A).GetLibrary().GetFunction() {
			inside := map[string]*tf.NodeDef{}
			for _, n := range f.GetNodeDef() {
				inside[n.GetName()] = n
			}
			for _, n := range f.GetNodeDef() {
				if n.GetOp() != "InterleaveDataset" {
					continue
				}
				found = true
				if got, ok := analysis.New(g).NestedInt(n, "cycle_length", inside); !ok || got != want {
					t.Errorf("%v: cycle_length %d, want %d", mode, got, want)
				}
			}
		}
		if !found {
			t.Errorf("%v: the graph has no interleave", mode)
		}
	}
}
