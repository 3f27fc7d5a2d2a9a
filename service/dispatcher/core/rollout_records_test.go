package core_test

import (
	"math"
	"testing"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

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
		return &pecanv1.Record{Kind: &pecanv1.Record_ProfileLearned{ProfileLearned: &pecanv1.ProfileLearned{Profile: &pecanv1.StoredProfile{Fingerprint: fingerprint, Nodes: nodes}}}}
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
		"no profile":                     {Kind: &pecanv1.Record_ProfileLearned{ProfileLearned: &pecanv1.ProfileLearned{}}},
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
