package caching_test

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pecan-ml/pecan/policies/autoscale"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/caching"
	"github.com/pecan-ml/pecan/service/dispatcher/core/measure"
)

// decoding is a pipeline of read, decode, a mark, shuffle and batch. Decoding takes 20 ms. The trainer takes 32 elements in
// 40 ms. The numbers come from a run in the middle of the first epoch, in which the shuffle holds 1,000 elements.
func decoding() measure.Caching {
	decoded := &pecanv1.CacheCandidate{Name: "decoded", Node: "mark", Plan: &pecanv1.CachePlan{Node: "mark", Upstream: []string{"mark", "decode", "read"}}}
	read := &pecanv1.CacheCandidate{Node: "read", Plan: &pecanv1.CachePlan{Node: "read", Upstream: []string{"read"}}}
	store := &pecanv1.StoreRates{FreeBytes: -1, Reads: samples(1e9), Writes: samples(5e8)}
	return measure.Caching{
		Plan: &pecanv1.Plan{Repeat: 1, Steps: []*pecanv1.PlanStep{
			{Node: "batch", Inputs: []string{"shuffle"}}, {Node: "shuffle", Inputs: []string{"mark"}, Counts: pecanv1.PlanStep_SAME},
			{Node: "mark", Inputs: []string{"decode"}, Counts: pecanv1.PlanStep_PASSED}, {Node: "decode", Inputs: []string{"read"}, Counts: pecanv1.PlanStep_SAME},
			{Node: "read"},
		}},
		Options: &pecanv1.JobOptions{}, Elements: 1000,
		Nodes: []*pecanv1.NodeMetrics{
			{Node: "batch", Elements: 10, SelfCpuS: 0.001, BytesOut: 48e6}, {Node: "shuffle", Elements: 320, SelfCpuS: 0.001, BytesOut: 48e6},
			{Node: "decode", Elements: 1320, SelfCpuS: 26.4, BytesOut: 198e6}, {Node: "read", Elements: 1320, SelfCpuS: 0.132, BytesOut: 132e6},
		},
		Trainers: []measure.Trainer{{Subs: []measure.SubWindow{{Begin: 0, End: 10 * time.Second, Elements: 10, Waited: 9.6}}}},
		Workers:  []measure.StoreUser{{Cores: 4, Rates: store}}, Remote: 1, Steps: []measure.CachedStep{{Candidate: read}, {Candidate: decoded}},
		Quota: -1, UnixS: 1_800_000_000, KeptHours: 168,
	}
}

// samples are probes of a store with this many bytes per second and 20 µs for each element.
func samples(rate float64) (list []*pecanv1.StoreTransfer) {
	for _, size := range []float64{4 << 10, 1 << 20} {
		s := 100*20e-6 + 100*size/rate
		list = append(list, &pecanv1.StoreTransfer{Elements: 100, Bytes: uint64(100 * size), Seconds: s, WorkS: s, Probe: true})
	}
	return list
}

func decide(t *testing.T, facts measure.Caching) *pecanv1.CacheDecision {
	t.Helper()
	return mustDecide(t, facts, caching.Prices{})
}

func mustDecide(t *testing.T, facts measure.Caching, prices caching.Prices) *pecanv1.CacheDecision {
	t.Helper()
	d, waits := caching.Decide(facts, prices)
	if d == nil {
		t.Fatalf("no decision: %s", waits)
	}
	return d
}

func near(got, want float64) bool { return math.Abs(got-want) <= 0.01*want }

func TestTheCostsOfAnEpochDoNotDependOnFullBuffers(t *testing.T) {
	d := decide(t, decoding())
	// 32,000 elements of 20.1 ms on 4 threads.
	if !near(d.Compute.Seconds, 32000*0.0201/4) || d.Compute.Bound != "the workers" {
		t.Errorf("an epoch that computes: %v", d.Compute)
	}
	if d.Node != "mark" || !strings.Contains(d.Why, "the cache at decoded costs least") {
		t.Errorf("chosen %q: %s", d.Node, d.Why)
	}
	mark := d.Candidates[1]
	// The mark has no metrics of its own. It has the elements of the step before it.
	if !near(mark.Bytes, 32000*150e3) || mark.Share != 1 || !near(mark.Get.Seconds, 1000*0.04) || mark.Get.Bound != "the trainers" {
		t.Errorf("the mark: %v", mark)
	}
}

