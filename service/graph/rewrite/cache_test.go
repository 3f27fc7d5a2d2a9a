package rewrite_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/graphtest"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/rewrite"
)

func cachePlan(t *testing.T, name string) *pecanv1.CachePlan {
	t.Helper()
	return graphtest.Plan(t, graphtest.Parse(t, name), graphtest.Once, 0).GetCache()
}

func TestACachedStepIsPlanned(t *testing.T) {
	for name, want := range map[string]struct{ seeded, packed bool }{
		"cached": {false, true}, "cached_shuffled": {false, true}, "cached_noise": {true, true}, "cached_records": {false, false}, "cached_repeated": {false, true},
		"cached_twice": {false, true},
	} {
		got := cachePlan(t, name)
		if got == nil || got.GetSeeded() != want.seeded || got.GetPacked() != want.packed || len(got.GetKey()) != 64 {
			t.Errorf("%s: %v, want %+v; %v", name, got, want, graphtest.Plan(t, graphtest.Parse(t, name), graphtest.Once, 0).GetReasons())
		}
	}
	if got := cachePlan(t, "uncached"); got != nil {
		t.Errorf("the user's take(-1) counts as cache(): %v", got)
	}
}

// Elements that cannot be cached are computed in every epoch.
func TestThePlanSaysWhyACachedStepHasNoEffect(t *testing.T) {
	for name, want := range map[string]string{
		"cached_before_filter_take": "it comes before TakeDataset", "cached_before_shorter_zip": "no other input is shorter",
		"cached_endless": "does nothing", "cached_clock": "other values in each run", "cached_listed": "looks for files while it runs", "cached_unversioned_records": "the versions of s3://",
	} {
		p := graphtest.Plan(t, graphtest.Parse(t, name), graphtest.Once, 0)
		if p.GetCache() != nil || !strings.Contains(strings.Join(p.GetReasons(), " "), want) {
			t.Errorf("%s: %v, the reasons %q do not contain %q", name, p.GetCache(), p.GetReasons(), want)
		}
	}
	off := graphtest.Plan(t, graphtest.Parse(t, "cached"), &pecanv1.JobOptions{Mode: pecanv1.Mode_MODE_OFF}, 0)
	if off.GetCache() != nil || !strings.Contains(strings.Join(off.GetReasons(), " "), "cache() does nothing") {
		t.Errorf("sharding off: %v", off.GetReasons())
	}
	twice := graphtest.Plan(t, graphtest.Parse(t, "cached_twice"), graphtest.Once, 0)
	if !strings.Contains(strings.Join(twice.GetReasons(), " "), "The dataset has 2 cache() steps") {
		t.Errorf("two steps: %v", twice.GetReasons())
	}
}

func TestTheCacheKeyFollowsFromTheElements(t *testing.T) {
	key := cachePlan(t, "cached").GetKey()
	if cachePlan(t, "cached").GetKey() != key || cachePlan(t, "cached_repeated").GetKey() != cachePlan(t, "cached_shuffled").GetKey() {
		t.Error("the key depends on steps after the cached step")
	}
	if cachePlan(t, "cached_repeated").GetKey() == key {
		t.Error("streams cut by elements and in blocks have equal keys")
	}
	if cachePlan(t, "cached_one_more").GetKey() == key || cachePlan(t, "cached_noise").GetKey() == key {
		t.Error("other elements have the same key")
	}
	if cachePlan(t, "parts_list").GetKey() != cachePlan(t, "parts_list_otherwise").GetKey() {
		t.Error("the key depends on how steps order that only order")
	}
	if cachePlan(t, "parts_list").GetKey() == cachePlan(t, "parts_list_filtered").GetKey() {
		t.Error("filtered elements have the same key")
	}
	drawn := cachePlan(t, "cached_noise")
	if !drawn.GetSeeded() || drawn.GetKey() != cachePlan(t, "cached_noise_batched").GetKey() {
		t.Error("the key of drawn values depends on steps after the cached step")
	}
	// Seeds follow from the names of steps. A fingerprint does not.
	data := graphtest.Read(t, "cached_noise")
	renamed, err := graph.Parse(bytes.ReplaceAll(data, []byte("MapDataset/_4"), []byte("MapDataset/_x")), graph.Limits{})
	if err != nil || renamed.Fingerprint() != graphtest.Parse(t, "cached_noise").Fingerprint() {
		t.Fatal("other names are another dataset", err)
	}
	if graphtest.Plan(t, renamed, graphtest.Once, 0).GetCache().GetKey() == drawn.GetKey() {
		t.Error("the key of drawn values does not depend on the names that their seeds depend on")
	}
	ordered := graphtest.Plan(t, graphtest.Parse(t, "cached"), &pecanv1.JobOptions{Mode: pecanv1.Mode_MODE_DETERMINISTIC}, 0)
	if ordered.GetCache().GetKey() == key {
		t.Error("modes with different orders have equal keys")
	}
	if graphtest.Parse(t, "cached").Fingerprint() == graphtest.Parse(t, "uncached").Fingerprint() {
		t.Error("datasets with and without the mark have equal fingerprints, so either of them would be stored")
	}
}

