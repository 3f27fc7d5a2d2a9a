package core_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
)

// unix is the time of day of a script.
func (s *script) unix() int64 { return 1_800_000_000 + int64(s.now/time.Second) }

// learned shows what is known of a graph.
func (s *script) learned(fingerprint string) []string {
	if lines := showLearned(s.core.State().LearnedOf(fingerprint)); len(lines) > 0 {
		return lines
	}
	return []string{"nothing is known of " + fingerprint}
}

func showLearned(l *pecanv1.Learned) (lines []string) {
	for _, p := range l.Profiles {
		lines = append(lines, fmt.Sprintf("profile of %s: %s, %d epochs, the last one of %d elements", p.Fingerprint, showNodes(p.Nodes), p.EpochsBegun, p.EpochElements))
	}
	for _, o := range l.Orders {
		lines = append(lines, fmt.Sprintf("order of %s within %v under %s: %v, %s (%s)", o.Fingerprint, o.Tolerance, o.PlanHash, o.Order, o.State(), o.Why))
	}
	for _, k := range l.Placements {
		lines = append(lines, fmt.Sprintf("placement of %s for %q: %d remote, %d local", k.Fingerprint, k.TrainerType, k.Remote, k.Local))
	}
	for _, c := range l.Cachings {
		lines = append(lines, fmt.Sprintf("cache of %s for %q at %d s: %q (%s), %d epochs", c.Fingerprint, c.TrainerType, c.KeptS-1_800_000_000, c.Decision.GetNode(), c.Decision.GetWhy(), len(c.Epochs)))
	}
	for _, h := range l.Histories {
		for _, j := range h.Jobs {
			line := fmt.Sprintf("job %s of %s for %q: %d epochs, from %d s to %d s", j.JobId, h.Fingerprint, j.TrainerType, j.Epochs, j.FirstS-1_800_000_000, j.LastS-1_800_000_000)
			if len(j.CacheKeys) > 0 {
				line += fmt.Sprintf(", could read %v", j.CacheKeys)
			}
			lines = append(lines, line)
		}
	}
	return lines
}

// merged reads fingerprint=, plan=hash order=step,... stage=stage, nodes= elements=, remote=, cached=step at=seconds
// measured=step:seconds:elements:at:cores:bound,..., and job=id epochs=number at=seconds.
func merged(a args) *pecanv1.MergeLearnedRequest {
	l, fingerprint := &pecanv1.Learned{}, a["fingerprint"]
	if a.has("plan") {
		l.Orders = append(l.Orders, &pecanv1.StoredOrder{
			Fingerprint: fingerprint, Policy: pecanv1.Order_ORDER_AUTO, Tolerance: pecanv1.OrderTolerance_ORDER_TOLERANCE_APPROXIMATE, PlanHash: a["plan"],
			Order: a.list("order"), Trial: &pecanv1.OrderTrial{}, Stage: enum[pecanv1.OrderStage](pecanv1.OrderStage_value, "ORDER_STAGE_", a["stage"]), Why: "found",
		})
	}
	if a.has("nodes") {
		l.Profiles = append(l.Profiles, &pecanv1.StoredProfile{Fingerprint: fingerprint, Nodes: nodes(a.list("nodes")), EpochsBegun: 1, EpochElements: a.number("elements")})
	}
	if a.has("remote") {
		l.Placements = append(l.Placements, &pecanv1.PlacementKnown{Fingerprint: fingerprint, Remote: uint32(a.number("remote"))})
	}
	if a.has("cached") {
		at := 1_800_000_000 + int64(a.number("at"))
		caching := &pecanv1.StoredCaching{Fingerprint: fingerprint, Decision: &pecanv1.CacheDecision{Node: a["cached"], Why: "found"}, KeptS: at}
		for _, each := range a.list("measured") {
			step, figures, _ := strings.Cut(each, ":")
			var seconds float64
			var elements uint64
			var at int64
			var cores uint32
			var bound bool
			if _, err := fmt.Sscanf(strings.ReplaceAll(figures, ":", " "), "%g %d %d %d %t", &seconds, &elements, &at, &cores, &bound); err != nil {
				panic(err)
			}
			caching.Epochs = append(caching.Epochs, &pecanv1.MeasuredEpoch{
				Node: step, Remote: 1, Seconds: seconds, Elements: elements, AtS: 1_800_000_000 + at, Cores: cores, TrainerBound: bound, JobId: "j0",
			})
		}
		l.Cachings = append(l.Cachings, caching)
	}
	if a.has("job") {
		at := 1_800_000_000 + int64(a.number("at"))
		l.Histories = append(l.Histories, &pecanv1.StoredHistory{Fingerprint: fingerprint, Jobs: []*pecanv1.PastJob{
			{JobId: a["job"], Epochs: a.number("epochs"), NextEpoch: a.number("epochs"), FirstS: at, LastS: at},
		}})
	}
	return &pecanv1.MergeLearnedRequest{Learned: l}
}

