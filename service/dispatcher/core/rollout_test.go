package core_test

import (
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/dispatcher/core"
	"github.com/pecan-ml/pecan/service/dispatcher/core/rollout"
)

func (s *script) orderInput(command string, a args) any {
	from := func(m *pecanv1.WorkerMessage) any {
		return core.FromWorker{Session: core.SessionID(a.number("session")), Message: m}
	}
	switch command {
	case "metrics":
		s.metricsSequence++
		return from(&pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Metrics{Metrics: &pecanv1.JobMetrics{
			JobId: a["job"], Generation: 1, Sequence: s.metricsSequence, Nodes: nodes(a.list("nodes")), Ordered: nodes(a.list("ordered")),
			Failed: a.number("failed"), OrderedFailed: a.number("ordered-failed"),
		}}})
	case "rolled_back":
		return core.OrderRefused{JobID: a["job"], Why: a["why"]}
	case "planned":
		planned := rollout.Planned{
			Number: a.number("asked"), Order: a.list("order"), Why: a["why"], Retry: a["again"], PredictedBefore: a.float("before"), PredictedAfter: a.float("after"),
		}
		for _, name := range a.list("steps") {
			node, op, _ := strings.Cut(name, "/")
			planned.Steps = append(planned.Steps, &pecanv1.ExplainedStep{Node: node, Op: op, Inside: node[:max(0, strings.LastIndex(node, ":"))]})
		}
		if a.has("wider") {
			planned.WiderTolerance = enum[pecanv1.OrderTolerance](pecanv1.OrderTolerance_value, "ORDER_TOLERANCE_", a["wider"])
			planned.Wider = &rollout.Planned{Order: a.list("wider-order"), Steps: planned.Steps, PredictedBefore: planned.PredictedBefore, PredictedAfter: a.float("wider-after")}
		}
		return planned
	case "tried":
		report := &pecanv1.OrderTried{Id: a["id"]}
		if !a.has("empty") {
			report.Trial = &pecanv1.OrderTrial{
				Elements: uint32(a.number("elements")), OriginalS: a.float("original"), OrderedS: a.float("ordered"), CpuS: a.float("cpu"), Refused: a["refused"],
				Inconclusive: a.has("short"),
			}
			if a.has("differs") {
				report.Trial.Components = []*pecanv1.OrderDifference{{MaxDifference: a.float("differs"), Bound: -1, Range: 10}}
			}
		}
		return from(&pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_OrderTried{OrderTried: report}})
	}
	return nil
}

func (a args) float(name string) float64 {
	f, _ := strconv.ParseFloat(a[name], 64)
	return f
}

// nodes reads name:elements:seconds,... A name with a colon is that of a step in the function of the step before the colon. That
// step has seconds@elements, with the elements that its function has returned.
func nodes(texts []string) (list []*pecanv1.NodeMetrics) {
	for _, text := range texts {
		parts := strings.Split(text, ":")
		at := len(parts) - 2
		node := &pecanv1.NodeMetrics{Node: strings.Join(parts[:at], ":"), Op: "Op"}
		node.Elements, _ = strconv.ParseUint(parts[at], 10, 64)
		seconds, inside, _ := strings.Cut(parts[at+1], "@")
		node.SelfCpuS, _ = strconv.ParseFloat(seconds, 64)
		node.InsideElements, _ = strconv.ParseUint(inside, 10, 64)
		if at == 1 {
			list = append(list, node)
			continue
		}
		caller := slices.IndexFunc(list, func(n *pecanv1.NodeMetrics) bool { return n.Node == strings.Join(parts[:at-1], ":") })
		list[caller].Inside = append(list[caller].Inside, node)
	}
	return list
}

func showStage(o *pecanv1.StoredOrder) string {
	if len(o.Order) == 0 {
		return "none"
	}
	return fmt.Sprintf("%v over %v, by stream %v", o.Stage, o.Covers, o.ByStream)
}