// The upstream graph has the source and the cut. The downstream graph reads from PecanPull instead.
func TestAStreamIsDividedAtItsCachedStep(t *testing.T) {
	g := graphtest.Parse(t, "cached")
	p := graphtest.Plan(t, g, graphtest.Once, 0)
	for _, start := range []uint64{0, 2} {
		graphs, err := rewrite.Instantiate(g, p, rewrite.At{Stream: 1, Mode: graphtest.Once.Mode, Source: -1, Cached: p.GetCache(), CacheSource: 77, Start: start})
		if err != nil {
			t.Fatal(err)
		}
		part := partGraphs(t, g, p, rewrite.At{Stream: 1, Mode: graphtest.Once.Mode, Source: -1, Start: start}, graphs.Parts[0])
		below, above := graphtest.Decode(t, part.UpstreamOfCache), graphtest.Decode(t, graphs.A)
		if graphtest.HasOp(below, "BatchDatasetV2") || !graphtest.HasOp(below, "MapDataset") || graphtest.HasOp(below, "TakeDataset") || graphtest.HasOp(below, "SkipDataset") {
			t.Errorf("upstream graph, from element %d: %v", start, opsOf(below))
		}
		if graphtest.HasOp(above, "TakeDataset") || graphtest.HasOp(above, "TensorSliceDataset") || !graphtest.HasOp(above, "UnbatchDataset") || !graphtest.HasOp(above, "BatchDatasetV2") || graphtest.HasOp(above, "SkipDataset") != (start > 0) {
			t.Errorf("downstream graph, from element %d: %v", start, opsOf(above))
		}
		mark := p.GetCache().GetNode()
		if from := graphs.Nodes.Passed[mark]; graphs.Nodes.Ops[mark] != "TakeDataset" || graphs.Nodes.Ops[from] != "MapDataset" {
			t.Errorf("the mark passes the elements of %q on: %v", from, graphs.Nodes)
		}
		pulls := 0
		for _, f := range above.GetLibrary().GetFunction() {
			for _, n := range f.GetNodeDef() {
				if n.GetOp() == rewrite.PullOp {
					pulls++
					if got := n.GetAttr()["source"].GetI(); got != 77 {
						t.Errorf("the handle is %d", got)
					}
				}
			}
		}
		if pulls != 1 {
			t.Errorf("%d sources in the downstream graph", pulls)
		}
	}
	plain, err := rewrite.Instantiate(g, p, rewrite.At{Stream: 1, Mode: graphtest.Once.Mode, Source: -1})
	if err != nil || plain.UpstreamOfCache != nil || !graphtest.HasOp(graphtest.Decode(t, plain.A), "TensorSliceDataset") {
		t.Errorf("a stream without a cached step is divided: %v", err)
	}
}

// partGraphs writes the graph of one part of a stream.
func partGraphs(t *testing.T, g *graph.Graph, plan *pecanv1.Plan, at rewrite.At, part uint32) *rewrite.StreamGraphs {
	t.Helper()
	at.Cached, at.Part = plan.GetCache(), &part
	graphs, err := rewrite.Instantiate(g, plan, at)
	if err != nil || graphs.UpstreamOfCache == nil {
		t.Fatalf("part %d: %v", part, err)
	}
	return graphs
}