func apply(t *testing.T, state *durable.State, record *pecanv1.Record) {
	t.Helper()
	if err := state.Apply(record); err != nil {
		t.Fatal(err)
	}
}

func mergeRecord(l *pecanv1.Learned) *pecanv1.Record {
	return &pecanv1.Record{Kind: &pecanv1.Record_LearnedMerged{LearnedMerged: &pecanv1.LearnedMerged{Learned: l}}}
}

// Of more than 10,000 graphs, those leave that jobs used longest ago. A graph of a registered dataset stays.
func TestWhatWasLearnedLeavesByAge(t *testing.T) {
	const most = 10_000
	state, l := durable.NewState(), &pecanv1.Learned{}
	graph := func(n int) string { return fmt.Sprintf("f%05d", n) }
	for n := range most {
		at := int64(1000 + n)
		l.Histories = append(l.Histories, &pecanv1.StoredHistory{Fingerprint: graph(n), Jobs: []*pecanv1.PastJob{{JobId: "j", Epochs: 1, NextEpoch: 1, FirstS: at, LastS: at}}})
	}
	// No job has read an epoch of graph 5.
	l.Histories = append(l.Histories[:5], l.Histories[6:]...)
	l.Profiles = append(l.Profiles, &pecanv1.StoredProfile{Fingerprint: graph(5)}, &pecanv1.StoredProfile{Fingerprint: graph(1)})
	l.Placements = append(l.Placements, &pecanv1.PlacementKnown{Fingerprint: graph(1)})
	apply(t, state, mergeRecord(l))
	apply(t, state, &pecanv1.Record{Kind: &pecanv1.Record_DatasetAdded{DatasetAdded: &pecanv1.DatasetAdded{Dataset: &pecanv1.StoredDataset{DatasetId: "d", Fingerprint: graph(0)}}}})
	known := func(n int) int { return proto.Size(state.LearnedOf(graph(n))) }
	for n, leaves := range []int{5, 1, 2} {
		if len(state.LearnedGraphs()) != most || known(leaves) == 0 {
			t.Fatalf("before graph %d comes, %d graphs are known", most+n, len(state.LearnedGraphs()))
		}
		newer := &pecanv1.PastJob{JobId: "j", Epochs: 1, NextEpoch: 1, FirstS: 90_000, LastS: 90_000}
		apply(t, state, mergeRecord(&pecanv1.Learned{Histories: []*pecanv1.StoredHistory{{Fingerprint: graph(most + n), Jobs: []*pecanv1.PastJob{newer}}}}))
		if known(leaves) != 0 || known(0) == 0 || known(most+n) == 0 {
			t.Errorf("after graph %d came, %d bytes of graph %d are known", most+n, known(leaves), leaves)
		}
	}
	// Without its dataset, the oldest graph is the next one to leave.
	apply(t, state, &pecanv1.Record{Kind: &pecanv1.Record_DatasetRemoved{DatasetRemoved: &pecanv1.DatasetRemoved{DatasetId: "d", KeepsLearned: true}}})
	if known(0) == 0 {
		t.Error("what is known of a graph went with its dataset")
	}
	apply(t, state, mergeRecord(&pecanv1.Learned{Profiles: []*pecanv1.StoredProfile{{Fingerprint: graph(3)}, {Fingerprint: "old"}}}))
	if proto.Size(state.LearnedOf("old")) != 0 || known(0) == 0 {
		t.Error("a graph that no job has read replaced one that a job has")
	}
	data, err := state.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	restored, err := durable.Restore(data)
	if err != nil || restored.Hash() != state.Hash() || len(restored.LearnedGraphs()) != most {
		t.Fatalf("a snapshot of it differs (%v)", err)
	}
	newest := mergeRecord(&pecanv1.Learned{Histories: []*pecanv1.StoredHistory{{Fingerprint: "newest", Jobs: []*pecanv1.PastJob{{JobId: "j", Epochs: 1, NextEpoch: 1, FirstS: 99_000, LastS: 99_000}}}}})
	for _, s := range []*durable.State{state, restored} {
		apply(t, s, proto.CloneOf(newest))
		if s.Hash() != state.Hash() || len(s.LearnedOf(graph(0)).Histories) != 0 {
			t.Error("after a restart, another graph leaves")
		}
	}
}