func showNodes(list []*pecanv1.NodeMetrics) string {
	var words []string
	for _, node := range list {
		words = append(words, fmt.Sprintf("%s:%d:%.4g", node.Node, node.Elements, node.SelfCpuS))
		if len(node.Inside) > 0 {
			words = append(words, fmt.Sprintf("(%d returned of %s)", node.InsideElements, showNodes(node.Inside)))
		}
	}
	return strings.Join(words, " ")
}

func (s *script) explain(job string) []string {
	e, err := s.core.Explain(job)
	if err != nil {
		return []string{fmt.Sprintf("error %s: %s", reason.From(err).Reason, reason.From(err).Message)}
	}
	r := e.Response
	lines := []string{fmt.Sprintf("%s by %v within %v: %s: %s", r.JobId, r.Order, r.Tolerance, r.State, r.Why), fmt.Sprintf("  %v from %s", e.Order, showNodes(e.Nodes))}
	if r.PredictedBeforeS > 0 {
		lines = append(lines, fmt.Sprintf("  predicted %.4g s instead of %.4g s", r.PredictedAfterS, r.PredictedBeforeS))
	}
	if r.Trial != nil {
		lines = append(lines, fmt.Sprintf("  tried on %d elements, refused: %q", r.Trial.Elements, r.Trial.Refused))
	}
	if r.OrderAdvice != "" {
		lines = append(lines, "  "+r.OrderAdvice)
	}
	if p := r.Production; p != nil {
		lines = append(lines, fmt.Sprintf("  in production %d of %.4g s, and %d of %.4g s in the order", p.RegisteredElements, p.RegisteredS, p.OrderedElements, p.OrderedS))
	}
	return lines
}

// runFile runs the commands of a file for their records.
func (s *script) runFile(name string) {
	data, err := os.ReadFile("testdata/" + name)
	if err != nil {
		s.t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if command, ok := strings.CutPrefix(strings.TrimSpace(line), "> "); ok {
			s.run(command)
		}
	}
}

