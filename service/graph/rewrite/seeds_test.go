package rewrite_test

import (
	"fmt"
	"strings"
	"testing"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph/graphtest"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/ops"
	"github.com/pecan-ml/pecan/service/graph/rewrite"
)

// seedsOf lists the seeds of shuffles and of random ops in functions.
func seedsOf(t *testing.T, def *tf.GraphDef) map[string][2]int64 {
	t.Helper()
	found := map[string][2]int64{}
	for _, n := range def.GetNode() {
		if strings.HasPrefix(n.GetOp(), "ShuffleDataset") {
			found[n.GetName()] = [2]int64{graphtest.Number(t, def, n, 2), graphtest.Number(t, def, n, 3)}
		}
	}
	for _, f := range def.GetLibrary().GetFunction() {
		for _, n := range f.GetNodeDef() {
			if v, ok := n.GetAttr()["seed"]; ok {
				found[f.GetSignature().GetName()+"/"+n.GetName()] = [2]int64{v.GetI(), n.GetAttr()["seed2"].GetI()}
			}
		}
	}
	return found
}

// stateful returns the graph of a stream in a mode that keys no random step.
func stateful(t *testing.T, name string, at rewrite.At) *tf.GraphDef {
	t.Helper()
	at.Mode = graphtest.AtLeastOnce
	g := graphtest.Parse(t, name)
	graphs, err := rewrite.Instantiate(g, graphtest.Plan(t, g, &pecanv1.JobOptions{Mode: at.Mode}, 0), at)
	if err != nil {
		t.Fatal(err)
	}
	return graphtest.Decode(t, graphs.A)
}

func only(t *testing.T, found map[string][2]int64) [2]int64 {
	t.Helper()
	if len(found) != 1 {
		t.Fatalf("seeds %v", found)
	}
	for _, pair := range found {
		return pair
	}
	return [2]int64{}
}

func TestSeedsDependOnEpochStreamAndJob(t *testing.T) {
	seeds := func(name string, at rewrite.At) [2]int64 { return only(t, seedsOf(t, stateful(t, name, at))) }
	base := rewrite.At{Stream: 1, Epoch: 1, Seed: 5}
	with := func(change func(*rewrite.At)) rewrite.At {
		at := base
		change(&at)
		return at
	}
	otherEpoch := with(func(a *rewrite.At) { a.Epoch = 2 })
	otherStream := with(func(a *rewrite.At) { a.Stream = 2 })
	otherJob := with(func(a *rewrite.At) { a.Seed = 6 })
	for name, c := range map[string]struct {
		graph              string
		epoch, stream, job bool
	}{
		"an unseeded shuffle changes with all":      {"map_batch", true, true, true},
		"a seeded shuffle does not follow the job":  {"records", true, true, false},
		"a shuffle that is fixed keeps over epochs": {"shuffle_fixed", false, true, false},
		"a shuffle below a cache keeps over epochs": {"cache_file", false, true, true},
		"an unseeded random value changes with all": {"noise", true, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			first := seeds(c.graph, base)
			if first == [2]int64{} || first[0] < 0 || first[1] < 0 {
				t.Errorf("seeds %v", first)
			}
			for what, check := range map[string]struct {
				at      rewrite.At
				changes bool
			}{"epoch": {otherEpoch, c.epoch}, "stream": {otherStream, c.stream}, "job": {otherJob, c.job}} {
				if (seeds(c.graph, check.at) != first) != check.changes {
					t.Errorf("another %s: the seeds must change: %v", what, check.changes)
				}
			}
		})
	}
}

func TestStepsBeforeTheCutDrawTheSameValuesInAllStreams(t *testing.T) {
	first := seedsOf(t, graphtest.Stream(t, "zip", rewrite.At{Stream: 0, Epoch: 4}))
	var pairs [][2]int64
	for name, pair := range seedsOf(t, graphtest.Stream(t, "zip", rewrite.At{Stream: 1, Epoch: 4})) {
		if first[name] != pair {
			t.Errorf("%s: streams differ", name)
		}
		pairs = append(pairs, pair)
	}
	if len(pairs) != 2 || pairs[0] != pairs[1] {
		t.Errorf("shuffles with equal seeds are not aligned: %v", pairs)
	}
	local := seedsOf(t, graphtest.Decode(t, graphtest.Read(t, "zip")))
	for name, pair := range seedsOf(t, graphtest.Stream(t, "zip", rewrite.At{Stream: 1})) {
		if local[name] != pair {
			t.Errorf("%s: the first epoch differs from a local run", name)
		}
	}
}

