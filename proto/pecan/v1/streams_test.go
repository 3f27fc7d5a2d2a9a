package pecanv1_test

import (
	"slices"
	"testing"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"google.golang.org/protobuf/proto"
)

func TestEveryStreamHasOneClosingStream(t *testing.T) {
	for _, plan := range []*pecanv1.Plan{
		{NumStreams: 1}, {NumStreams: 16}, {NumStreams: 16, Group: 16}, {NumStreams: 17, Group: 16}, {NumStreams: 64, Group: 16}, {NumStreams: 65, Group: 16}, {NumStreams: 5, Group: 2},
	} {
		if plan.Closings() != 0 || plan.TotalStreams() != uint32(plan.NumStreams) {
			t.Errorf("%v: closing streams without a closing strategy", plan)
		}
		plan.BatchStrategy = pecanv1.BatchStrategy_BATCH_STRATEGY_CLOSING
		total := plan.TotalStreams()
		joined := make([]int, total)
		for closing := uint32(plan.NumStreams); closing < total; closing++ {
			first, below := plan.Sources(closing)
			for stream := first; stream < below; stream++ {
				joined[stream]++
				if by, ok := plan.ClosingOf(stream); !ok || by != closing {
					t.Errorf("%v: stream %d is joined by %d, and ClosingOf returns %d", plan, stream, closing, by)
				}
			}
			if !plan.IsClosing(closing) || plan.IsClosing(uint32(plan.NumStreams)-1) {
				t.Errorf("%v: the closing streams begin elsewhere", plan)
			}
		}
		if _, ok := plan.ClosingOf(total - 1); ok {
			t.Errorf("%v: something joins the last closing stream", plan)
		}
		if slices.ContainsFunc(joined[:total-1], func(n int) bool { return n != 1 }) || joined[total-1] != 0 {
			t.Errorf("%v: streams are joined %v times", plan, joined)
		}
	}
}

func TestDifferencesAreNumbersAgain(t *testing.T) {
	numbers := []uint64{7, 7, 3, 1<<64 - 1, 0, 1 << 63}
	if got, err := pecanv1.Numbers[uint64](pecanv1.Differences(numbers)); err != nil || !slices.Equal(got, numbers) {
		t.Errorf("%v (%v)", got, err)
	}
	if got, err := pecanv1.Numbers[uint32]([]int64{1 << 31, 1 << 31}); err == nil {
		t.Errorf("%v", got)
	}
	if got, err := pecanv1.Numbers[uint32]([]int64{3, -4}); err == nil {
		t.Errorf("%v", got)
	}
}

func TestAPositionHasTheSameStreamsInEachForm(t *testing.T) {
	dense := &pecanv1.Position{Next: []uint64{0, 4, 0, 0, 9}, Ended: []uint32{2, 3, 6}}
	runs := &pecanv1.Position{EndedRuns: []uint32{2, 2, 2, 1}, Begun: []uint32{1, 3}, BegunNext: []uint64{4, 9}}
	bits := &pecanv1.Position{EndedBits: []byte{1<<2 | 1<<3 | 1<<6}, Begun: []uint32{1, 3}, BegunNext: []uint64{4, 9}}
	for _, p := range []*pecanv1.Position{dense, runs, bits} {
		ended, err := p.EndedStreams(7)
		if err != nil || !slices.Equal(ended, bits.EndedBits) {
			t.Errorf("%v: ended %v (%v)", p, ended, err)
		}
		streams, next, err := p.BegunStreams(7)
		if err != nil || !slices.Equal(streams, []uint32{1, 4}) || !slices.Equal(next, []uint64{4, 9}) {
			t.Errorf("%v: begun %v at %v (%v)", p, streams, next, err)
		}
		if _, err := p.EndedStreams(6); err == nil {
			t.Errorf("%v: a stream above the total is taken", p)
		}
		if _, _, err := p.BegunStreams(4); err == nil {
			t.Errorf("%v: a stream above the total is taken", p)
		}
	}
}

func TestChangedRemaindersAreMerged(t *testing.T) {
	source := func(stream uint32, rows uint64) *pecanv1.RemainderSource {
		return &pecanv1.RemainderSource{Stream: stream, Rows: rows}
	}
	before := &pecanv1.StartStream{Remainders: []*pecanv1.RemainderSource{source(3, 1), source(4, 1), source(6, 1)}}
	changed := &pecanv1.StartStream{Remainders: []*pecanv1.RemainderSource{source(4, 2), source(5, 2)}, RemaindersChanged: true}
	changed.MergeRemainders(before)
	want := &pecanv1.StartStream{Remainders: []*pecanv1.RemainderSource{source(3, 1), source(4, 2), source(5, 2), source(6, 1)}}
	if !proto.Equal(changed, want) || len(before.Remainders) != 3 || before.Remainders[1].Rows != 1 {
		t.Fatalf("%v, and before %v", changed, before)
	}
	whole := &pecanv1.StartStream{Remainders: []*pecanv1.RemainderSource{source(9, 0)}}
	if whole.MergeRemainders(before); len(whole.Remainders) != 1 {
		t.Fatalf("%v", whole)
	}
}