// Records that do not fit are refused, and change nothing.
func TestOrdersThatDoNotFitAreRefused(t *testing.T) {
	begin := func(t *testing.T) *script {
		s := newScript(t)
		for _, line := range []string{"start cluster=c", "dataset fingerprint=f1", "job client=a request=r1 dataset=f1 streams=1 order=auto hash=h"} {
			s.run(line)
		}
		return s
	}
	good := func() *pecanv1.StoredOrder {
		return &pecanv1.StoredOrder{
			Fingerprint: "f1", Policy: pecanv1.Order_ORDER_AUTO, Tolerance: pecanv1.OrderTolerance_ORDER_TOLERANCE_APPROXIMATE, PlanHash: "h",
			Order: []string{"b", "a"}, Trial: &pecanv1.OrderTrial{Elements: 40},
		}
	}
	decided := func(o *pecanv1.StoredOrder) *pecanv1.Record {
		return &pecanv1.Record{Kind: &pecanv1.Record_OrderDecided{OrderDecided: &pecanv1.OrderDecided{Decided: o}}}
	}
	changed := func(change func(*pecanv1.StoredOrder)) *pecanv1.Record {
		o := good()
		change(o)
		return decided(o)
	}
	kept := func(fingerprint string, nodes ...*pecanv1.NodeMetrics) *pecanv1.Record {
		return &pecanv1.Record{Kind: &pecanv1.Record_ProfileKept{ProfileKept: &pecanv1.ProfileKept{Profile: &pecanv1.StoredProfile{Fingerprint: fingerprint, Nodes: nodes}}}}
	}
	opened := func(order ...string) *pecanv1.Record {
		return &pecanv1.Record{Kind: &pecanv1.Record_EpochOpened{EpochOpened: &pecanv1.EpochOpened{JobId: "j1", Streams: 1, Order: order}}}
	}
	s := begin(t)
	for name, record := range map[string]*pecanv1.Record{
		"no decision":                    decided(nil),
		"no dataset":                     changed(func(o *pecanv1.StoredOrder) { o.Fingerprint = "f2" }),
		"no fingerprint":                 changed(func(o *pecanv1.StoredOrder) { o.Fingerprint = "" }),
		"nobody's policy":                changed(func(o *pecanv1.StoredOrder) { o.Policy = pecanv1.Order_ORDER_OFF }),
		"no tolerance":                   changed(func(o *pecanv1.StoredOrder) { o.Tolerance = 0 }),
		"an unknown tolerance":           changed(func(o *pecanv1.StoredOrder) { o.Tolerance = 7 }),
		"a step twice":                   changed(func(o *pecanv1.StoredOrder) { o.Order = []string{"a", "a"} }),
		"a step without a name":          changed(func(o *pecanv1.StoredOrder) { o.Order = []string{"a", ""} }),
		"an order without a trial":       changed(func(o *pecanv1.StoredOrder) { o.Trial = nil }),
		"an order that a trial refused":  changed(func(o *pecanv1.StoredOrder) { o.Trial.Refused = "slower" }),
		"no profile":                     {Kind: &pecanv1.Record_ProfileKept{ProfileKept: &pecanv1.ProfileKept{}}},
		"a profile of nobody":            kept("f2"),
		"a profile out of order":         kept("f1", &pecanv1.NodeMetrics{Node: "b"}, &pecanv1.NodeMetrics{Node: "a"}),
		"a profile with a node twice":    kept("f1", &pecanv1.NodeMetrics{Node: "b"}, &pecanv1.NodeMetrics{Node: "b"}),
		"a profile without a name":       kept("f1", &pecanv1.NodeMetrics{}),
		"a profile of no time":           kept("f1", &pecanv1.NodeMetrics{Node: "a", SelfCpuS: math.NaN()}),
		"a profile of less than no time": kept("f1", &pecanv1.NodeMetrics{Node: "a", SelfCpuS: -1}),
		"an epoch in nobody's order":     opened("b", "a"),
	} {
		before := s.core.State().Hash()
		if err := s.core.State().Apply(record); err == nil || s.core.State().Hash() != before {
			t.Errorf("%s: %v", name, err)
		}
	}
	inStreams := func(record *pecanv1.Record, streams ...uint32) *pecanv1.Record {
		record.GetEpochOpened().OrderStreams = streams
		return record
	}
	judged := func(stage pecanv1.OrderStage, seconds float64) *pecanv1.Record {
		return &pecanv1.Record{Kind: &pecanv1.Record_OrderJudged{OrderJudged: &pecanv1.OrderJudged{
			Fingerprint: "f1", Policy: good().Policy, Tolerance: good().Tolerance, PlanHash: "h", Stage: stage, Production: &pecanv1.OrderProduction{OrderedS: seconds},
		}}}
	}
	spread := func(r *pecanv1.OrderSpread) *pecanv1.Record {
		r.JobId = "j1"
		return &pecanv1.Record{Kind: &pecanv1.Record_OrderSpread{OrderSpread: r}}
	}
	const adopted, piloted, back = pecanv1.OrderStage_ORDER_STAGE_UNSPECIFIED, pecanv1.OrderStage_ORDER_STAGE_PILOTED, pecanv1.OrderStage_ORDER_STAGE_ROLLED_BACK
	for _, step := range []struct {
		record *pecanv1.Record
		fits   bool
	}{
		{judged(back, 1), false},
		{changed(func(o *pecanv1.StoredOrder) { o.Stage = back }), false},
		{changed(func(o *pecanv1.StoredOrder) { o.Stage, o.Order = piloted, nil }), false},
		{changed(func(o *pecanv1.StoredOrder) { o.Covers = []string{"c"} }), false},
		{changed(func(o *pecanv1.StoredOrder) { o.Covers = []string{"a", "a"} }), false},
		{changed(func(o *pecanv1.StoredOrder) { o.Production = &pecanv1.OrderProduction{} }), false},
		{changed(func(o *pecanv1.StoredOrder) { o.Stage, o.Covers = piloted, []string{"a", "b"} }), true},
		{decided(good()), false},
		{kept("f1", &pecanv1.NodeMetrics{Node: "a"}, &pecanv1.NodeMetrics{Node: "b"}), true},
		{inStreams(opened(), 0), false},
		{inStreams(opened("b", "a"), 1), false},
		{inStreams(opened("b", "a"), 0, 0), false},
		{inStreams(opened("b", "a"), 0), true},
		{spread(&pecanv1.OrderSpread{Order: []string{"a", "b"}, OrderStreams: []uint32{0}}), false},
		{spread(&pecanv1.OrderSpread{Order: []string{"b", "a"}}), false},
		{spread(&pecanv1.OrderSpread{Order: []string{"b", "a"}, OrderStreams: []uint32{1}}), false},
		{spread(&pecanv1.OrderSpread{Order: []string{"b", "a"}, OrderFrom: 0, OrderBelow: 2}), false},
		{spread(&pecanv1.OrderSpread{OrderBelow: 1}), false},
		{spread(&pecanv1.OrderSpread{Epoch: 1, Order: []string{"b", "a"}, OrderStreams: []uint32{0}}), false},
		{spread(&pecanv1.OrderSpread{}), true},
		{spread(&pecanv1.OrderSpread{}), false},
		{spread(&pecanv1.OrderSpread{Order: []string{"a", "b"}, OrderStreams: []uint32{0}}), false},
		{spread(&pecanv1.OrderSpread{Order: []string{"b", "a"}, OrderBelow: 1}), true},
		{judged(piloted, 1), false},
		{judged(adopted, math.NaN()), false},
		{judged(adopted, 1), true},
		{judged(adopted, 1), false},
		{judged(back, -1), false},
		{judged(back, 1), true},
		{judged(back, 1), false},
		{&pecanv1.Record{Kind: &pecanv1.Record_OrderJudged{}}, false},
	} {
		before := s.core.State().Hash()
		if err := s.core.State().Apply(step.record); (err == nil) != step.fits || step.fits == (s.core.State().Hash() == before) {
			t.Errorf("%v: %v", step.record, err)
		}
	}
	next := opened("b", "a")
	next.GetEpochOpened().Epoch = 1
	if s.core.State().Apply(next) == nil {
		t.Error("an epoch was opened in an order that was rolled back")
	}
}

