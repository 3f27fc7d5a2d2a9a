package split_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/graphtest"
	"github.com/pecan-ml/pecan/service/graph/split"
)

func planned(t *testing.T, g *graph.Graph, opts *pecanv1.JobOptions, env split.Env) *pecanv1.Plan {
	t.Helper()
	plan, err := split.MakePlan(g, opts, env)
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

// The steps between a source and a cached step, as docs/design/0015-autocache.md lists them, and what else prevents parts.
func TestStepsThatOnlyOrderAreKnown(t *testing.T) {
	for name, want := range map[string]struct {
		// ordering are the ops of the steps that only order, and late counts the shuffles that run later; why is why there are no
		// parts.
		ordering []string
		late     int
		why      string
	}{
		"parts_list":                      {ordering: []string{"ShuffleDatasetV3", "InterleaveDataset"}},
		"parts_list_otherwise":            {ordering: []string{"ShuffleDatasetV3", "InterleaveDataset"}},
		"parts_list_filtered":             {ordering: []string{"ShuffleDatasetV3", "InterleaveDataset"}},
		"parts_records_shuffled":          {ordering: []string{"InterleaveDataset"}, late: 1},
		"parts_records_shuffled_filtered": {ordering: []string{"InterleaveDataset"}, late: 1},
		"cached_records":                  {ordering: []string{"InterleaveDataset"}},
		"cached":                          {},
		"cached_shuffled":                 {},
		"cached_repeated":                 {},
		"cached_twice":                    {},
		"cached_named_files":              {},
		"parts_batches":                   {},
		"cached_noise":                    {why: "draws random values, in another way in each stream"},
		"parts_taken":                     {why: "the length of the source is not known"},
	} {
		g := graphtest.Parse(t, name)
		plan := planned(t, g, &pecanv1.JobOptions{Mode: graphtest.ExactlyOnce, Streams: 2}, split.Env{})
		parts, why := plan.GetCache().GetParts(), strings.Join(plan.GetReasons(), " ")
		if (parts > 0) != (want.why == "") || !strings.Contains(why, want.why) || (plan.GetCut().GetPart() > 0) != (parts > 0) {
			t.Errorf("%s has %d parts; %q", name, parts, plan.GetReasons())
		}
		var ordering []string
		for _, node := range plan.GetCut().GetOrdering() {
			ordering = append(ordering, g.Node(node).GetOp())
		}
		if !slices.Equal(ordering, want.ordering) {
			t.Errorf("%s: %v only order, want %v", name, ordering, want.ordering)
		}
		if late := plan.GetCut().GetLateShuffles(); len(late) != want.late || (plan.GetCut().GetLateAfter() == plan.GetCache().GetNode()) != (want.late > 0) {
			t.Errorf("%s: %v run after %q", name, late, plan.GetCut().GetLateAfter())
		}
		if plan.GetCache() != nil && parts > 0 && plan.GetCache().GetSeeded() {
			t.Errorf("%s: the seed is in the key", name)
		}
	}
}

// Every part is in one stream, whatever S is, and all jobs have the same parts and the same key.
func TestEveryDivisionHasTheSameParts(t *testing.T) {
	for _, name := range []string{"cached", "cached_shuffled", "parts_list", "parts_batches", "parts_records_shuffled"} {
		g := graphtest.Parse(t, name)
		first := planned(t, g, &pecanv1.JobOptions{Mode: graphtest.ExactlyOnce}, split.Env{})
		for _, streams := range []uint32{2, 3, 7, 16, 40, 90} {
			for _, env := range []split.Env{{}, {FileBytes: 5000}, {Profile: []*pecanv1.NodeMetrics{{Node: "x", SelfCpuS: 5}}}} {
				plan := planned(t, g, &pecanv1.JobOptions{Mode: graphtest.ExactlyOnce, Streams: int32(streams), Seed: 9}, env)
				parts := plan.GetCache().GetParts()
				if parts < 2 || parts != first.GetCache().GetParts() || plan.GetCache().GetKey() != first.GetCache().GetKey() {
					t.Errorf("%s with %d streams: %d parts under %s, want %d under %s", name, streams, parts, plan.GetCache().GetKey(), first.GetCache().GetParts(), first.GetCache().GetKey())
				}
				for epoch := range uint64(2) {
					seen := map[uint32]int{}
					for stream := range int(plan.GetNumStreams()) {
						mine := split.PartsOf(plan, plan.GetCache(), split.EpochStream{Stream: stream, Epoch: epoch, Seed: 9})
						if len(mine) == 0 {
							t.Errorf("%s with %d streams: stream %d has no part", name, streams, stream)
						}
						for _, part := range mine {
							seen[part]++
						}
					}
					for part := range parts {
						if seen[part] != 1 || len(seen) != int(parts) {
							t.Fatalf("%s with %d streams: part %d is in %d streams, and %d parts are in one", name, streams, part, seen[part], len(seen))
						}
					}
				}
			}
		}
	}
}

func TestWithoutPartsOfTheSourceEachStreamIsOnePart(t *testing.T) {
	plan := planned(t, graphtest.Parse(t, "cached_noise"), &pecanv1.JobOptions{Mode: graphtest.ExactlyOnce}, split.Env{})
	if got := split.PartsOf(plan, plan.GetCache(), split.EpochStream{Stream: 3}); !slices.Equal(got, []uint32{3}) {
		t.Errorf("stream 3 has the parts %v", got)
	}
}

// The order of the parts in a stream is a permutation that the key decides.
func TestMixedSharesHaveTheSameBlocks(t *testing.T) {
	for _, share := range []split.Share{{First: 2, Step: 3, Stop: 1 << 62}, {First: 5, Step: 1, Stop: 9}, {First: 8, Step: 4, Stop: 5}} {
		plain := share.Blocks(20)
		orders := map[string]bool{}
		for key := range uint64(8) {
			share.Mixed, share.Key = true, key
			mixed := share.Blocks(20)
			orders[fmt.Sprint(mixed)] = true
			if slices.Sort(mixed); !slices.Equal(mixed, plain) {
				t.Errorf("%+v: the blocks %v, want %v in another order", share, mixed, plain)
			}
		}
		if len(plain) > 2 && len(orders) < 3 {
			t.Errorf("%+v: every key gives the orders %v", share, orders)
		}
	}
}
