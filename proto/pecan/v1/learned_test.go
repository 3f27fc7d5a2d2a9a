package pecanv1_test

import (
	"fmt"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

func TestAMergeKeepsWhatIsKnownAndAddsTheRest(t *testing.T) {
	const adopted, back = pecanv1.OrderStage_ORDER_STAGE_UNSPECIFIED, pecanv1.OrderStage_ORDER_STAGE_ROLLED_BACK
	order := func(plan, why string, stage pecanv1.OrderStage) *pecanv1.StoredOrder {
		return &pecanv1.StoredOrder{Fingerprint: "f1", PlanHash: plan, Order: []string{"b", "a"}, Why: why, Stage: stage}
	}
	computed, read, readLater := &pecanv1.MeasuredEpoch{Seconds: 2}, &pecanv1.MeasuredEpoch{Node: "step", Seconds: 9}, &pecanv1.MeasuredEpoch{Node: "step", Seconds: 1}
	decided := &pecanv1.CacheDecision{Node: "step"}
	mine := &pecanv1.Learned{
		Profiles: []*pecanv1.StoredProfile{{Fingerprint: "f1", EpochsBegun: 1}},
		Orders:   []*pecanv1.StoredOrder{order("h1", "mine", adopted), order("h2", "mine", adopted), order("h3", "mine", back)},
		Histories: []*pecanv1.StoredHistory{{Fingerprint: "f1", Jobs: []*pecanv1.PastJob{
			{JobId: "j1", Epochs: 2, LastS: 20}, {JobId: "j2", Epochs: 1, LastS: 30},
		}}},
		Cachings: []*pecanv1.StoredCaching{{Fingerprint: "f1", TrainerType: "t", KeptS: 5, Decision: &pecanv1.CacheDecision{}, Epochs: []*pecanv1.MeasuredEpoch{computed, read}}, {Fingerprint: "f1", TrainerType: "u", KeptS: 9}},
	}
	found := &pecanv1.Learned{
		Profiles:   []*pecanv1.StoredProfile{{Fingerprint: "f1", EpochsBegun: 9}, {Fingerprint: "f0", EpochsBegun: 3}},
		Orders:     []*pecanv1.StoredOrder{order("h3", "found", adopted), order("h2", "found", back), order("h1", "found", adopted), order("h4", "found", adopted)},
		Placements: []*pecanv1.PlacementKnown{{Fingerprint: "f1", TrainerType: "t", Remote: 3}},
		Histories: []*pecanv1.StoredHistory{{Fingerprint: "f1", Jobs: []*pecanv1.PastJob{
			{JobId: "j3", Epochs: 1, LastS: 10}, {JobId: "j1", Epochs: 5, LastS: 50},
		}}},
		Cachings: []*pecanv1.StoredCaching{{Fingerprint: "f1", TrainerType: "t", KeptS: 7, Decision: decided, Epochs: []*pecanv1.MeasuredEpoch{readLater}}, {Fingerprint: "f1", TrainerType: "u", KeptS: 8}},
	}
	before := proto.CloneOf(mine)
	merged := pecanv1.MergeLearned(mine, found)
	if !proto.Equal(before, mine) {
		t.Error("a merge changed what was known")
	}
	want := &pecanv1.Learned{
		Profiles:   []*pecanv1.StoredProfile{{Fingerprint: "f0", EpochsBegun: 3}, {Fingerprint: "f1", EpochsBegun: 1}},
		Orders:     []*pecanv1.StoredOrder{order("h1", "mine", adopted), order("h2", "found", back), order("h3", "mine", back), order("h4", "found", adopted)},
		Placements: found.Placements,
		Histories: []*pecanv1.StoredHistory{{Fingerprint: "f1", Jobs: []*pecanv1.PastJob{
			{JobId: "j3", Epochs: 1, LastS: 10}, {JobId: "j2", Epochs: 1, LastS: 30}, {JobId: "j1", Epochs: 5, LastS: 50},
		}}},
		// The later view has the later decision. Epochs of a choice that it has not measured stay.
		Cachings: []*pecanv1.StoredCaching{{Fingerprint: "f1", TrainerType: "t", KeptS: 7, Decision: decided, Epochs: []*pecanv1.MeasuredEpoch{readLater, computed}}, mine.Cachings[1]},
	}
	if !proto.Equal(merged, want) {
		t.Errorf("merged\n%v\nwant\n%v", merged, want)
	}
	if again := pecanv1.MergeLearned(merged, found); !proto.Equal(again, merged) {
		t.Errorf("a second merge changed it:\n%v\n%v", again, merged)
	}
	if graphs := merged.Graphs(); !slices.Equal(graphs, []string{"f0", "f1"}) {
		t.Errorf("it says something of %v", graphs)
	}
	if of := merged.Of("f0"); !proto.Equal(of, &pecanv1.Learned{Profiles: want.Profiles[:1]}) {
		t.Errorf("it says of f0 %v", of)
	}
	parts, again := []string{}, &pecanv1.Learned{}
	for fingerprint, of := range merged.ByGraph() {
		if parts = append(parts, fingerprint); !proto.Equal(of, merged.Of(fingerprint)) {
			t.Errorf("the part of %s is %v", fingerprint, of)
		}
		again = pecanv1.MergeLearned(again, of)
	}
	if !slices.Equal(parts, merged.Graphs()) || !proto.Equal(again, merged) {
		t.Errorf("divided by graph it has %v, and together %v", parts, again)
	}
}

// Two processes of one user may fill a history with jobs of their own.
func TestAHistoryHasTheNewestJobs(t *testing.T) {
	history := func(from int) *pecanv1.StoredHistory {
		h := &pecanv1.StoredHistory{Fingerprint: "f1"}
		for n := from; n < from+pecanv1.MaxPastJobs; n++ {
			h.Jobs = append(h.Jobs, &pecanv1.PastJob{JobId: fmt.Sprintf("j%02d", n), LastS: int64(100 + n)})
		}
		return h
	}
	mine := &pecanv1.Learned{Histories: []*pecanv1.StoredHistory{history(0)}}
	found := &pecanv1.Learned{Histories: []*pecanv1.StoredHistory{history(10)}}
	for _, merged := range []*pecanv1.Learned{pecanv1.MergeLearned(mine, found), pecanv1.MergeLearned(found, mine)} {
		if !proto.Equal(merged.Histories[0], history(10)) || merged.Histories[0].LastS() != 125 {
			t.Errorf("the history is %v", merged.Histories)
		}
	}
}

// A file or another process may know less of an order than this one, or more. A rollback for good stays whatever the other says, and
// no failure is forgotten.
func TestAMergeKeepsRollbacksAndCountsFailures(t *testing.T) {
	const adopted, piloted, back = pecanv1.OrderStage_ORDER_STAGE_UNSPECIFIED, pecanv1.OrderStage_ORDER_STAGE_PILOTED, pecanv1.OrderStage_ORDER_STAGE_ROLLED_BACK
	order := func(why string, stage pecanv1.OrderStage, suspicions uint32) *pecanv1.StoredOrder {
		return &pecanv1.StoredOrder{Fingerprint: "f1", PlanHash: "h", Order: []string{"b", "a"}, Why: why, Stage: stage, Suspicions: suspicions}
	}
	slower := order("it was slower", back, 0)
	once, twice := order("it failed once", back, 1), order("it failed twice", back, 2)
	again, borneOut := order("it is piloted again", piloted, 1), order("it was borne out then", adopted, 1)
	fresh := order("it never failed", adopted, 0)
	elements, excused := order("elements failed in it", back, 1), order("elements failed in both orders", adopted, 0)
	elements.ElementsFailed, excused.ElementsExcused = true, true
	// These know of failures that are not in the view which counts.
	elementsFirst, excusedOnce := order("elements failed in it", back, 0), order("elements failed in both orders", adopted, 1)
	elementsFirst.ElementsFailed, excusedOnce.ElementsExcused = true, true
	other, refused := order("another order", piloted, 1), order("refused after a trial", adopted, 0)
	other.Order, refused.Order = []string{"a", "b"}, nil
	otherBack := order("another order is slower", back, 0)
	otherBack.Order = other.Order
	for _, c := range []struct{ mine, found, want *pecanv1.StoredOrder }{
		{slower, once, slower}, {once, slower, slower}, {slower, again, slower}, {slower, fresh, slower}, {fresh, slower, slower}, {borneOut, slower, slower},
		{twice, once, twice}, {once, twice, twice}, {again, twice, twice}, {twice, borneOut, twice},
		{fresh, once, once}, {fresh, again, again}, {fresh, borneOut, borneOut}, {borneOut, fresh, borneOut},
		{elements, borneOut, elements}, {elements, twice, twice}, {fresh, elements, elements}, {once, elements, elements}, {borneOut, excused, excusedOnce},
		{excused, elements, excusedOnce}, {excused, again, excusedOnce}, {excused, slower, slower}, {elements, excused, excusedOnce},
		{again, elementsFirst, elements}, {elementsFirst, again, elements}, {fresh, other, fresh}, {refused, other, refused}, {fresh, otherBack, otherBack},
		{again, once, again}, {borneOut, once, borneOut}, {once, fresh, once}, {once, again, once},
	} {
		list := func(o *pecanv1.StoredOrder) *pecanv1.Learned {
			return &pecanv1.Learned{Orders: []*pecanv1.StoredOrder{o}}
		}
		if merged := pecanv1.MergeLearned(list(c.mine), list(c.found)); !proto.Equal(merged, list(c.want)) {
			t.Errorf("%q and %q: %v, want %q", c.mine.Why, c.found.Why, merged.Orders, c.want.Why)
		}
	}
}