// In journals of earlier versions, orders and profiles of a graph go with its last dataset, and not before.
func TestOrdersOfOlderRecordsGoWithTheLastDataset(t *testing.T) {
	s := newScript(t)
	s.runFile("order_adopted.txt")
	state := s.core.State()
	add := &pecanv1.StoredDataset{DatasetId: "again", Fingerprint: "f1"}
	remove := func(id string) *pecanv1.Record {
		return &pecanv1.Record{Kind: &pecanv1.Record_DatasetRemoved{DatasetRemoved: &pecanv1.DatasetRemoved{DatasetId: id}}}
	}
	for _, step := range []struct {
		record *pecanv1.Record
		left   int
	}{
		{&pecanv1.Record{Kind: &pecanv1.Record_DatasetAdded{DatasetAdded: &pecanv1.DatasetAdded{Dataset: add}}}, 1},
		{remove("f1"), 1},
		{remove("again"), 0},
	} {
		if err := state.Apply(proto.Clone(step.record).(*pecanv1.Record)); err != nil {
			t.Fatal(err)
		}
		if snapshot := state.Snapshot(); len(snapshot.Orders) != step.left || len(snapshot.Profiles) != step.left {
			t.Fatalf("after %v: %d orders, %d profiles", step.record, len(snapshot.Orders), len(snapshot.Profiles))
		}
	}
}

const plannedOrder = "planned asked=1 order=Crop,Jitter steps=Jitter,Crop before=0.0127 after=0.004 why=Crop_moves_down"