// A journal says what its dispatcher did next, so the rules of the version that wrote it choose between two orders.
func TestAMergeOfAnEarlierVersionIsReplayedAsItWas(t *testing.T) {
	const adopted, piloted = pecanv1.OrderStage_ORDER_STAGE_UNSPECIFIED, pecanv1.OrderStage_ORDER_STAGE_PILOTED
	order := func(stage pecanv1.OrderStage, suspicions uint32) *pecanv1.StoredOrder {
		o := merged(args{"fingerprint": "f1", "plan": "h", "order": "b,a"}).Learned.Orders[0]
		o.Stage, o.Suspicions = stage, suspicions
		return o
	}
	for _, replace := range []bool{false, true} {
		state, found := durable.NewState(), order(adopted, 1)
		apply(t, state, mergeRecord(&pecanv1.Learned{Orders: []*pecanv1.StoredOrder{order(piloted, 0)}}))
		record := mergeRecord(&pecanv1.Learned{Orders: []*pecanv1.StoredOrder{found}})
		record.GetLearnedMerged().OrdersReplace = replace
		apply(t, state, record)
		if got, want := state.Decision(durable.KeyOf(found)).GetStage(), map[bool]pecanv1.OrderStage{false: piloted, true: adopted}[replace]; got != want {
			t.Errorf("the orders replace those that are known: %v: the stage is %v, want %v", replace, got, want)
		}
	}
}

