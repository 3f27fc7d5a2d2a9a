package split_test

import (
	"strings"
	"testing"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/graph/graphtest"
	"github.com/pecan-ml/pecan/service/graph/split"
)

func TestTheDeterminismClassFollowsFromGraphAndMode(t *testing.T) {
	for name, want := range map[string]struct {
		graph string
		mode  pecanv1.Mode
		class pecanv1.DeterminismClass
	}{
		"nothing random":                                        {"range", graphtest.ExactlyOnce, pecanv1.DeterminismClass_DETERMINISM_CLASS_B},
		"an unseeded shuffle gets a seed":                       {"map_batch", graphtest.ExactlyOnce, pecanv1.DeterminismClass_DETERMINISM_CLASS_B},
		"random values drawn in sequence":                       {"noise_sequential", graphtest.ExactlyOnce, pecanv1.DeterminismClass_DETERMINISM_CLASS_B},
		"random values drawn in parallel":                       {"noise", graphtest.ExactlyOnce, pecanv1.DeterminismClass_DETERMINISM_CLASS_B},
		"deterministic mode puts them in order":                 {"noise", graphtest.Deterministic, pecanv1.DeterminismClass_DETERMINISM_CLASS_B},
		"random values that decide the count are put in order":  {"noise_filter", graphtest.ExactlyOnce, pecanv1.DeterminismClass_DETERMINISM_CLASS_B},
		"not in a mode that does not need it":                   {"noise_filter", graphtest.AtLeastOnce, pecanv1.DeterminismClass_DETERMINISM_CLASS_C},
		"random values in interleaved datasets":                 {"nested_shuffle", graphtest.ExactlyOnce, pecanv1.DeterminismClass_DETERMINISM_CLASS_A},
		"deterministic mode reads these one after another":      {"nested_shuffle", graphtest.Deterministic, pecanv1.DeterminismClass_DETERMINISM_CLASS_B},
		"parallel steps inside functions":                       {"nested_parallel", graphtest.ExactlyOnce, pecanv1.DeterminismClass_DETERMINISM_CLASS_A},
		"deterministic mode puts these in order too":            {"nested_parallel", graphtest.Deterministic, pecanv1.DeterminismClass_DETERMINISM_CLASS_B},
		"random values that decide the count inside a function": {"nested_choice", graphtest.ExactlyOnce, pecanv1.DeterminismClass_DETERMINISM_CLASS_B},
		"a generator's state in sequence":                       {"seed_generator", graphtest.ExactlyOnce, pecanv1.DeterminismClass_DETERMINISM_CLASS_B},
		"a generator's state in parallel":                       {"seed_generator_in_parallel", graphtest.ExactlyOnce, pecanv1.DeterminismClass_DETERMINISM_CLASS_A},
		"deterministic mode draws one after another":            {"seed_generator_in_parallel", graphtest.Deterministic, pecanv1.DeterminismClass_DETERMINISM_CLASS_B},
		"a tf.random.Generator":                                 {"generator_state", graphtest.Deterministic, pecanv1.DeterminismClass_DETERMINISM_CLASS_B},
		"a variable that counts":                                {"counter", graphtest.Deterministic, pecanv1.DeterminismClass_DETERMINISM_CLASS_B},
		"a variable that counts in parallel":                    {"counter_in_parallel", graphtest.ExactlyOnce, pecanv1.DeterminismClass_DETERMINISM_CLASS_A},
		"deterministic mode counts one after another":           {"counter_in_parallel", graphtest.Deterministic, pecanv1.DeterminismClass_DETERMINISM_CLASS_B},
		"a variable that decides the count":                     {"filtered_counter", graphtest.ExactlyOnce, pecanv1.DeterminismClass_DETERMINISM_CLASS_B},
		"the time":                                              {"clock", graphtest.ExactlyOnce, pecanv1.DeterminismClass_DETERMINISM_CLASS_A},
		"the time, where it decides the count":                  {"clock_filter", graphtest.AtMostOnce, pecanv1.DeterminismClass_DETERMINISM_CLASS_C},
		"a cache inside a function":                             {"nested_cache", graphtest.ExactlyOnce, pecanv1.DeterminismClass_DETERMINISM_CLASS_B},
		"files listed while it runs":                            {"listed", graphtest.ExactlyOnce, pecanv1.DeterminismClass_DETERMINISM_CLASS_B},
		"a snapshot":                                            {"snapshot", graphtest.AtLeastOnce, pecanv1.DeterminismClass_DETERMINISM_CLASS_C},
		"unordered elements in a mode that allows them":         {"options", graphtest.AtLeastOnce, pecanv1.DeterminismClass_DETERMINISM_CLASS_C},
		"unordered elements in a mode that forbids them":        {"options", graphtest.ExactlyOnce, pecanv1.DeterminismClass_DETERMINISM_CLASS_B},
	} {
		t.Run(name, func(t *testing.T) {
			p := graphtest.Plan(t, graphtest.Parse(t, want.graph), &pecanv1.JobOptions{Mode: want.mode}, 0)
			if p.Determinism != want.class || p.Mode != want.mode {
				t.Errorf("class %v in mode %v, want %v", p.Determinism, p.Mode, want.class)
			}
		})
	}
}

func TestAGraphThatCannotKeepTheModesPromiseIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		graph   string
		mode    pecanv1.Mode
		message string
		// weaker is the mode in which the job runs if the user allows a weaker one.
		weaker pecanv1.Mode
	}{
		"values that no seed decides":      {"clock", graphtest.Deterministic, "MapDataset", graphtest.ExactlyOnce},
		"elements that no seed decides":    {"clock_filter", graphtest.ExactlyOnce, "FilterDataset", graphtest.AtLeastOnce},
		"the same, in order":               {"clock_filter", graphtest.Deterministic, "FilterDataset", graphtest.AtLeastOnce},
		"a list of files that may grow":    {"listed", graphtest.Deterministic, "List the files in the trainer", graphtest.ExactlyOnce},
		"a snapshot in exactly-once":       {"snapshot", graphtest.ExactlyOnce, "SnapshotDatasetV2", graphtest.AtLeastOnce},
		"a snapshot in deterministic mode": {"snapshot", graphtest.Deterministic, "SnapshotDatasetV2", graphtest.AtLeastOnce},
		"values drawn in parallel":         {"noise", graphtest.ExactlyOnce, "", graphtest.ExactlyOnce},
	} {
		t.Run(name, func(t *testing.T) {
			g := graphtest.Parse(t, c.graph)
			opts := &pecanv1.JobOptions{Mode: c.mode}
			p, err := split.MakePlan(g, opts, split.Env{})
			if refused := c.message != ""; refused != reason.Is(err, reason.Nondeterministic) {
				t.Fatalf("plan %v, error %v", p, err)
			}
			if checked := split.CheckMode(g, opts); c.message != "" && (checked == nil || checked.Error() != err.Error() || !strings.Contains(err.Error(), c.message)) {
				t.Errorf("CheckMode returns %v, MakePlan %v, want %q in both", checked, err, c.message)
			}
			opts.AllowNondeterministic = true
			if err := split.CheckMode(g, opts); err != nil {
				t.Errorf("refused although the user allows a weaker mode: %v", err)
			}
			p = graphtest.Plan(t, g, opts, 0)
			said := strings.Contains(strings.Join(p.Reasons, " "), "as the user allows")
			if p.Mode != c.weaker || said != (c.weaker != c.mode) {
				t.Errorf("runs in mode %v, want %v: %v", p.Mode, c.weaker, p.Reasons)
			}
		})
	}
}