// O1: workers die while they try an order. Others try it, twice at most; then the registered order stays. The
// workers' streams move, and no element is blamed.
func TestO1AnOrderThatEndsItsWorkersIsRefused(t *testing.T) {
	s := newScript(t)
	for _, line := range []string{
		"start cluster=c", "dataset fingerprint=f1", "hello session=1 worker=w1 slots=2",
		"job client=a request=r1 dataset=f1 streams=2 order=auto hash=h cardinality=100000", "open client=a request=o1 job=j1",
		"metrics session=1 job=j1 nodes=Crop:400:0.1,Jitter:400:5", "wait 1s", plannedOrder,
	} {
		s.run(line)
	}
	for n := 1; n <= 3; n++ {
		if state := s.core.Status(s.now).Jobs[0].Order.State; state != "proposed" {
			t.Fatalf("after %d deaths the order is %s", n-1, state)
		}
		lease := 2*n - 1
		s.run(fmt.Sprintf("beat session=%d streams=j1/0/0:%d:5:0,j1/0/1:%d:5:0", n, lease, lease+1))
		s.run(fmt.Sprintf("crashes worker=w%d running=j1/0/0:%d:5:0", n, lease))
		s.run(fmt.Sprintf("broken session=%d", n))
		s.run("wait 1100ms")
		s.run(fmt.Sprintf("hello session=%d worker=w%d slots=2", n+1, n+1))
		s.run("heartbeat client=a jobs=j1 passes=j1/0:0")
		s.run("wait 1s")
		for _, stream := range s.core.State().Jobs()[0].Epochs[0].Active() {
			if stream.Deaths+stream.Crashes > 0 || stream.Worker.GetWorkerId() != fmt.Sprintf("w%d", n+1) {
				t.Errorf("after %d deaths the stream is %v", n, stream)
			}
		}
	}
	if job := s.core.Status(s.now).Jobs[0]; job.Order.State != "refused" || len(s.core.State().Snapshot().Orders) != 1 {
		t.Errorf("after three deaths: %v", job)
	}
	s.checkReplay()
}

// O2: the dispatcher dies at any point of a rollout. Without a decision, the rollout starts again. A stream has
// one order from its first lease to its last.
func TestO2ADispatcherThatDiesDuringARollout(t *testing.T) {
	way := []string{
		"hello session=1 worker=w1 slots=4", "job client=a request=r1 dataset=f1 streams=2 order=auto hash=h cardinality=100000",
		"open client=a request=o1 job=j1", "metrics session=1 job=j1 nodes=Crop:400:0.1,Jitter:400:5", "wait 1s", plannedOrder,
		"tried session=1 id=1-1 elements=40 original=0.0127 ordered=0.004", "open client=a request=o2 job=j1",
		"metrics session=1 job=j1 nodes=Crop:2000:0.5,Jitter:2000:26 ordered=Crop:900:0.2,Jitter:900:6", "wait 1s", "open client=a request=o3 job=j1",
	}
	again := []string{
		"hello session=2 worker=w1 slots=4 cluster=c", way[1], way[2], "metrics session=2 job=j1 nodes=Crop:400:0.1,Jitter:400:5", "wait 1s", plannedOrder,
		"tried session=2 id=1-1 elements=40 original=0.0127 ordered=0.004", "tried session=2 id=2-1 elements=40 original=0.0127 ordered=0.004",
		// Metrics from before the restart no longer count for an open epoch. The next epoch is a pilot, too.
		way[7], way[10], "metrics session=2 job=j1 nodes=Crop:2000:0.5,Jitter:2000:26 ordered=Crop:900:0.2,Jitter:900:6", "wait 1s",
		"open client=a request=o4 job=j1",
	}
	for dies := range len(way) + 1 {
		s := newScript(t)
		s.run("start cluster=c")
		s.run("dataset fingerprint=f1")
		for _, line := range way[:dies] {
			s.run(line)
		}
		s.run("restart")
		for _, line := range again {
			s.run(line)
		}
		s.checkReplay()
		snapshot := s.core.State().Snapshot()
		if len(snapshot.Orders) != 1 || len(snapshot.Profiles) != 1 || s.core.Status(s.now).Jobs[0].Order.State != "adopted" {
			t.Errorf("died after %d steps: %v", dies, snapshot.Orders)
		}
		for i, epoch := range snapshot.Jobs[0].Epochs {
			last := i == len(snapshot.Jobs[0].Epochs)-1
			if ordered, whole := len(epoch.Order) > 0, len(epoch.OrderStreams) == 0; ordered != (i > 0) || i == 1 && whole || last && !whole {
				t.Errorf("died after %d steps: epoch %d has the order %v in %v", dies, i, epoch.Order, epoch.OrderStreams)
			}
		}
	}
}