func opsOf(def *tf.GraphDef) (ops []string) {
	for _, n := range def.GetNode() {
		if n.GetOp() != "Const" {
			ops = append(ops, n.GetOp())
		}
	}
	return ops
}

// The epoch changes random values only after the cached step, with and without a cache.
func TestTheEpochDoesNotChangeStepsBeforeACachedStep(t *testing.T) {
	g := graphtest.Parse(t, "cached_noise")
	p := graphtest.Plan(t, g, graphtest.Once, 0)
	write := func(epoch uint64, keep bool) *rewrite.StreamGraphs {
		at := rewrite.At{Stream: 1, Epoch: epoch, Seed: 9, Mode: graphtest.Once.Mode, Source: -1, CacheSource: 7}
		if keep {
			at.Cached = p.GetCache()
		}
		graphs, err := rewrite.Instantiate(g, p, at)
		if err != nil {
			t.Fatal(err)
		}
		return graphs
	}
	if string(write(0, true).UpstreamOfCache) != string(write(5, true).UpstreamOfCache) || string(write(0, false).A) != string(write(5, false).A) {
		t.Error("random steps before the cached step draw other values in another epoch")
	}
	other := graphtest.Parse(t, "cached_shuffled")
	p = graphtest.Plan(t, other, graphtest.Once, 0)
	g = other
	if string(write(0, true).A) == string(write(5, true).A) {
		t.Error("random steps after the cached step draw the same values in another epoch")
	}
}

// The closing stream joins the remainders of other streams, so it has no cached step. With steps after the
// batch, a stream has three graphs.
func TestACachedStepBeforeAJoinedBatch(t *testing.T) {
	g := graphtest.Parse(t, "cached_records")
	p := graphtest.Plan(t, g, graphtest.Once, 0)
	at := rewrite.At{Stream: 1, Mode: graphtest.Once.Mode, Source: 5, Cached: p.GetCache(), CacheSource: 6}
	graphs, err := rewrite.Instantiate(g, p, at)
	if err != nil {
		t.Fatal(err)
	}
	part := partGraphs(t, g, p, at, graphs.Parts[0])
	if graphs.B == nil || !graphtest.HasOp(graphtest.Decode(t, part.UpstreamOfCache), "InterleaveDataset") || graphtest.HasOp(graphtest.Decode(t, graphs.A), "InterleaveDataset") {
		t.Error("the stream does not have three graphs")
	}
	at.Stream = int(p.GetNumStreams())
	if graphs, err = rewrite.Instantiate(g, p, at); err != nil || graphs.UpstreamOfCache != nil || graphs.Parts != nil {
		t.Errorf("the closing stream: %v", err)
	}
}

// A worker learns which files a part is of without its graph. The names are those in the graph, and not those of other parts.
func TestTheFileNamesOfAPartAreThoseInItsGraph(t *testing.T) {
	for dataset, files := range map[string]int{"cached": 0, "cached_records": 8, "cached_named_files": 8, "parts_list": 8, "parts_list_filtered": 8, "hint_cached": 0} {
		g := graphtest.Parse(t, dataset)
		options := graphtest.Once
		if dataset == "hint_cached" {
			options = graphtest.Sharded(pecanv1.Sharding_SHARDING_HINT)
		}
		p, found := graphtest.Plan(t, g, options, 3), map[string]bool{}
		if p.GetCache() == nil {
			t.Fatalf("%s: %v", dataset, p.GetReasons())
		}
		for stream := range int(p.GetNumStreams()) {
			at := rewrite.At{Stream: stream, Mode: options.Mode, Source: 5, Cached: p.GetCache(), CacheSource: 6}
			graphs, err := rewrite.Instantiate(g, p, at)
			if err != nil {
				t.Fatal(err)
			}
			for _, part := range graphs.Parts {
				written := graphs
				if p.GetCache().GetParts() > 0 {
					written = partGraphs(t, g, p, at, part)
				}
				want := stringsOf(graphtest.Decode(t, written.UpstreamOfCache))
				if got := graphs.FileNames(part); !slices.Equal(got, want) {
					t.Errorf("%s, part %d is of %q, want %q", dataset, part, got, want)
				}
				for _, name := range want {
					found[name] = true
				}
			}
		}
		if len(found) != files {
			t.Errorf("%s: all parts are of %v, want %d files", dataset, found, files)
		}
	}
}

