package rewrite_test

import (
	"testing"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/graphtest"
	"github.com/pecan-ml/pecan/service/graph/rewrite"
	"github.com/pecan-ml/pecan/service/graph/split"
)

// markedGraph parses a graph in which the steps of pecan.cache() have another user name.
func markedGraph(t *testing.T, name, mark string) *graph.Graph {
	t.Helper()
	g, err := graph.Parse(graphtest.Marked(t, name, mark), graph.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// withoutNames removes the user names of steps from a stream's graph.
func withoutNames(t *testing.T, data []byte) string {
	t.Helper()
	def := graphtest.Decode(t, data)
	for _, n := range def.GetNode() {
		delete(n.Attr, "metadata")
	}
	plain, err := proto.MarshalOptions{Deterministic: true}.Marshal(def)
	if err != nil {
		t.Fatal(err)
	}
	return string(plain)
}

// streamsOf writes the graphs of all streams of an epoch, without the user names of steps.
func streamsOf(t *testing.T, g *graph.Graph, plan *pecanv1.Plan, epoch uint64) (graphs []string) {
	t.Helper()
	for s := range split.LastStream(plan) + 1 {
		written, err := rewrite.Instantiate(g, plan, rewrite.At{Stream: s, Epoch: epoch, Seed: 9, Mode: plan.Mode, Source: 4, Relay: 5, Threads: 1})
		if err != nil {
			t.Fatal(err)
		}
		graphs = append(graphs, withoutNames(t, written.A))
		if written.B != nil {
			graphs = append(graphs, withoutNames(t, written.B))
		}
	}
	return graphs
}

func equalStreams(a, b []string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// A candidate changes the division of a dataset and the graph of a stream only if its elements may be stored by parts.
func TestACandidateChangesNothingButTheParts(t *testing.T) {
	byParts := map[string]bool{"cached": true, "cached_shuffled": true, "cached_records": true, "cached_repeated": true, "cached_twice": true, "cached_endless": true}
	for _, name := range []string{
		"cached", "cached_shuffled", "cached_noise", "cached_noise_batched", "cached_records", "cached_repeated", "cached_before_take", "cached_before_zip",
		"cached_filter_batch", "cached_endless", "cached_twice", "cached_noise_filter_batch",
	} {
		for _, mode := range []pecanv1.Mode{graphtest.ExactlyOnce, graphtest.Deterministic} {
			marked, plain := markedGraph(t, name, "pecan_cache_candidate_here"), markedGraph(t, name, "")
			options := &pecanv1.JobOptions{Mode: mode}
			plans := []*pecanv1.Plan{graphtest.Plan(t, marked, options, 0), graphtest.Plan(t, plain, options, 0)}
			if byParts[name] != (plans[0].GetCut().GetPart() > 0) || plans[1].GetCut().GetPart() > 0 {
				t.Errorf("%s in mode %v: the plan is %v", name, mode, plans[0])
			}
			if byParts[name] {
				continue
			}
			if !equalStreams(streamsOf(t, marked, plans[0], 1), streamsOf(t, plain, plans[1], 1)) {
				t.Errorf("%s in mode %v: a mark changes the streams", name, mode)
			}
			for _, p := range plans {
				p.Fingerprint, p.Hash, p.OrderHash, p.CacheCandidates = "", "", "", nil
			}
			if !proto.Equal(plans[0], plans[1]) {
				t.Errorf("%s in mode %v: a mark changes the plan %v to %v", name, mode, plans[1], plans[0])
			}
		}
	}
	if marked, plain := markedGraph(t, "cached", "pecan_cache_candidate_here"), markedGraph(t, "cached", "pecan_cache_candidate_there"); marked.Fingerprint() == plain.Fingerprint() {
		t.Error("datasets whose candidates have different names are stored as one")
	}
}

// Upstream of a mark that freezes, the epoch changes nothing, whatever may be cached.
func TestAFreezingMarkRepeatsTheFirstEpoch(t *testing.T) {
	for name, mark := range map[string]string{
		"cached_noise": "pecan_cache_frozen_here", "cached_noise_batched": "pecan_cache_frozen_here", "cached_noise_filter_batch": "pecan_cache_frozen_here",
	} {
		g := markedGraph(t, name, mark)
		plan := graphtest.Plan(t, g, graphtest.Once, 0)
		if !equalStreams(streamsOf(t, g, plan, 0), streamsOf(t, g, plan, 5)) {
			t.Errorf("%s: random steps before the mark draw other values in another epoch", name)
		}
		free := markedGraph(t, name, "pecan_cache_candidate_here")
		plan = graphtest.Plan(t, free, graphtest.Once, 0)
		if equalStreams(streamsOf(t, free, plan, 0), streamsOf(t, free, plan, 5)) {
			t.Errorf("%s: a mark that does not freeze repeats the values of the first epoch", name)
		}
	}
	g := markedGraph(t, "cached_shuffled", "pecan_cache_frozen_here")
	plan := graphtest.Plan(t, g, graphtest.Once, 0)
	if equalStreams(streamsOf(t, g, plan, 0), streamsOf(t, g, plan, 5)) {
		t.Error("random steps after the mark draw the same values in another epoch")
	}
}

// cache="off" passes elements on at pecan.cache(), and the elements stay the same.
func TestCacheOffKeepsTheStreams(t *testing.T) {
	for _, name := range []string{"cached", "cached_noise", "cached_shuffled", "cached_records", "cached_repeated", "cached_twice"} {
		g := graphtest.Parse(t, name)
		on, off := graphtest.Plan(t, g, graphtest.Once, 0), graphtest.Plan(t, g, &pecanv1.JobOptions{Mode: graphtest.ExactlyOnce, Cache: pecanv1.Cache_CACHE_OFF}, 0)
		if off.Cache != nil || on.Cache == nil || on.Hash != off.Hash {
			t.Errorf("%s: plan %v, and with off %v", name, on, off)
		}
		if !equalStreams(streamsOf(t, g, on, 3), streamsOf(t, g, off, 3)) {
			t.Errorf("%s: off changes the streams", name)
		}
		graphs, err := rewrite.Instantiate(g, off, rewrite.At{Stream: 0, Mode: off.Mode, Source: -1, Cached: off.GetCache(), CacheSource: 77})
		if err != nil || graphs.UpstreamOfCache != nil {
			t.Errorf("%s: with off, a stream is divided at its cached step: %v", name, err)
		}
	}
}

// Saved positions and decisions on orders name shares. Groups read the same ones with a mark that freezes, with and without
// the cache.
func TestSharesDoNotDependOnTheChoiceOfCaches(t *testing.T) {
	data := graphtest.Changed(t, "cached_shuffled", func(def *tf.GraphDef) {
		for _, n := range def.GetNode() {
			if v := n.GetAttr()["value"].GetTensor(); len(v.GetInt64Val()) == 1 && v.GetInt64Val()[0] == 300 {
				v.Int64Val[0] = 3000
			}
		}
	})
	g, err := graph.Parse(data, graph.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	var plans []*pecanv1.Plan
	for _, cache := range []pecanv1.Cache{pecanv1.Cache_CACHE_CANDIDATES, pecanv1.Cache_CACHE_OFF} {
		plans = append(plans, graphtest.Plan(t, g, &pecanv1.JobOptions{Mode: graphtest.ExactlyOnce, Streams: 40, Cache: cache}, 0))
	}
	if plans[0].GetGroup() == 0 {
		t.Fatalf("the plan has no groups: %v", plans[0])
	}
	for _, epoch := range []uint64{0, 4} {
		if !equalStreams(streamsOf(t, g, plans[0], epoch), streamsOf(t, g, plans[1], epoch)) {
			t.Errorf("epoch %d: off changes which shares the streams read", epoch)
		}
	}
}