// A file or another dispatcher may say anything. What cannot be is refused, and changes nothing.
func TestImpossibleLearnedValuesAreRefused(t *testing.T) {
	order := func(change func(*pecanv1.StoredOrder)) *pecanv1.Learned {
		o := merged(args{"fingerprint": "f1", "plan": "h", "order": "b,a"}).Learned.Orders[0]
		change(o)
		return &pecanv1.Learned{Orders: []*pecanv1.StoredOrder{o}}
	}
	history := func(fingerprint string, jobs ...*pecanv1.PastJob) *pecanv1.Learned {
		return &pecanv1.Learned{Histories: []*pecanv1.StoredHistory{{Fingerprint: fingerprint, Jobs: jobs}}}
	}
	job := func(id string, epochs, next uint64, first, last int64) *pecanv1.PastJob {
		return &pecanv1.PastJob{JobId: id, Epochs: epochs, NextEpoch: next, FirstS: first, LastS: last}
	}
	placement := func(k *pecanv1.PlacementKnown) *pecanv1.Learned {
		return &pecanv1.Learned{Placements: []*pecanv1.PlacementKnown{k}}
	}
	caching := func(c *pecanv1.StoredCaching) *pecanv1.Learned {
		return &pecanv1.Learned{Cachings: []*pecanv1.StoredCaching{c}}
	}
	reader := func(keys ...string) *pecanv1.PastJob {
		past := job("j1", 1, 1, 5, 5)
		past.CacheKeys = keys
		return past
	}
	var many []*pecanv1.PastJob
	for n := range pecanv1.MaxPastJobs + 1 {
		many = append(many, job(fmt.Sprintf("j%02d", n), 1, 1, 5, 5))
	}
	s := newScript(t)
	s.run("start cluster=c")
	for name, l := range map[string]*pecanv1.Learned{
		"nothing":                       nil,
		"nothing in it":                 {},
		"an order without a trial":      order(func(o *pecanv1.StoredOrder) { o.Trial = nil }),
		"an order for no graph":         order(func(o *pecanv1.StoredOrder) { o.Fingerprint = "" }),
		"a step twice":                  order(func(o *pecanv1.StoredOrder) { o.Order = []string{"a", "a"} }),
		"an unknown stage":              order(func(o *pecanv1.StoredOrder) { o.Stage = 77 }),
		"no order that is rolled back":  order(func(o *pecanv1.StoredOrder) { o.Order, o.Stage = nil, pecanv1.OrderStage_ORDER_STAGE_ROLLED_BACK }),
		"no time in production":         order(func(o *pecanv1.StoredOrder) { o.Production = &pecanv1.OrderProduction{OrderedS: math.NaN()} }),
		"a profile out of order":        {Profiles: []*pecanv1.StoredProfile{{Fingerprint: "f1", Nodes: nodes([]string{"b:1:1", "a:1:1"})}}},
		"a profile of no graph":         {Profiles: []*pecanv1.StoredProfile{{}}},
		"a placement of no graph":       placement(&pecanv1.PlacementKnown{}),
		"a curve without a rate":        placement(&pecanv1.PlacementKnown{Fingerprint: "f1", LocalCurve: &pecanv1.PlacementCurve{Rate: math.Inf(1)}}),
		"a load that is none":           placement(&pecanv1.PlacementKnown{Fingerprint: "f1", Load: &pecanv1.PlacementLoad{Slowdown: math.NaN()}}),
		"a cache of no graph":           caching(&pecanv1.StoredCaching{KeptS: 1}),
		"a cache at no time":            caching(&pecanv1.StoredCaching{Fingerprint: "f1"}),
		"a cache of no score":           caching(&pecanv1.StoredCaching{Fingerprint: "f1", KeptS: 1, Decision: &pecanv1.CacheDecision{Total: math.NaN()}}),
		"a cache of a step twice":       caching(&pecanv1.StoredCaching{Fingerprint: "f1", KeptS: 1, Decision: &pecanv1.CacheDecision{Order: []string{"a", "a"}}}),
		"an epoch of no time":           caching(&pecanv1.StoredCaching{Fingerprint: "f1", KeptS: 1, Epochs: []*pecanv1.MeasuredEpoch{{}}}),
		"an epoch of ages":              caching(&pecanv1.StoredCaching{Fingerprint: "f1", KeptS: 1, Epochs: []*pecanv1.MeasuredEpoch{{Seconds: 1e308}}}),
		"an endless epoch":              caching(&pecanv1.StoredCaching{Fingerprint: "f1", KeptS: 1, Epochs: []*pecanv1.MeasuredEpoch{{Seconds: math.Inf(1)}}}),
		"a history of no graph":         history("", job("j1", 1, 1, 5, 5)),
		"a history without jobs":        history("f1"),
		"too many jobs":                 history("f1", many...),
		"a job twice":                   history("f1", job("j1", 1, 1, 5, 5), job("j1", 1, 1, 5, 6)),
		"jobs out of order":             history("f1", job("j1", 1, 1, 5, 7), job("j2", 1, 1, 5, 6)),
		"a job without a name":          history("f1", job("", 1, 1, 5, 5)),
		"a job without an epoch":        history("f1", job("j1", 0, 1, 5, 5)),
		"more epochs than were opened":  history("f1", job("j1", 3, 2, 5, 5)),
		"a job that ended before begin": history("f1", job("j1", 1, 1, 5, 4)),
		"a job at no time":              history("f1", job("j1", 1, 1, 0, 4)),
		"a cache without a key":         history("f1", reader("")),
		"keys that are too long":        history("f1", reader("0123456789abcdef0")),
		"a key twice":                   history("f1", reader("a", "a")),
		"too many keys":                 history("f1", reader(strings.Split("abcdefghijklmn", "")...)),
	} {
		before := s.core.State().Hash()
		result := s.decide(&pecanv1.MergeLearnedRequest{Learned: l})
		if result.Err == nil || s.core.State().Apply(mergeRecord(l)) == nil || s.core.State().Hash() != before {
			t.Errorf("%s is accepted", name)
		}
	}
	if result := s.decide(&pecanv1.MergeLearnedRequest{Learned: order(func(*pecanv1.StoredOrder) {})}); result.Err != nil {
		t.Error(result.Err)
	}
}