// Where steps follow a batch over filtered rows, the stream keeps back its short last element between two graphs. Where
// none do, that is an element like the others.
func TestACachedStepAfterAJoinedBatch(t *testing.T) {
	for name, closing := range map[string]bool{"cached_noise_filter_batch": true, "cached_filter_batch": false} {
		g := graphtest.Parse(t, name)
		p := graphtest.Plan(t, g, graphtest.Once, 0)
		if p.GetCache() == nil || p.GetCache().GetPacked() || p.GetCache().GetParts() > 0 {
			t.Errorf("%s: the plan has %v, %q", name, p.GetCache(), p.GetReasons())
			continue
		}
		at := rewrite.At{Stream: 1, Mode: graphtest.Once.Mode, Source: 5, Cached: p.GetCache(), CacheSource: 6}
		graphs, err := rewrite.Instantiate(g, p, at)
		if err != nil {
			t.Fatal(err)
		}
		upstream, downstream := graphtest.Decode(t, graphs.UpstreamOfCache), graphtest.Decode(t, graphs.A)
		batches := upstream
		if closing {
			batches = graphtest.Decode(t, graphs.Batches)
		}
		if graphs.B != nil || (graphs.Batches != nil) != closing || !graphtest.HasOp(batches, "BatchDatasetV2") || graphtest.HasOp(downstream, "BatchDatasetV2") || closing == graphtest.HasOp(upstream, "BatchDatasetV2") {
			t.Errorf("%s: batches %v, upstream %v, downstream %v", name, opsOf(batches), opsOf(upstream), opsOf(downstream))
		}
	}
}

// stringsOf returns the strings of all constants of a graph but those that Pecan adds and empty ones, sorted.
func stringsOf(def *tf.GraphDef) (all []string) {
	nodes := slices.Clone(def.GetNode())
	for _, f := range def.GetLibrary().GetFunction() {
		nodes = append(nodes, f.GetNodeDef()...)
	}
	for _, n := range nodes {
		values, _ := nodedef.Strings(n)
		for _, value := range values {
			if len(value) > 0 && !strings.HasPrefix(string(value), "pecan") {
				all = append(all, string(value))
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// With sharding HINT, a stream caches what one index reads.
func TestAStreamOfAHintIsDividedAtItsCachedStep(t *testing.T) {
	g := graphtest.Parse(t, "hint_cached")
	p := graphtest.Plan(t, g, graphtest.Sharded(pecanv1.Sharding_SHARDING_HINT), 3)
	if p.GetCache() == nil || p.GetCache().GetParts() > 0 {
		t.Fatalf("the plan does not cache: %q", p.GetReasons())
	}
	graphs, err := rewrite.Instantiate(g, p, rewrite.At{Stream: 2, Mode: graphtest.Once.Mode, Source: -1, Cached: p.GetCache(), CacheSource: 7})
	if err != nil {
		t.Fatal(err)
	}
	upstream, downstream := graphtest.Decode(t, graphs.UpstreamOfCache), graphtest.Decode(t, graphs.A)
	if graphtest.Number(t, upstream, graphtest.OfOp(t, upstream, "ShardDataset"), 2) != 2 || graphtest.HasOp(downstream, "ShardDataset") || !slices.Equal(graphs.Parts, []uint32{2}) {
		t.Errorf("upstream %v, downstream %v, parts %v", opsOf(upstream), opsOf(downstream), graphs.Parts)
	}
	for _, c := range p.GetCacheCandidates() {
		if c.Origin == pecanv1.CacheCandidate_MARKED && c.Refusal != pecanv1.CacheRefusal_CACHE_REFUSAL_UNDIVIDED {
			t.Errorf("a step upstream of the hint is refused as %v", c.Refusal)
		}
	}
}