func TestMeasuredEpochsCorrectPredictionsAndLetTheOthersBeTried(t *testing.T) {
	facts := decoding()
	facts.Plan.Repeat, facts.Trainers, facts.Steps = 400, nil, facts.Steps[1:]
	facts.Workers[0].Rates.Reads = samples(28e6)
	predicted := decide(t, facts)
	took := func(node string, seconds float64) {
		for range 5 {
			facts.Epochs = append(facts.Epochs, &pecanv1.MeasuredEpoch{Node: node, Remote: 1, Seconds: seconds})
		}
	}
	took("", 1.1*predicted.Compute.Seconds)
	tried := decide(t, facts)
	if !near(tried.Compute.Seconds, 1.1*predicted.Compute.Seconds) || predicted.Tried || predicted.Node != "" || !tried.Tried || tried.Node == "" {
		t.Errorf("first %q, then %q is tried: %v; computing takes %v s", predicted.Node, tried.Node, tried.Tried, tried.Compute.Seconds)
	}
	facts.Current, facts.Tried, facts.Tries = tried.Node, true, map[string]int{tried.Node: 10}
	if d := decide(t, facts); d.Node == tried.Node {
		t.Errorf("after 10 tries without a measured epoch, %q is chosen: %s", d.Node, d.Why)
	}
	took("mark", 100)
	if d := decide(t, facts); d.Node != "mark" || !near(d.Candidates[0].Get.Seconds, 100) {
		t.Errorf("an epoch that reads takes 100 s, and %q is chosen: %s", d.Node, d.Why)
	}
}

func TestTimeInWhichThreadsWaitForACoreCostsNothing(t *testing.T) {
	facts := decoding()
	facts.CPUWait = 0.75
	d := decide(t, facts)
	if !near(d.Compute.Seconds, 32000*0.0201/4/4) {
		t.Errorf("an epoch that computes takes %.4g s", d.Compute.Seconds)
	}
}

func TestNothingIsCachedIfTheTrainersAreTheBound(t *testing.T) {
	facts := decoding()
	// A trainer that takes 1 s for 32 elements waits for nobody.
	facts.Trainers[0].Subs[0].Waited = 0
	if d := decide(t, facts); d.Node != "" || !strings.Contains(d.Why, "the trainers are the bound") {
		t.Errorf("chosen %q: %s", d.Node, d.Why)
	}
}

// D14: a store that cannot be written is one without free space.
func TestTheSpeedOfTheStoreDecidesWhatIsCached(t *testing.T) {
	slow := decoding()
	slow.Workers[0].Rates.Reads, slow.Workers[0].Rates.Writes = samples(20e6), samples(20e6)
	if d := decide(t, slow); d.Node != "" {
		t.Errorf("a store of 20 MB/s: chosen %q: %s", d.Node, d.Why)
	}
	stored := slow
	stored.Workers = []measure.StoreUser{{Cores: 4, Rates: &pecanv1.StoreRates{FreeBytes: -1, Reads: samples(1e9), Writes: samples(20e6)}}}
	stored.Steps = []measure.CachedStep{stored.Steps[0], {Candidate: stored.Steps[1].Candidate, Stored: 1, Held: 32000, Bytes: 3.2e9}}
	if d := decide(t, stored); d.Node != "mark" || !near(d.Candidates[1].Bytes, 3.2e9) || !strings.Contains(d.Why, "to read what is stored") {
		t.Errorf("all is stored: chosen %q: %s", d.Node, d.Why)
	}
	broken := decoding()
	broken.Workers[0].Rates = &pecanv1.StoreRates{Problem: "disk full"}
	if d := decide(t, broken); d.Node != "" || !strings.Contains(d.Candidates[1].Why, "no space is free") {
		t.Errorf("a store that cannot be written: chosen %q: %s", d.Node, d.Candidates[1].Why)
	}
	short := decoding()
	short.Workers[0].Rates.FreeBytes = 1.2e9
	if d := decide(t, short); d.Node != "mark" || !near(d.Candidates[1].Share, 0.25) {
		t.Errorf("a quarter fits: chosen %q, share %v", d.Node, d.Candidates[1].Share)
	}
	short.Quota = 0
	if d := decide(t, short); d.Node != "" {
		t.Errorf("the quota is used up: chosen %q: %s", d.Node, d.Why)
	}
	foreign := decoding()
	foreign.Steps[1].Problem = "the quotas keep others"
	if d := decide(t, foreign); d.Node == "mark" || d.Candidates[1].Why != "the quotas keep others" {
		t.Errorf("unwanted: chosen %q: %s", d.Node, d.Candidates[1].Why)
	}
}

