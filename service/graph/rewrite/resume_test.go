package rewrite_test

import (
	"slices"
	"strings"
	"testing"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/graph/graphtest"
	"github.com/pecan-ml/pecan/service/graph/rewrite"
	"github.com/pecan-ml/pecan/service/graph/split"
)

func TestTheResumeStrategyOfAPlan(t *testing.T) {
	const again, partly, start = pecanv1.Resume_RECOMPUTE, pecanv1.Resume_PARTIAL, pecanv1.Resume_SEEK
	const once, ordered = pecanv1.Mode_MODE_EXACTLY_ONCE, pecanv1.Mode_MODE_DETERMINISTIC
	for _, c := range []struct {
		name        string
		mode        pecanv1.Mode
		strategy    pecanv1.Resume_Strategy
		above       string
		checkpoints bool
	}{
		{"range", once, start, "RangeDataset/_3", true},
		{"slices", ordered, start, "TensorSliceDataset/_3", true},
		{"options", once, start, "RangeDataset/_3", true},
		{"lookup", ordered, start, "RangeDataset/_3", true},
		{"zip", ordered, start, "ShuffleDatasetV3/_8 ShuffleDatasetV3/_17", true},
		{"map_batch", ordered, partly, "ShuffleDatasetV3/_10", true},
		{"records", once, partly, "ShuffleDatasetV3/_7", true},
		{"filter_batch", once, partly, "FilterDataset/_4", true},
		// A stream with a closing batch has two iterators.
		{"filter_batch_map", once, partly, "FilterDataset/_4", false},
		{"endless", once, again, "", true},
		// Random values may differ between runs, unless the mode promises values.
		{"noise", once, start, "RangeDataset/_3", true},
		{"seed_generator", once, start, "RangeDataset/_3", true},
		// Random values that select elements follow from the element's index.
		{"noise_filter", once, again, "", true},
		{"noise", ordered, start, "RangeDataset/_3", true},
		// A variable that counts calls.
		{"counter", once, again, "", false},
		{"cache_file", once, again, "", false},
	} {
		p, err := split.MakePlan(graphtest.Parse(t, c.name), &pecanv1.JobOptions{Mode: c.mode}, split.Env{})
		if err != nil {
			t.Fatal(err)
		}
		r := p.GetResume()
		if r.GetStrategy() != c.strategy || strings.Join(r.GetSkipNodes(), " ") != c.above || r.GetCheckpoints() != c.checkpoints {
			t.Errorf("%s: %v", c.name, r)
		}
		if last := p.GetReasons()[len(p.GetReasons())-1]; !strings.HasPrefix(last, "A stream that moves to another worker ") {
			t.Errorf("%s: the reasons end with %q", c.name, last)
		}
	}
}

func TestThePlanHashExcludesTheResumeStrategy(t *testing.T) {
	g := graphtest.Parse(t, "map_batch")
	p := graphtest.Plan(t, g, graphtest.Once, 0)
	p.Resume, p.Reasons = nil, nil
	if _, err := rewrite.Instantiate(g, p, rewrite.At{Mode: graphtest.Once.Mode, Start: 2}); err != nil {
		t.Errorf("a plan of a version without resume strategies: %v", err)
	}
}

func TestAStreamSkipsElementsAtTheSource(t *testing.T) {
	def := graphtest.Stream(t, "range", rewrite.At{Stream: 3, Start: 5})
	skip := graphtest.OfOp(t, def, "SkipDataset")
	if below := graphtest.Named(t, def, skip.GetInput()[0]); below.GetOp() != "RangeDataset" || graphtest.Number(t, def, skip, 1) != 5 {
		t.Errorf("%d elements of a %s are skipped", graphtest.Number(t, def, skip, 1), below.GetOp())
	}
	if graphtest.HasOp(graphtest.Stream(t, "range", rewrite.At{Stream: 3}), "SkipDataset") {
		t.Error("a stream that begins at 0 skips elements")
	}
}

func TestOnlyTheFirstOfTwoGraphsSkipsElements(t *testing.T) {
	g := graphtest.Parse(t, "filter_batch_map")
	p := graphtest.Plan(t, g, graphtest.Once, 0)
	graphs, err := rewrite.Instantiate(g, p, rewrite.At{Mode: graphtest.Once.Mode, Start: 3})
	if err != nil {
		t.Fatal(err)
	}
	first := graphtest.Decode(t, graphs.A)
	if skip := graphtest.OfOp(t, first, "SkipDataset"); graphtest.Number(t, first, skip, 1) != 3*p.GetBatchRows() {
		t.Errorf("%d rows are skipped for 3 batches of %d", graphtest.Number(t, first, skip, 1), p.GetBatchRows())
	}
	if graphtest.HasOp(graphtest.Decode(t, graphs.B), "SkipDataset") {
		t.Error("the second graph skips elements too")
	}
}

// A random op without a key restarts in a stream that begins at an index. With the same seed it would repeat the values of
// the first elements.
func TestAStreamFromAnIndexDrawsOtherValuesThanFromItsStart(t *testing.T) {
	g := graphtest.Parse(t, "noise")
	plan := graphtest.Plan(t, g, &pecanv1.JobOptions{Mode: graphtest.ExactlyOnce, Streams: 1}, 0)
	seeds := func(start uint64) []int64 {
		var out []int64
		graphs, err := rewrite.Instantiate(g, plan, rewrite.At{Start: start, Mode: graphtest.ExactlyOnce})
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range graphtest.Decode(t, graphs.A).GetLibrary().GetFunction() {
			for _, n := range f.GetNodeDef() {
				if strings.HasPrefix(n.GetOp(), "RandomUniform") {
					out = append(out, n.GetAttr()["seed"].GetI(), n.GetAttr()["seed2"].GetI())
				}
			}
		}
		return out
	}
	if first, later := seeds(0), seeds(7); len(first) == 0 || slices.Equal(first, later) {
		t.Error("both graphs have the same seeds")
	}
	if !slices.Equal(seeds(7), seeds(7)) {
		t.Error("equal indexes give different graphs")
	}
}