// tries runs a job of this many seconds of CPU for each element until a trial begins, or until the job ends after its elements. It
// returns the elements that were done, and the budget of the trial in seconds.
func tries(t *testing.T, each float64, cardinality, elements int, gain float64) (done int, budget float64) {
	t.Helper()
	s := newScript(t)
	for _, line := range []string{
		"start cluster=c", "dataset fingerprint=f1", "hello session=1 worker=w1 slots=2",
		fmt.Sprintf("job client=a request=r1 dataset=f1 streams=2 order=auto hash=h cardinality=%d", cardinality), "open client=a request=o1 job=j1",
	} {
		s.run(line)
	}
	planned := false
	for done = 20; done <= elements; done += max(20, done/20) {
		lines := s.run(fmt.Sprintf("metrics session=1 job=j1 nodes=Crop:%d:0,Jitter:%d:%g", done, done, each*float64(done)))
		s.run("beat session=1")
		s.run("heartbeat client=a jobs=j1 passes=j1/0:0")
		lines = append(lines, s.run("wait 1s")...)
		text := strings.Join(lines, "\n")
		if !planned && strings.Contains(text, "plan order 1") {
			planned = true
			text = strings.Join(s.run(fmt.Sprintf("planned asked=1 order=Crop,Jitter steps=Jitter,Crop before=1 after=%g", 1-gain)), "\n")
		}
		if _, rest, is := strings.Cut(text, "up to Crop and Jitter for "); is {
			if _, err := fmt.Sscan(rest, &budget); err != nil {
				t.Fatal(err)
			}
			return done, budget
		}
	}
	return elements, 0
}

// An order that would save 30 % or more is tried within 3 s of work or 300 elements, whichever is later. A trial costs at most
// 2 % of the work of a job whose length is known, whatever it finds, and at most a quarter of what it saves.
func TestATrialCostsWhatItsGainIsWorth(t *testing.T) {
	for _, each := range []float64{0.0005, 0.003, 0.01, 0.04, 0.2} {
		mark := int(max(300, 3/each))
		for _, gain := range []float64{0.05, 0.3, 0.6} {
			for _, epoch := range []int{500, 2000, 100_000} {
				work := each * float64(epoch)
				done, budget := tries(t, each, epoch, epoch, gain)
				if budget > 0.02*work*1.001 || budget > gain/4*(work-each*float64(done))*1.001 {
					t.Errorf("an epoch of %d elements of %g s: a trial after %d of them may cost %g s for a gain of %g", epoch, each, done, budget, gain)
				}
				if gain >= 0.3 && work > 6.25+1700*each && (budget == 0 || done > mark*106/100) {
					t.Errorf("an epoch of %d elements of %g s: the trial for a gain of %g begins after %d elements", epoch, each, gain, done)
				}
			}
			if done, budget := tries(t, each, 0, 100_000, gain); budget == 0 || gain >= 0.3 && done > mark*106/100 {
				t.Errorf("an epoch of unknown length, elements of %g s: the trial for a gain of %g begins after %d elements, and may cost %g s", each, gain, done, budget)
			}
		}
	}
}