// earlier lets other jobs have read what a candidate may store, and the graph.
func earlier(f *measure.Caching, jobs ...*pecanv1.PastJob) {
	f.Past = jobs
	for i := range f.Steps {
		f.Steps[i].Past = jobs
	}
}

func TestExpectedEpochsDecide(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*measure.Caching)
		want   float64
	}{
		{"nothing is known", func(*measure.Caching) {}, 3},
		{"repeat(2), and the second pass is next", func(f *measure.Caching) { f.Plan.Repeat, f.Begun = 2, 1 }, 1},
		{"jobs of ten epochs", func(f *measure.Caching) {
			earlier(f, &pecanv1.PastJob{JobId: "p", Epochs: 10, FirstS: f.UnixS - 3600}, &pecanv1.PastJob{JobId: "q", Epochs: 5, FirstS: f.UnixS - 30*24*3600})
		}, 6 + 10},
		{"caches are kept forever", func(f *measure.Caching) {
			earlier(f, &pecanv1.PastJob{JobId: "q", Epochs: 5, FirstS: f.UnixS - 30*24*3600})
			f.KeptHours = 0
		}, 4 + 5},
		{"jobs that share the steps upstream only", func(f *measure.Caching) {
			earlier(f, &pecanv1.PastJob{JobId: "p", Epochs: 10, FirstS: f.UnixS - 3600})
			f.Past = nil
		}, 3 + 10},
	} {
		facts := decoding()
		c.change(&facts)
		if d := decide(t, facts); d.Epochs != c.want {
			t.Errorf("%s: %v epochs, want %v", c.name, d.Epochs, c.want)
		}
	}
}

// The end of the pipeline saves this job more. Other jobs share the steps up to the mark, so the mark saves more in all.
func TestJobsWithTheSameStepsUpToACandidateCountForIt(t *testing.T) {
	facts := decoding()
	facts.Plan.Steps[0].Counts, facts.Nodes[0].SelfCpuS = pecanv1.PlanStep_MEASURED, 0.5
	facts.Trainers = nil
	end := &pecanv1.CacheCandidate{Node: "batch", Plan: &pecanv1.CachePlan{Node: "batch", Upstream: []string{"batch", "shuffle", "mark", "decode", "read"}}}
	facts.Steps = append(facts.Steps, measure.CachedStep{Candidate: end})
	if d := decide(t, facts); d.Node != "batch" || d.Epochs != 3 || d.Candidates[1].Epochs != 3 {
		t.Fatalf("without other jobs: chosen %q over %v epochs: %s", d.Node, d.Epochs, d.Why)
	}
	facts.Steps[1].Past = []*pecanv1.PastJob{{JobId: "p", Epochs: 20, FirstS: facts.UnixS - 3600}, {JobId: "q", Epochs: 10, FirstS: facts.UnixS - 7200}}
	d := decide(t, facts)
	if d.Node != "mark" || d.Epochs != 33 || d.Candidates[1].Epochs != 33 || d.Candidates[2].Epochs != 3 {
		t.Errorf("chosen %q over %v epochs: %s; the candidates have %v", d.Node, d.Epochs, d.Why, d.Candidates)
	}
	if want := "over 33 epochs (30 as in 2 earlier jobs with the same steps up to here)"; !strings.Contains(d.Why, want) {
		t.Errorf("the reason is %q, want one with %q", d.Why, want)
	}
}