// The graph of a job may not allow the order that another dispatcher decided on.
func TestAnOrderThatTheGraphDoesNotAllowIsRolledBack(t *testing.T) {
	s := newScript(t)
	for _, line := range []string{
		"start cluster=c", "merge fingerprint=f1 plan=h order=Crop,Jitter", "dataset fingerprint=f1", "job client=a request=r1 dataset=f1 streams=2 order=auto hash=h",
		"job client=b request=r2 dataset=f1 streams=2 order=off hash=h",
	} {
		s.run(line)
	}
	if decided := s.core.DecidedOrder("j1"); decided == nil || decided.Fingerprint != "f1" || decided.Order.Hash != pecanv1.OrderHash(decided.Plan, []string{"Crop", "Jitter"}) ||
		decided.Options.OrderTolerance != pecanv1.OrderTolerance_ORDER_TOLERANCE_APPROXIMATE {
		t.Errorf("the order to check is %v", decided)
	}
	for _, job := range []string{"j2", "j9"} {
		if decided := s.core.DecidedOrder(job); decided != nil {
			t.Errorf("the order of %s is %v", job, decided)
		}
		s.decide(core.OrderRefused{JobID: job, Why: "Crop must stay"})
	}
	if state := s.core.Status(s.now).Jobs[0].Order.State; state != "adopted" {
		t.Errorf("before the check the order is %s", state)
	}
	s.decide(core.OrderRefused{JobID: "j1", Why: "Crop must stay"})
	s.checkReplay()
	if order := s.core.Status(s.now).Jobs[0].Order; order.State != "rolled back" || order.Why != "Crop must stay" || s.core.DecidedOrder("j1") != nil {
		t.Errorf("after the check the order is %v", order)
	}
}

// history says that a job began an epoch of a graph at a time.
func historyAt(fingerprint string, at int64) *pecanv1.StoredHistory {
	return &pecanv1.StoredHistory{Fingerprint: fingerprint, Jobs: []*pecanv1.PastJob{{JobId: "j", Epochs: 1, NextEpoch: 1, FirstS: at, LastS: at}}}
}

// manyGraphs knows this many graphs, which jobs used after the start of a script.
func manyGraphs(first, n int, at int64) *pecanv1.Learned {
	l := &pecanv1.Learned{}
	for k := first; k < first+n; k++ {
		l.Histories = append(l.Histories, historyAt(fmt.Sprintf("f%06d", k), at+int64(k)))
		l.Placements = append(l.Placements, &pecanv1.PlacementKnown{Fingerprint: fmt.Sprintf("f%06d", k)})
	}
	return l
}

// A graph that jobs used long ago would be the first to leave, but a dataset has it when it is known.
func TestWhatIsRecalledForADatasetStays(t *testing.T) {
	s := newScript(t)
	s.run("start cluster=c")
	s.decide(&pecanv1.MergeLearnedRequest{Learned: manyGraphs(0, 10_000, 1_000_000_000)})
	old := &pecanv1.Learned{Histories: []*pecanv1.StoredHistory{historyAt("old", 5)}}
	result := s.decide(core.AddDataset{DerivedIDs: []string{"old"}, Fingerprint: "old", Learned: old})
	if known := s.core.State().LearnedOf("old"); result.Err != nil || !proto.Equal(known, old) {
		t.Errorf("after its dataset was registered, %v is known of a graph (%v)", known, result.Err)
	}
	if n := len(s.core.State().LearnedGraphs()); n != 10_000 {
		t.Errorf("%d graphs are known", n)
	}
	// What another dispatcher has kept meanwhile is added when the dataset is registered again.
	old.Placements = []*pecanv1.PlacementKnown{{Fingerprint: "old", Remote: 3}}
	for _, records := range []int{1, 0} {
		if result := s.decide(core.AddDataset{DerivedIDs: []string{"old"}, Fingerprint: "old", Learned: old}); result.Err != nil || len(result.Records) != records {
			t.Errorf("records %v (%v), want %d", result.Records, result.Err, records)
		}
	}
	if known := s.core.State().LearnedOf("old"); !proto.Equal(known, old) {
		t.Errorf("%v is known", known)
	}
}