func TestEachCallOfAFunctionHasItsOwnSeeds(t *testing.T) {
	found := seedsOf(t, stateful(t, "two_noises", rewrite.At{}))
	seen := map[[2]int64]bool{}
	for _, pair := range found {
		seen[pair] = true
	}
	if len(found) != 2 || len(seen) != 2 {
		t.Errorf("two draws got the seeds %v", found)
	}
	def := graphtest.Stream(t, "nested_shuffle", rewrite.At{})
	for _, f := range def.GetLibrary().GetFunction() {
		for _, n := range f.GetNodeDef() {
			if n.GetOp() != "ShuffleDatasetV3" {
				continue
			}
			if !strings.HasPrefix(n.GetInput()[2], "pecan_seed_") || !strings.HasPrefix(n.GetInput()[3], "pecan_seed2_") {
				t.Errorf("a shuffle inside a function takes its seeds from %v", n.GetInput())
			}
		}
	}
}

// statesOf returns the first numbers of the generators of a stream, and the names of their variables.
func statesOf(t *testing.T, def *tf.GraphDef) (states [][]int64, names []string) {
	t.Helper()
	for _, n := range def.GetNode() {
		switch n.GetOp() {
		case "AssignVariableOp":
			values, ok := nodedef.Ints(graphtest.Named(t, def, n.GetInput()[1]))
			if !ok {
				t.Fatalf("%s assigns no numbers", n.GetName())
			}
			states = append(states, values)
		case "VarHandleOp":
			names = append(names, string(n.GetAttr()["shared_name"].GetS()))
		}
	}
	return states, names
}

func TestGeneratorStatesDependOnEpochAndStream(t *testing.T) {
	first, names := statesOf(t, graphtest.Stream(t, "seed_generator", rewrite.At{Stream: 1, Epoch: 1, Seed: 5}))
	if len(names) != 1 || names[0] != ops.AnonymousVariable {
		t.Errorf("a changing variable is shared by the name %q", names)
	}
	for name, c := range map[string]struct {
		at      rewrite.At
		changes bool
	}{
		"another stream draws other numbers": {rewrite.At{Stream: 2, Epoch: 1, Seed: 5}, true},
		"another epoch draws other numbers":  {rewrite.At{Stream: 1, Epoch: 2, Seed: 5}, true},
		"the user's seed is not the job's":   {rewrite.At{Stream: 1, Epoch: 1, Seed: 6}, false},
	} {
		other, _ := statesOf(t, graphtest.Stream(t, "seed_generator", c.at))
		if (fmt.Sprint(first) != fmt.Sprint(other)) != c.changes {
			t.Errorf("%s: %v and %v", name, first, other)
		}
	}
	aligned, _ := statesOf(t, graphtest.Stream(t, "two_seed_generators", rewrite.At{Stream: 1, Epoch: 1}))
	if len(aligned) != 2 || fmt.Sprint(aligned[0]) != fmt.Sprint(aligned[1]) || fmt.Sprint(aligned[0]) == "[3 0]" {
		t.Errorf("generators with equal seeds are not aligned: %v", aligned)
	}
	counting, names := statesOf(t, graphtest.Stream(t, "counter", rewrite.At{Stream: 1, Epoch: 1}))
	if fmt.Sprint(counting) != "[[0]]" || names[0] != ops.AnonymousVariable {
		t.Errorf("a counter starts from %v under the name %q", counting, names)
	}
}

func TestAnUndividedDatasetStartsFromTheUsersState(t *testing.T) {
	g := graphtest.Parse(t, "seed_generator")
	p := graphtest.Plan(t, g, graphtest.Once, 0)
	p.NumStreams = 1
	p.Cut = &pecanv1.Cut{}
	for epoch, same := range map[uint64]bool{0: true, 1: false} {
		graphs, err := rewrite.Instantiate(g, sealed(p), rewrite.At{Epoch: epoch, Mode: graphtest.Once.Mode})
		if err != nil {
			t.Fatal(err)
		}
		if states, _ := statesOf(t, graphtest.Decode(t, graphs.A)); (fmt.Sprint(states) == "[[3 0]]") != same {
			t.Errorf("epoch %d starts from %v", epoch, states)
		}
	}
}

func TestDeterministicModeSerialisesRandomSteps(t *testing.T) {
	for graph, inputs := range map[string]int{"seed_generator_in_parallel": 2} {
		for mode, op := range map[pecanv1.Mode]string{
			pecanv1.Mode_MODE_DETERMINISTIC: "MapDataset", pecanv1.Mode_MODE_EXACTLY_ONCE: "ParallelMapDatasetV2",
		} {
			g := graphtest.Parse(t, graph)
			graphs, err := rewrite.Instantiate(g, graphtest.Plan(t, g, &pecanv1.JobOptions{Mode: mode}, 0), rewrite.At{Mode: mode, Stream: 1})
			if err != nil {
				t.Fatal(err)
			}
			n := graphtest.OfOp(t, graphtest.Decode(t, graphs.A), op)
			if op == "MapDataset" && (len(n.GetInput()) != inputs || n.GetAttr()["deterministic"] != nil || n.GetAttr()["f"] == nil) {
				t.Errorf("%s: a serialised map with inputs %v and attributes %v", graph, n.GetInput(), n.GetAttr())
			}
		}
	}
}