func TestADecisionWaitsForMeasurements(t *testing.T) {
	for want, change := range map[string]func(*measure.Caching){
		"out of step batch":          func(f *measure.Caching) { f.Nodes[0].Elements = 0 },
		"has measured its directory": func(f *measure.Caching) { f.Workers[0].Rates = nil },
		"of an earlier version":      func(f *measure.Caching) { f.Plan.Steps = nil },
		"out of the last step":       func(f *measure.Caching) { f.Elements, f.Nodes[0].Elements = 0, 0 },
	} {
		facts := decoding()
		change(&facts)
		if d, waits := caching.Decide(facts, caching.Prices{}); d != nil || !strings.Contains(waits, want) {
			t.Errorf("waits for %q, want %q", waits, want)
		}
	}
}

func TestThePublishedPolicyKnowsTwoPlaces(t *testing.T) {
	facts := decoding()
	facts.Options.Cache = pecanv1.Cache_CACHE_PAPER
	facts.Steps[0].Candidate.Role, facts.Steps[1].Candidate.Role = pecanv1.CacheCandidate_SOURCE_CACHE, pecanv1.CacheCandidate_FULL_CACHE
	if d := decide(t, facts); d.Node != "mark" || d.Why != "the cache at decoded is fastest" {
		t.Errorf("chosen %q: %s", d.Node, d.Why)
	}
	facts.Steps[1].Candidate.Role = pecanv1.CacheCandidate_ROLE_UNSPECIFIED
	if d := decide(t, facts); d.Node == "mark" {
		t.Errorf("a step without a role was chosen: %s", d.Why)
	}
}

// What caches save is compared over jobs with and without prices, so it is a time of trainers.
func TestTheBenefitIsATimeOfTrainers(t *testing.T) {
	free, priced := decide(t, decoding()), decoding()
	priced.Options.Placement = &pecanv1.PlacementOptions{Objective: "time", MinRemote: 1}
	for _, d := range []*pecanv1.CacheDecision{free, mustDecide(t, priced, caching.Prices{Prices: autoscale.Prices{Trainer: 5, Remote: 0.5, Local: 0.05}})} {
		p := d.Candidates[1]
		// A worker costs a tenth of a trainer in both.
		want := 1.1 * (d.Compute.Seconds - p.Get.Seconds)
		if p.BenefitS == nil || !near(*p.BenefitS, want) || want < 1 {
			t.Errorf("an epoch saves %v s of a trainer, want %v", p.GetBenefitS(), want)
		}
	}
	published := decoding()
	published.Options.Cache = pecanv1.Cache_CACHE_PAPER
	published.Steps[1].Candidate.Role = pecanv1.CacheCandidate_FULL_CACHE
	if p := decide(t, published).Candidates[1]; !p.Eligible || p.BenefitS != nil {
		t.Errorf("the published policy predicts no price: %v", p)
	}
}

func TestAnObjectiveDecidesWithItsPrices(t *testing.T) {
	facts := decoding()
	facts.Options.Placement = &pecanv1.PlacementOptions{Objective: "cost", MinRemote: 1}
	facts.Remote = 8
	for range 7 {
		facts.Workers = append(facts.Workers, measure.StoreUser{Cores: 4})
	}
	d, waits := caching.Decide(facts, caching.Prices{Prices: autoscale.Published})
	if d == nil {
		t.Fatal(waits)
	}
	if d.Node != "mark" || d.Compute.Remote <= d.Candidates[1].Get.Remote || d.Compute.Cost <= 0 {
		t.Errorf("chosen %q; %v; %v", d.Node, d.Compute, d.Candidates[1].Get)
	}
}

// A cache is kept for a week after its last epoch, and its storage has to be worth that.
func TestThePriceOfStorageDecides(t *testing.T) {
	const perGBMonth = 1 / 1e9 / 730
	facts := decoding()
	facts.Options.Placement = &pecanv1.PlacementOptions{Objective: "cost", MinRemote: 1}
	prices := caching.Prices{Prices: autoscale.Published, Storage: 0.04 * perGBMonth}
	free := mustDecide(t, facts, caching.Prices{Prices: autoscale.Published})
	cheap := mustDecide(t, facts, prices)
	// Three epochs share the price of 4.8 GB for 168 hours. The hours of the epochs themselves hardly count.
	week := 4.8 * 0.04 * 168 / 730
	if more := cheap.Candidates[1].Get.Cost - free.Candidates[1].Get.Cost; cheap.Node != "mark" || !near(more, week/3) {
		t.Errorf("chosen %q; an epoch that reads costs %v more, want %v", cheap.Node, more, week/3)
	}
	prices.Storage *= 10
	if d := mustDecide(t, facts, prices); d.Node == "mark" {
		t.Errorf("storage for %v an epoch: chosen %q: %s", 10*week/3, d.Node, d.Why)
	}
	facts.KeptHours = 1
	if d := mustDecide(t, facts, prices); d.Node != "mark" {
		t.Errorf("the cache is kept for an hour: chosen %q: %s", d.Node, d.Why)
	}
	facts.KeptHours = 0
	earlier(&facts, &pecanv1.PastJob{JobId: "p", Epochs: 1, FirstS: facts.UnixS - 1000*3600})
	if d := mustDecide(t, facts, prices); d.Node == "mark" {
		t.Errorf("the cache is kept forever, and the last job was 1,000 hours ago: chosen %q: %s", d.Node, d.Why)
	}
}

