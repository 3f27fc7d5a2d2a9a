package split_test

import (
	"cmp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/graphtest"
	"github.com/pecan-ml/pecan/service/graph/split"
)

// planOf plans a graph of testdata.
func planOf(t *testing.T, name string, opts *pecanv1.JobOptions, env split.Env) *pecanv1.Plan {
	t.Helper()
	plan, err := split.MakePlan(graphtest.Parse(t, name), opts, env)
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

func TestAJobMayAskForANumberOfStreams(t *testing.T) {
	for name, c := range map[string]struct {
		graph   string
		streams int32
		env     split.Env
		want    int32
		group   int32
		why     string
	}{
		"one":                            {graph: "range", streams: 1, want: 1, why: "asks for streams=1."},
		"a few":                          {graph: "range", streams: 5, want: 5, why: "asks for streams=5."},
		"as many as the plan has":        {graph: "range", streams: 16, want: 16, why: "at least this many"},
		"groups":                         {graph: "range", streams: 40, want: 40, group: 16, why: "asks for streams=40."},
		"more than the splits":           {graph: "range", streams: 5000, want: 100, group: 16, why: "the source has 100 splits"},
		"more than the files":            {graph: "records", streams: 5000, want: 8, why: "the source has 8 files: write more files"},
		"a source without an end":        {graph: "endless_batch", streams: 50, want: 16, why: "without an end are open together, at most 16"},
		"what cannot be divided":         {graph: "filtered_counter", streams: 50, want: 1, why: "a variable that its functions change"},
		"work that every stream repeats": {graph: "enumerate_records", streams: 20, want: 20, group: 16, why: "asks for streams=20."},
	} {
		t.Run(name, func(t *testing.T) {
			opts := &pecanv1.JobOptions{Mode: graphtest.ExactlyOnce, Streams: c.streams}
			p := planOf(t, c.graph, opts, c.env)
			if p.NumStreams != c.want || p.Group != c.group || !strings.Contains(p.StreamsWhy, c.why) || !strings.Contains(strings.Join(p.Reasons, " "), p.StreamsWhy) {
				t.Errorf("%d streams in groups of %d: %s: %q", p.NumStreams, p.Group, p.StreamsWhy, p.Reasons)
			}
		})
	}
}

func TestAProfileDecidesTheNumberOfStreamsExceptInDeterministicMode(t *testing.T) {
	profile := []*pecanv1.NodeMetrics{{Node: "RangeDataset/_3", Elements: 100, SelfCpuS: 40}}
	for mode, want := range map[*pecanv1.JobOptions]int32{graphtest.Once: 100, {Mode: pecanv1.Mode_MODE_DETERMINISTIC}: 16} {
		if p := planOf(t, "range", mode, split.Env{Profile: profile}); p.NumStreams != want {
			t.Errorf("%v: %d streams, want %d: %s", mode.GetMode(), p.NumStreams, want, p.StreamsWhy)
		}
	}
}

// A decision on the order of steps stays valid if the number of streams changes, except from or to one stream.
func TestTheHashForOrdersDoesNotDependOnTheNumberOfStreams(t *testing.T) {
	hashes := map[string][]int32{}
	for _, streams := range []int32{1, 2, 16, 40} {
		p := planOf(t, "range", &pecanv1.JobOptions{Mode: graphtest.ExactlyOnce, Streams: streams}, split.Env{})
		hashes[p.OrderHash] = append(hashes[p.OrderHash], streams)
		if p.NumStreams != streams {
			t.Errorf("streams=%d: %v", streams, p)
		}
	}
	if len(hashes) != 2 || len(hashes[""]) != 1 {
		t.Errorf("the numbers of streams by hash: %v", hashes)
	}
}

// A profile may change between two runs, and a saved position keeps its meaning.
func TestASavedPositionKeepsItsDivision(t *testing.T) {
	for _, name := range []string{"range", "records", "filter_batch", "filter_batch_map", "zip", "map_batch"} {
		for _, streams := range []int32{0, 1, 3, 40} {
			first := planOf(t, name, &pecanv1.JobOptions{Mode: graphtest.ExactlyOnce, Streams: streams}, split.Env{})
			again := planOf(t, name, graphtest.Once, split.Env{Division: &pecanv1.Division{NumStreams: first.NumStreams, Group: first.Group}})
			if first.Hash != again.Hash {
				t.Errorf("%s with streams=%d: plan %v, and again %v", name, streams, first, again)
			}
		}
	}
}

// A stream with random steps keeps no state, so that streams share iterators. A plan with one stream has the values of a
// local run.
func TestRandomStepsAreKeyedIfThereAreSeveralStreams(t *testing.T) {
	long := graphtest.Changed(t, "noise", func(def *tf.GraphDef) {
		for _, n := range def.GetNode() {
			if v := n.GetAttr()["value"].GetTensor(); slices.Equal(v.GetInt64Val(), []int64{20}) {
				v.Int64Val[0] = 2000
			}
		}
	})
	measured := []*pecanv1.NodeMetrics{{Node: "RangeDataset/_3", Elements: 2000, SelfCpuS: 40}}
	for name, c := range map[string]struct {
		mode    pecanv1.Mode
		streams int32
		env     split.Env
		want    int32
		keyed   bool
	}{
		"one stream":                       {streams: 1, want: 1},
		"one group":                        {streams: 16, want: 16, keyed: true},
		"little work":                      {want: 16, keyed: true},
		"much work":                        {env: split.Env{Profile: measured}, want: 100, keyed: true},
		"as many as the job asks for":      {streams: 40, want: 40, keyed: true},
		"a position in groups":             {env: split.Env{Division: &pecanv1.Division{NumStreams: 40, Group: 16}}, want: 40, keyed: true},
		"a position without groups":        {env: split.Env{Division: &pecanv1.Division{NumStreams: 40}}, want: 40, keyed: true},
		"a position of a smaller plan":     {env: split.Env{Division: &pecanv1.Division{NumStreams: 16}, Profile: measured}, want: 16, keyed: true},
		"a cache in groups":                {env: split.Env{CacheStreams: 60}, want: 60, keyed: true},
		"a mode that promises less":        {mode: pecanv1.Mode_MODE_AT_LEAST_ONCE, streams: 40, want: 40},
		"deterministic mode in one stream": {mode: pecanv1.Mode_MODE_DETERMINISTIC, streams: 1, want: 1, keyed: true},
	} {
		t.Run(name, func(t *testing.T) {
			g, err := graph.Parse(long, graph.Limits{})
			if err != nil {
				t.Fatal(err)
			}
			mode := cmp.Or(c.mode, graphtest.ExactlyOnce)
			p, err := split.MakePlan(g, &pecanv1.JobOptions{Mode: mode, Streams: c.streams}, c.env)
			if err != nil {
				t.Fatal(err)
			}
			if p.NumStreams != c.want || len(p.Keyed) > 0 != c.keyed {
				t.Errorf("%d streams, keyed are %v: %s", p.NumStreams, p.Keyed, p.StreamsWhy)
			}
			if c.keyed && p.Determinism != pecanv1.DeterminismClass_DETERMINISM_CLASS_B {
				t.Errorf("class %v", p.Determinism)
			}
		})
	}
}

// The dispatcher keeps streams open together if a shuffle mixes them. In mode deterministic it does so anyway. Splits of one
// element mix without that, and small epochs do not pay for it.
func TestAPlanSaysWhichStreamsAreOpenTogetherToMix(t *testing.T) {
	exact, inTurn := graphtest.ExactlyOnce, pecanv1.Mode_MODE_DETERMINISTIC
	for _, c := range []struct {
		graph     string
		streams   int32
		fileBytes int64
		mode      pecanv1.Mode
		group     int32
		want      bool
	}{
		{"shuffle_fixed", 17, 0, exact, 16, true}, {"shuffle_fixed", 16, 0, exact, 0, false}, {"noise", 20, 0, exact, 16, false},
		{"records", 8, 1 << 30, exact, 0, true}, {"records", 8, 1 << 20, exact, 0, false}, {"records", 2, 1 << 28, exact, 0, true},
		{"records", 8, 1 << 30, inTurn, 0, false},
	} {
		plan := planOf(t, c.graph, &pecanv1.JobOptions{Mode: c.mode, Streams: c.streams}, split.Env{FileBytes: c.fileBytes})
		if plan.NumStreams != c.streams || plan.Shuffled != c.want || plan.Group != c.group {
			t.Errorf("%s of %d bytes in %d streams: shuffled %v, groups of %d", c.graph, c.fileBytes, plan.NumStreams, plan.Shuffled, plan.Group)
		}
		other := proto.Clone(plan).(*pecanv1.Plan)
		other.Shuffled = !plan.Shuffled
		if split.PlanHash(other) != plan.Hash {
			t.Error("the hash of the plan depends on it")
		}
	}
}