// However many graphs have results of searches, further ones are kept. Of one graph, those leave that were found first.
func TestTheOldestResultsOfSearchesAreForgotten(t *testing.T) {
	const most = 16
	state := durable.NewState()
	apply(t, state, mergeRecord(manyGraphs(0, 10_000, 1000)))
	apply(t, state, &pecanv1.Record{Kind: &pecanv1.Record_DatasetAdded{DatasetAdded: &pecanv1.DatasetAdded{Dataset: &pecanv1.StoredDataset{DatasetId: "d", Fingerprint: "new"}}}})
	kept := func(trainer int, at int64) {
		known := &pecanv1.PlacementKnown{Fingerprint: "new", TrainerType: fmt.Sprintf("t%02d", trainer), KeptS: at}
		apply(t, state, &pecanv1.Record{Kind: &pecanv1.Record_PlacementLearned{PlacementLearned: &pecanv1.PlacementLearned{Known: known}}})
	}
	for n := range most {
		kept(n, int64(100-n))
	}
	for _, trainer := range []int{20, 21} {
		// The clock of another host may be behind.
		kept(trainer, 1)
	}
	kept(22, math.MaxInt64)
	known := state.LearnedOf("new").Placements
	if len(known) != most || known[0].TrainerType != "t00" || known[most-1].TrainerType != "t22" || known[most-2].TrainerType == "t20" {
		t.Errorf("%d results are kept: %v", len(known), known)
	}
}

// A host with a wrong clock, or a peer that lies, cannot make others' graphs leave forever.
func TestTimesOfMergedLearnedStateAreAtMostNow(t *testing.T) {
	s := newScript(t)
	s.run("start cluster=c")
	far := int64(1) << 60
	s.decide(&pecanv1.MergeLearnedRequest{Learned: &pecanv1.Learned{
		Histories: []*pecanv1.StoredHistory{{Fingerprint: "f", Jobs: []*pecanv1.PastJob{
			{JobId: "b", Epochs: 1, NextEpoch: 1, FirstS: 5, LastS: 6}, {JobId: "c", Epochs: 1, NextEpoch: 1, FirstS: 5, LastS: far}, {JobId: "a", Epochs: 1, NextEpoch: 1, FirstS: far, LastS: far + 1},
		}}},
		Placements: []*pecanv1.PlacementKnown{{Fingerprint: "f", KeptS: far}},
	}})
	known := s.core.State().LearnedOf("f")
	if len(known.Histories) != 1 || known.Histories[0].LastS() != s.unix() || known.Placements[0].KeptS != s.unix() {
		t.Errorf("%v is known at %d s", known, s.unix())
	}
}

// What a peer makes the dispatcher keep is bounded, for each graph and in all.
func TestWhatAMergeAddsIsBounded(t *testing.T) {
	s := newScript(t)
	s.run("start cluster=c")
	ordered := func(fingerprint, plan, why string) *pecanv1.StoredOrder {
		o := merged(args{"fingerprint": fingerprint, "plan": plan, "order": "b,a"}).Learned.Orders[0]
		o.Why = why
		return o
	}
	l := &pecanv1.Learned{}
	for n := range 1000 {
		l.Orders = append(l.Orders, ordered("f", fmt.Sprintf("h%03d", n), ""))
		l.Placements = append(l.Placements, &pecanv1.PlacementKnown{Fingerprint: "f", TrainerType: fmt.Sprint(n)})
	}
	for _, records := range []int{1, 0} {
		result := s.decide(&pecanv1.MergeLearnedRequest{Learned: l})
		known := s.core.State().LearnedOf("f")
		if len(known.Orders) != 64 || len(known.Placements) != 16 || len(result.Records) != records {
			t.Errorf("of one graph %d orders and %d placements are known, %d records", len(known.Orders), len(known.Placements), len(result.Records))
		}
	}
	large := strings.Repeat("x", 2<<20)
	for n := range 200 {
		fingerprint := fmt.Sprintf("large%03d", n)
		s.decide(&pecanv1.MergeLearnedRequest{Learned: &pecanv1.Learned{Orders: []*pecanv1.StoredOrder{ordered(fingerprint, "h", large)}}})
		s.decide(&pecanv1.MergeLearnedRequest{Learned: &pecanv1.Learned{Orders: []*pecanv1.StoredOrder{ordered(fingerprint, "g", large)}}})
	}
	if n := len(s.core.State().LearnedGraphs()); n < 100 || n > 128 {
		t.Errorf("%d graphs of 2 MiB are known, want at most 256 MiB in all", n)
	}
	if orders := s.core.State().LearnedOf("large199").Orders; len(orders) != 1 {
		t.Errorf("%d orders of 2 MiB are known of one graph, want the first", len(orders))
	}
}