// inOther is decoding() with a decided order of the steps. reading costs a hundredth of decoding.
func inOther(decided *pecanv1.StoredOrder, change func(*measure.Caching)) measure.Caching {
	facts := decoding()
	decided.Order, decided.Covers = []string{"decode", "read", "mark", "shuffle", "batch"}, []string{"read", "decode"}
	facts.Ordered = &measure.Ordered{Decided: decided, InForce: true, Steps: slices.Clone(facts.Steps)}
	if change != nil {
		change(&facts)
	}
	return facts
}

func TestADecidedOrderHasItsOwnCosts(t *testing.T) {
	for name, c := range map[string]struct {
		decided *pecanv1.StoredOrder
		want    float64
	}{
		"predicted for all steps":                {&pecanv1.StoredOrder{PredictedBeforeS: 0.04, PredictedAfterS: 0.02}, 0.5},
		"measured in production":                 {&pecanv1.StoredOrder{PredictedBeforeS: 0.04, PredictedAfterS: 0.02, Production: &pecanv1.OrderProduction{RegisteredS: 0.02, OrderedS: 0.015}}, 0.75},
		"without a prediction, it costs as much": {&pecanv1.StoredOrder{}, 1},
	} {
		d := decide(t, inOther(c.decided, nil))
		if !near(d.Compute.Seconds, 32000*0.0201/4*c.want) || d.Node != "mark" || len(d.Order) == 0 {
			t.Errorf("%s: %v s instead of %v; step %q in the order %v", name, d.Compute.Seconds, 32000*0.0201/4*c.want, d.Node, d.Order)
		}
	}
}

func TestAnOrderIsWeighedWithItsCache(t *testing.T) {
	half := func() *pecanv1.StoredOrder {
		return &pecanv1.StoredOrder{PredictedBeforeS: 0.04, PredictedAfterS: 0.02}
	}
	across := decide(t, inOther(half(), func(f *measure.Caching) {
		f.Ordered.Steps[1].Problem = "the decided order moves steps across it"
		f.Plan.Repeat = 10
	}))
	if across.Node != "mark" || across.Order != nil || !strings.Contains(across.Why, "the steps have the registered order, because the decided one would cost") {
		t.Errorf("an order that the mark cannot have: %q in %v: %s", across.Node, across.Order, across.Why)
	}
	stored := decide(t, inOther(half(), func(f *measure.Caching) {
		f.Steps[1].Stored, f.Steps[1].Held, f.Steps[1].Bytes = 1, 32000, 4.8e9
	}))
	if stored.Node != "mark" || stored.Order != nil || !strings.Contains(stored.Why, "to read what is stored") {
		t.Errorf("another job has stored the registered order: %q in %v: %s", stored.Node, stored.Order, stored.Why)
	}
	none := inOther(half(), func(f *measure.Caching) { f.Workers[0].Rates = &pecanv1.StoreRates{Problem: "disk full"} })
	if d := decide(t, none); d.Node != "" || d.Order != nil {
		t.Errorf("nothing is cached, but %q in %v", d.Node, d.Order)
	}
	published := inOther(half(), nil)
	published.Options.Cache, published.Steps[1].Candidate.Role = pecanv1.Cache_CACHE_PAPER, pecanv1.CacheCandidate_FULL_CACHE
	if d := decide(t, published); d.Order != nil {
		t.Errorf("the published policy decides on an order: %v", d.Order)
	}
}
