package cacheable_test

import (
	"slices"
	"strings"
	"testing"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/graphtest"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/split"
)

const (
	candidate = "pecan_cache_candidate_here"
	frozen    = "pecan_cache_frozen_here"
	// The files of these never change.
	unchanging          = "pecan_cache_unchanging"
	unchangingCandidate = "pecan_cache_unchanging_candidate_here"
	unchangingFrozen    = "pecan_cache_unchanging_frozen_here"
)

// plan plans a graph of the test data. A mark other than "" replaces those of pecan.cache().
func plan(t *testing.T, name, mark string, opts *pecanv1.JobOptions, env split.Env) *pecanv1.Plan {
	t.Helper()
	data := graphtest.Read(t, name)
	if mark != "" {
		data = graphtest.Marked(t, name, mark)
	}
	g, err := graph.Parse(data, graph.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := split.MakePlan(g, opts, env)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func options(cache pecanv1.Cache) *pecanv1.JobOptions {
	return &pecanv1.JobOptions{Mode: graphtest.ExactlyOnce, Cache: cache}
}

// show lists candidates: the op or the user's name, and the code of the refusal.
func show(p *pecanv1.Plan) (lines []string) {
	for _, c := range p.GetCacheCandidates() {
		what := c.GetName()
		if what == "" {
			what, _, _ = strings.Cut(c.GetNode()[strings.LastIndex(c.GetNode(), "/TakeDataset")+1:], "/")
		}
		line := strings.ToLower(c.GetOrigin().String()) + " " + what
		if c.GetFreezes() {
			line += " frozen"
		}
		if c.GetRefusal() != pecanv1.CacheRefusal_CACHE_REFUSAL_UNSPECIFIED {
			line += ": " + strings.ToLower(strings.TrimPrefix(c.GetRefusal().String(), "CACHE_REFUSAL_"))
		}
		lines = append(lines, line)
	}
	return lines
}

func TestMarksAreLegalOrHaveAReason(t *testing.T) {
	for name, c := range map[string]struct {
		graph, mark string
		want        []string
	}{
		"cache()":                                  {"cached", "", []string{"forced TakeDataset frozen"}},
		"cache() after noise":                      {"cached_noise", "", []string{"forced TakeDataset frozen"}},
		"two of them":                              {"cached_twice", "", []string{"forced TakeDataset frozen: not_last", "forced TakeDataset frozen"}},
		"take moves upstream of cache()":           {"cached_before_take", "", []string{"forced TakeDataset frozen"}},
		"before a zip of equal lengths":            {"cached_before_zip", "", []string{"forced TakeDataset frozen"}},
		"before a shorter zip":                     {"cached_before_shorter_zip", "", []string{"forced TakeDataset frozen: partial"}},
		"after a batch of filtered rows":           {"cached_filter_batch", "", []string{"forced TakeDataset frozen"}},
		"endless":                                  {"cached_endless", "", []string{"forced TakeDataset frozen: endless"}},
		"a clock":                                  {"cached_clock", "", []string{"forced TakeDataset frozen: unrepeatable"}},
		"listed files":                             {"cached_listed", "", []string{"forced TakeDataset frozen: listed_files"}},
		"cache() after ignore_errors()":            {"cached_ignoring", "", []string{"forced TakeDataset frozen"}},
		"a candidate after ignore_errors()":        {"cached_ignoring", candidate, []string{"marked here: errors"}},
		"after ignore_errors() in a function":      {"cached_ignoring_in_function", candidate, []string{"marked here: errors"}},
		"frozen after ignore_errors()":             {"cached_ignoring", frozen, []string{"marked here frozen"}},
		"remote files with versions":               {"cached_remote_records", "", []string{"forced TakeDataset frozen"}},
		"remote files without":                     {"cached_unversioned_records", "", []string{"forced TakeDataset frozen: remote_files"}},
		"in a function":                            {"cached_in_function", "", []string{"forced TakeDataset: function"}},
		"a candidate":                              {"cached", candidate, []string{"marked here"}},
		"a candidate after noise":                  {"cached_noise", candidate, []string{"marked here: random"}},
		"a candidate before noise":                 {"cached_shuffled", candidate, []string{"marked here"}},
		"a frozen candidate":                       {"cached_noise", frozen, []string{"marked here frozen"}},
		"after a filter, before noise":             {"cached_filtered", candidate, []string{"marked here: index"}},
		"frozen after a filter":                    {"cached_filtered", frozen, []string{"marked here frozen"}},
		"a candidate over records":                 {"cached_records", candidate, []string{"marked here"}},
		"a candidate over named files":             {"cached_named_files", candidate, []string{"marked here"}},
		"over files that nobody names":             {"cached_computed_files", "", []string{"forced TakeDataset frozen: computed_files"}},
		"a candidate over files that nobody names": {"cached_computed_files", candidate, []string{"marked here: computed_files"}},
		"they never change":                        {"cached_computed_files", unchanging, []string{"forced TakeDataset frozen"}},
		"a candidate over files that never change": {"cached_computed_files", unchangingCandidate, []string{"marked here"}},
		"a frozen one":                             {"cached_computed_files", unchangingFrozen, []string{"marked here frozen"}},
		"no mark, with a longer name":              {"cached", unchanging + "_", nil},
		"a candidate before a shorter zip":         {"cached_before_shorter_zip", candidate, []string{"marked here: partial"}},
		"before a filter before take":              {"cached_before_filter_take", candidate, []string{"marked here: partial"}},
		"two candidates":                           {"cached_twice", candidate, []string{"marked here", "marked here"}},
		"take moves upstream of it":                {"cached_before_take", candidate, []string{"marked here"}},
		"take moves upstream of a freezing mark":   {"cached_before_take", frozen, []string{"marked here frozen"}},
		"a pass of an endless repeat":              {"cached_endless", candidate, []string{"marked here"}},
		"a name with other characters is no mark":  {"cached", "pecan_cache_candidate_a-b", nil},
		"nor is one without a name":                {"cached", "pecan_cache_candidate_", nil},
		"nor a longer one":                         {"cached", candidate + strings.Repeat("e", 61), nil},
	} {
		t.Run(name, func(t *testing.T) {
			p := plan(t, c.graph, c.mark, options(pecanv1.Cache_CACHE_CANDIDATES), split.Env{})
			if got := show(p); !slices.Equal(got, c.want) {
				t.Errorf("%q, want %q; %v", got, c.want, p.GetCacheCandidates())
			}
			for _, one := range p.GetCacheCandidates() {
				if refused := one.GetRefusal() != 0; refused && one.GetWhy() == "" {
					t.Errorf("%s is refused without a reason", one.GetNode())
				}
			}
			if stored := p.GetCache() != nil; stored && strings.HasPrefix(c.want[0], "marked") {
				t.Errorf("a candidate is stored: %v", p.GetCache())
			}
		})
	}
}

// Changed files are noticed only if the graph has their names. The reason names the step and the ways out.
func TestFilesWithComputedNamesHaveAReason(t *testing.T) {
	for mark, words := range map[string][]string{
		"":         {"MapDataset/", "files_never_change=True", "Move it before that step"},
		candidate:  {"MapDataset/", "files_never_change=True", "Move it before that step"},
		unchanging: {"MapDataset/", "says that they never change"},
	} {
		p := plan(t, "cached_computed_files", mark, options(pecanv1.Cache_CACHE_CANDIDATES), split.Env{})
		why := p.GetCacheCandidates()[0].GetWhy()
		for _, word := range append(words, "names are computed") {
			if !strings.Contains(why, word) {
				t.Errorf("%q: %q does not say %q", mark, why, word)
			}
		}
		reasons := strings.Join(p.GetReasons(), " ")
		if warned := strings.Contains(reasons, "cache() does nothing here: "+why); warned != (mark == "") {
			t.Errorf("%q: the reasons are %q", mark, reasons)
		}
	}
}

func TestThePlannerFindsCandidates(t *testing.T) {
	auto, paper, off := pecanv1.Cache_CACHE_AUTO, pecanv1.Cache_CACHE_PAPER, pecanv1.Cache_CACHE_OFF
	for name, c := range map[string]struct {
		graph, mark string
		cache       pecanv1.Cache
		want        []string
	}{
		"nobody asks for it":             {"map_batch", "", pecanv1.Cache_CACHE_CANDIDATES, nil},
		"a source that costs nothing":    {"range", "", auto, nil},
		"a step before a shuffle":        {"map_batch", "", auto, []string{"found ParallelMapDatasetV2", "found BatchDatasetV2: random"}},
		"records":                        {"records", "", auto, []string{"found FlatMapDataset", "found BatchDatasetV2: random"}},
		"each step":                      {"badly_ordered", "", auto, []string{"found MapDataset", "found ParallelMapDatasetV2", "found MapDataset", "found MapDataset", "found FilterDataset", "found MapDataset"}},
		"source and end":                 {"badly_ordered", "", paper, []string{"found MapDataset", "found MapDataset"}},
		"none with off":                  {"badly_ordered", "", off, nil},
		"a marked step is not found too": {"cached", candidate, auto, []string{"marked here", "found MapDataset", "found BatchDatasetV2"}},
		"nor one before cache()":         {"cached_noise", "", auto, []string{"forced TakeDataset frozen", "found MapDataset", "found BatchDatasetV2"}},
		"a marked end":                   {"cached_twice", candidate, paper, []string{"marked here", "marked here"}},
		"files that nobody names":        {"cached_computed_files", candidate, auto, []string{"marked here: computed_files", "found MapDataset: computed_files"}},
		"files that never change":        {"cached_computed_files", unchangingCandidate, auto, []string{"marked here", "found MapDataset"}},
		"marks with off":                 {"cached_twice", candidate, off, []string{"marked here: off", "marked here: off"}},
		"cache() with off":               {"cached", "", off, []string{"forced TakeDataset frozen: off"}},
		"a refused mark with off":        {"cached_before_shorter_zip", "", off, []string{"forced TakeDataset frozen: partial"}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := show(plan(t, c.graph, c.mark, options(c.cache), split.Env{})); !slices.Equal(got, c.want) {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
	hint := &pecanv1.JobOptions{Mode: graphtest.ExactlyOnce, Sharding: pecanv1.Sharding_SHARDING_HINT, Cache: auto}
	if got := show(plan(t, "hint", "", hint, split.Env{})); !slices.Equal(got, []string{"found MapDataset"}) {
		t.Errorf("with a hint: %q", got)
	}
	if got := show(plan(t, "cached", "", &pecanv1.JobOptions{Mode: pecanv1.Mode_MODE_OFF}, split.Env{})); !slices.Equal(got, []string{"forced TakeDataset frozen: sharding"}) {
		t.Errorf("without sharding: %q", got)
	}
}

// A profile shows which candidates would save no more than those before them.
func TestCheapStepsAreNoCandidatesOfTheirOwn(t *testing.T) {
	all := plan(t, "badly_ordered", "", options(pecanv1.Cache_CACHE_AUTO), split.Env{}).GetCacheCandidates()
	if len(all) != 6 {
		t.Fatalf("%d candidates", len(all))
	}
	var profile []*pecanv1.NodeMetrics
	for i, cpu := range []float64{10, 80, 1, 1, 7, 1} {
		profile = append(profile, &pecanv1.NodeMetrics{Node: all[i].GetNode(), Elements: 1000, SelfCpuS: cpu})
	}
	var kept []string
	for _, c := range plan(t, "badly_ordered", "", options(pecanv1.Cache_CACHE_AUTO), split.Env{Profile: profile}).GetCacheCandidates() {
		kept = append(kept, c.GetNode())
	}
	// The fourth step has 2 % together with the third. The last one is the end.
	if want := []string{all[0].Node, all[1].Node, all[3].Node, all[4].Node, all[5].Node}; !slices.Equal(kept, want) {
		t.Errorf("kept %v, want %v", kept, want)
	}
}

// The hash of a plan names the elements of its streams in saved positions. Where the order is free, "auto" and "paper" divide the
// source by parts, as marks do.
func TestTheChoiceOfCachesIsNotInTheHash(t *testing.T) {
	for _, name := range []string{"cached", "cached_noise", "badly_ordered"} {
		for _, mode := range []pecanv1.Mode{graphtest.ExactlyOnce, graphtest.Deterministic} {
			hashes := map[string]bool{}
			for choice := range pecanv1.Cache_name {
				p := plan(t, name, "", &pecanv1.JobOptions{Mode: mode, Cache: pecanv1.Cache(choice)}, split.Env{})
				hashes[p.Hash] = true
				if off := pecanv1.Cache(choice) == pecanv1.Cache_CACHE_OFF; name != "badly_ordered" && (p.GetCache() == nil) != off {
					t.Errorf("%s with %v: %v", name, pecanv1.Cache(choice), p.GetCache())
				}
			}
			if want := map[bool]int{true: 2, false: 1}[name == "badly_ordered" && mode == graphtest.ExactlyOnce]; len(hashes) != want {
				t.Errorf("%s in mode %v: the hashes are %v", name, mode, hashes)
			}
		}
	}
	off := plan(t, "cached", "", options(pecanv1.Cache_CACHE_OFF), split.Env{})
	if reasons := strings.Join(off.GetReasons(), " "); !strings.Contains(reasons, `cache="off"`) || strings.Contains(reasons, "does nothing here") {
		t.Errorf("the user chose off, and the reasons are %q", off.GetReasons())
	}
}

// A shuffle that gives the same order in every epoch may be cached.
func TestAFixedShuffleIsNotRandom(t *testing.T) {
	data := graphtest.Changed(t, "map_batch", func(def *tf.GraphDef) {
		graphtest.OfOp(t, def, "ShuffleDatasetV3").Attr["reshuffle_each_iteration"] = nodedef.BoolAttr(false)
	})
	g, err := graph.Parse(data, graph.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	got := show(graphtest.Plan(t, g, options(pecanv1.Cache_CACHE_AUTO), 0))
	if want := []string{"found ParallelMapDatasetV2", "found ShuffleDatasetV3", "found BatchDatasetV2"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// A take that moves upstream of a mark, and a repeat that is removed, change the elements at the mark. The rest downstream does not.
func TestTheKeyOfACandidateCoversWhatMovesUpstream(t *testing.T) {
	key := func(graph string) string {
		opts := options(pecanv1.Cache_CACHE_CANDIDATES)
		opts.Streams = 2
		p := plan(t, graph, candidate, opts, split.Env{})
		at := slices.IndexFunc(p.GetCacheCandidates(), func(c *pecanv1.CacheCandidate) bool { return c.GetPlan() != nil })
		if at < 0 || p.GetNumStreams() != 2 {
			t.Fatalf("%s: %d streams, %v", graph, p.GetNumStreams(), p.GetCacheCandidates())
		}
		return p.CacheCandidates[at].Plan.Key
	}
	if key("cached_shuffled") == key("cached_before_take") {
		t.Error("a cache of 300 elements and one of the first 20 have the same key")
	}
	if key("cached_shuffled") != key("cached_repeated") {
		t.Error("the key depends on steps that stay downstream")
	}
}
