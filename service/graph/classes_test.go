package graph

import (
	"strings"
	"testing"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
)

const (
	exactlyOnce   = pecanv1.Mode_MODE_EXACTLY_ONCE
	deterministic = pecanv1.Mode_MODE_DETERMINISTIC
	atLeastOnce   = pecanv1.Mode_MODE_AT_LEAST_ONCE
	atMostOnce    = pecanv1.Mode_MODE_AT_MOST_ONCE
)

func TestDeterminismClasses(t *testing.T) {
	for name, want := range map[string]struct {
		graph string
		mode  pecanv1.Mode
		class pecanv1.DeterminismClass
	}{
		"nothing random":                                        {"range", exactlyOnce, classB},
		"an unseeded shuffle gets a seed":                       {"map_batch", exactlyOnce, classB},
		"random values one after another":                       {"noise_sequential", exactlyOnce, classB},
		"random values side by side":                            {"noise", exactlyOnce, classA},
		"deterministic mode puts them in order":                 {"noise", deterministic, classB},
		"random values that decide the count are put in order":  {"noise_filter", exactlyOnce, classB},
		"not in a mode that does not need it":                   {"noise_filter", atLeastOnce, classC},
		"random values in datasets that are read in turn":       {"nested_shuffle", exactlyOnce, classA},
		"deterministic mode reads these one after another":      {"nested_shuffle", deterministic, classB},
		"parallel steps inside functions":                       {"nested_parallel", exactlyOnce, classA},
		"deterministic mode puts these in order too":            {"nested_parallel", deterministic, classB},
		"random values that decide the count inside a function": {"nested_choice", exactlyOnce, classB},
		"a generator's state, one after another":                {"drawn", exactlyOnce, classB},
		"a generator's state, side by side":                     {"drawn_in_parallel", exactlyOnce, classA},
		"deterministic mode draws one after another":            {"drawn_in_parallel", deterministic, classB},
		"a tf.random.Generator":                                 {"generator_state", deterministic, classB},
		"a variable that counts":                                {"counter", deterministic, classB},
		"a variable that counts side by side":                   {"counter_in_parallel", exactlyOnce, classA},
		"deterministic mode counts one after another":           {"counter_in_parallel", deterministic, classB},
		"a variable that decides the count":                     {"filtered_counter", exactlyOnce, classB},
		"the time":                                              {"clock", exactlyOnce, classA},
		"the time, where it decides the count":                  {"clock_filter", atMostOnce, classC},
		"a cache inside a function":                             {"nested_cache", exactlyOnce, classB},
		"files that are listed on the way":                      {"listed", exactlyOnce, classB},
		"a snapshot":                                            {"snapshot", atLeastOnce, classC},
		"elements as they get ready, in a mode that lets it":    {"options", atLeastOnce, classC},
		"elements as they get ready, in a mode that forbids":    {"options", exactlyOnce, classB},
	} {
		t.Run(name, func(t *testing.T) {
			p := plan(t, parse(t, want.graph), &pecanv1.JobOptions{Mode: want.mode}, 0)
			if p.Determinism != want.class || p.Mode != want.mode {
				t.Errorf("class %v in mode %v, want %v", p.Determinism, p.Mode, want.class)
			}
		})
	}
}

func TestAGraphThatCannotKeepThePromiseIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		graph string
		mode  pecanv1.Mode
		says  string
		// weaker is what runs where the user allows it.
		weaker pecanv1.Mode
	}{
		"values that no seed decides":    {"clock", deterministic, "MapDataset", exactlyOnce},
		"elements that no seed decides":  {"clock_filter", exactlyOnce, "FilterDataset", atLeastOnce},
		"the same, in order":             {"clock_filter", deterministic, "FilterDataset", atLeastOnce},
		"a list of files that may grow":  {"listed", deterministic, "List the files in the trainer", exactlyOnce},
		"a snapshot in exactly-once":     {"snapshot", exactlyOnce, "SnapshotDatasetV2", atLeastOnce},
		"a snapshot in a certain order":  {"snapshot", deterministic, "SnapshotDatasetV2", atLeastOnce},
		"values side by side, no matter": {"noise", exactlyOnce, "", exactlyOnce},
	} {
		t.Run(name, func(t *testing.T) {
			g := parse(t, c.graph)
			opts := &pecanv1.JobOptions{Mode: c.mode}
			p, err := Analyze(g, opts, Env{})
			if refused := c.says != ""; refused != reason.Is(err, reason.Nondeterministic) {
				t.Fatalf("plan %v, error %v", p, err)
			}
			if settled := Settle(g, opts); c.says != "" && (settled == nil || settled.Error() != err.Error() || !strings.Contains(err.Error(), c.says)) {
				t.Errorf("Settle says %v, Analyze %v, want %q in both", settled, err, c.says)
			}
			opts.AllowNondeterministic = true
			if err := Settle(g, opts); err != nil {
				t.Errorf("allowed, and still: %v", err)
			}
			p = plan(t, g, opts, 0)
			said := strings.Contains(strings.Join(p.Reasons, " "), "as the user allows")
			if p.Mode != c.weaker || said != (c.weaker != c.mode) {
				t.Errorf("runs in mode %v, want %v: %v", p.Mode, c.weaker, p.Reasons)
			}
		})
	}
}