// Trials that decide nothing cost no more in all than a share of the work. If the length of an epoch is unknown, that is a share
// of eight times what was done.
func TestAllTrialsOfAnOrderCostAShareOfTheWork(t *testing.T) {
	const each, elements = 0.01, 20_000
	for cardinality, expected := range map[int]float64{elements: 1, 0: 8} {
		s := newScript(t)
		for _, line := range []string{
			"start cluster=c", "dataset fingerprint=f1", "hello session=1 worker=w1 slots=2",
			fmt.Sprintf("job client=a request=r1 dataset=f1 streams=2 order=auto hash=h cardinality=%d", cardinality), "open client=a request=o1 job=j1",
		} {
			s.run(line)
		}
		spent, trials := 0.0, 0
		for done := 200; done <= elements; done += 200 {
			s.run(fmt.Sprintf("metrics session=1 job=j1 nodes=Crop:%d:0,Jitter:%d:%g", done, done, each*float64(done)))
			s.run("beat session=1")
			s.run("heartbeat client=a jobs=j1 passes=j1/0:0")
			lines := s.run("wait 1s")
			if strings.Contains(strings.Join(lines, "\n"), "plan order 1") {
				lines = s.run("planned asked=1 order=Crop,Jitter steps=Jitter,Crop before=1 after=0.5")
			}
			for _, line := range lines {
				var id string
				var budget float64
				if _, try, is := strings.Cut(line, ": try "); is {
					fmt.Sscan(try, &id)
					_, budgetOf, _ := strings.Cut(try, " for ")
					fmt.Sscan(budgetOf, &budget)
					spent, trials = spent+budget, trials+1
					s.run(fmt.Sprintf("tried session=1 id=%s elements=10 cpu=%g refused=unclear short=yes", id, budget))
				}
			}
			work := expected * each * float64(done)
			if cardinality > 0 {
				work = each * elements
			}
			if spent > 0.02*work*1.001 {
				t.Fatalf("%d elements: %d trials cost %g s of %g s", cardinality, trials, spent, work)
			}
		}
		if trials == 0 || cardinality == 0 && trials < 3 {
			t.Errorf("%d elements: %d trials", cardinality, trials)
		}
	}
}

// O5: production contradicts a trial. An order costs more than streams of the same epochs, or than earlier
// epochs, or it fails. It is rolled back, and a restarted dispatcher remembers that.
func TestO5ProductionContradictsATrial(t *testing.T) {
	begin := []string{
		"start cluster=c", "dataset fingerprint=f1", "hello session=1 worker=w1 slots=4", "job client=a request=r1 dataset=f1 streams=2 order=auto hash=h cardinality=100000",
		"open client=a request=o1 job=j1", "metrics session=1 job=j1 nodes=Crop:400:0.1,Jitter:400:5", "wait 1s", plannedOrder,
		"tried session=1 id=1-1 elements=40 original=0.0127 ordered=0.004", "open client=a request=o2 job=j1",
	}
	const borneOut = "metrics session=1 job=j1 nodes=Crop:1000:0.25,Jitter:1000:10.75 ordered=Crop:300:0.1,Jitter:300:2"
	for name, way := range map[string][]string{
		"same epochs":    {"metrics session=1 job=j1 nodes=Crop:1000:0.25,Jitter:1000:12 ordered=Crop:300:0.1,Jitter:300:5"},
		"later":          {borneOut, "wait 1s", "open client=a request=o3 job=j1", "metrics session=1 job=j1 nodes=Crop:1900:0.5,Jitter:1900:40 ordered=Crop:1200:0.4,Jitter:1200:31"},
		"elements fail":  {"metrics session=1 job=j1 nodes=Crop:400:0.1,Jitter:400:5 failed=1 ordered-failed=1"},
		"they fail late": {borneOut, "wait 1s", "open client=a request=o3 job=j1", borneOut + " failed=1 ordered-failed=1"},
		"a stream fails": {"failed session=1 stream=j1/1/0 lease=3 code=3 message=bad"},
		"it is not run":  {"failed session=1 stream=j1/1/0 lease=3 code=14", "failed session=1 stream=j1/1/0 lease=5 code=14", "failed session=1 stream=j1/1/0 lease=6 code=14"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScript(t)
			for _, line := range append(begin, way...) {
				s.run(line)
			}
			if state := s.core.Status(s.now).Jobs[0].Order.State; state == "rolled back" && strings.HasPrefix(way[len(way)-1], "metrics") {
				t.Fatal("it was rolled back before it was looked at")
			}
			s.run("wait 1s")
			s.run("restart")
			s.run("open client=a request=last job=j1")
			s.checkReplay()
			epochs := s.core.State().Snapshot().Jobs[0].Epochs
			if order := s.core.Status(s.now).Jobs[0].Order; order.State != "rolled back" || len(epochs[len(epochs)-1].Order) > 0 || len(epochs[1].Order) == 0 {
				t.Errorf("the order is %v, epochs are %v", order, epochs)
			}
		})
	}
}