// A step that only its user's modes allow to race is left alone in the others: it would be slower for nothing.
func TestStepsArePutInOrderOnlyWhereTheModeNeedsIt(t *testing.T) {
	for name, c := range map[string]struct {
		graph, op string
		mode      pecanv1.Mode
		want      bool
	}{
		"values in exactly-once":               {"noise", "MapDataset", exactlyOnce, false},
		"values in deterministic are keyed":    {"noise", "MapDataset", deterministic, false},
		"counts in exactly-once are keyed":     {"noise_filter", "MapDataset", exactlyOnce, false},
		"a generator's state in deterministic": {"drawn_in_parallel", "MapDataset", deterministic, true},
		"counts inside of datasets":            {"nested_choice", "InterleaveDataset", exactlyOnce, true},
		"values inside of datasets":            {"nested_shuffle", "InterleaveDataset", exactlyOnce, false},
		"values inside of datasets, in order":  {"nested_shuffle", "InterleaveDataset", deterministic, true},
		"variables in deterministic":           {"counter_in_parallel", "MapDataset", deterministic, true},
		"variables of values, in exactly-once": {"counter_in_parallel", "MapDataset", exactlyOnce, false},
	} {
		t.Run(name, func(t *testing.T) {
			g := parse(t, c.graph)
			graphs, err := Instantiate(g, plan(t, g, &pecanv1.JobOptions{Mode: c.mode}, 0), At{Mode: c.mode})
			if err != nil {
				t.Fatal(err)
			}
			if got := hasOp(decode(t, graphs.A), c.op); got != c.want {
				t.Errorf("%s in the stream: %v", c.op, got)
			}
		})
	}
}

func TestParallelStepsInsideFunctionsArePutInOrder(t *testing.T) {
	g := parse(t, "nested_parallel")
	graphs, err := Instantiate(g, plan(t, g, &pecanv1.JobOptions{Mode: deterministic}, 0), At{Mode: deterministic})
	if err != nil {
		t.Fatal(err)
	}
	maps := 0
	for _, f := range decode(t, graphs.A).GetLibrary().GetFunction() {
		for _, n := range f.GetNodeDef() {
			switch n.GetOp() {
			case "ParallelMapDatasetV2":
				t.Errorf("%s still works side by side", n.GetName())
			case "MapDataset":
				maps++
			case "PrefetchDataset":
				for _, size := range f.GetNodeDef() {
					if size.GetName() == functionInputNode(n.GetInput()[1]) && size.GetAttr()["value"].GetTensor().GetInt64Val()[0] != 0 {
						t.Errorf("%s still runs ahead", n.GetName())
					}
				}
			}
		}
	}
	if maps == 0 {
		t.Error("no map is left")
	}
}

// tf.data takes the number of cores where the user leaves the cycle length to it, and workers have different ones.
func TestTheOrderDoesNotDependOnTheWorkersCores(t *testing.T) {
	g := parse(t, "automatic_cycle")
	for mode, want := range map[pecanv1.Mode]int64{exactlyOnce: cycleLength, deterministic: cycleLength, atLeastOnce: -1} {
		graphs, err := Instantiate(g, plan(t, g, &pecanv1.JobOptions{Mode: mode}, 0), At{Mode: mode})
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, f := range decode(t, graphs.A).GetLibrary().GetFunction() {
			inside := map[string]*tf.NodeDef{}
			for _, n := range f.GetNodeDef() {
				inside[n.GetName()] = n
			}
			for _, n := range f.GetNodeDef() {
				if n.GetOp() != "InterleaveDataset" {
					continue
				}
				found = true
				if got, ok := newPlanner(g).nestedInt(n, "cycle_length", inside); !ok || got != want {
					t.Errorf("%v: cycle_length %d, want %d", mode, got, want)
				}
			}
		}
		if !found {
			t.Errorf("%v: no interleave is left", mode)
		}
	}
}
