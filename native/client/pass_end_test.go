package client

import (
	"strings"
	"sync"
	"testing"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

func TestAnAssertedCardinalityIsChecked(t *testing.T) {
	for name, tc := range map[string]struct {
		promised, repeat int64
		has              uint64
		shared           bool
		mode             pecanv1.Mode
		want             string
	}{
		"kept":                               {promised: 10, has: 10},
		"too few":                            {promised: 10, has: 9, want: "10 elements, but contains only 9 elements"},
		"too many":                           {promised: 9, has: 10, want: "9 elements, but contains at least 10 elements"},
		"one too many for none":              {promised: 0, has: 1, want: "0 elements, but contains at least 1 element"},
		"endless, and it ends":               {promised: -1, has: 3, want: "an infinite number of elements, but contains only 3 elements"},
		"nothing promised":                   {promised: -2, has: 3},
		"over all passes of an outer repeat": {promised: 20, repeat: 2, has: 10},
		"a shared job cannot tell":           {promised: 10, has: 3, shared: true},
		"every worker gives everything":      {promised: 10, has: 3, mode: pecanv1.Mode_MODE_OFF},
	} {
		t.Run(name, func(t *testing.T) {
			d := startDispatcher(t, func(d *testDispatcher) {
				d.plan.AssertedCardinality, d.plan.Repeat, d.options.Mode = tc.promised, max(1, tc.repeat), tc.mode
			})
			d.updateOf = spread(1, startWorker(t, same(testStream{count: tc.has})))
			job := open(t, d)
			if tc.shared {
				job.consumer.Request.JobName = "shared"
			}
			_, err := read(t, job.Open(IterOptions{}))
			switch {
			case tc.want == "" && err != nil:
				t.Error(err)
			case tc.want != "" && (!reason.Is(err, reason.Cardinality) || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("got %v, want %q", err, tc.want)
			}
			if tc.promised > 0 && tc.has > uint64(tc.promised) {
				// The result does not depend on a call after the last asserted element.
				job.consumer.Plan.Cardinality = tc.promised
				if all, err := readUpTo(t, job.Open(IterOptions{}), int(tc.promised)); !reason.Is(err, reason.Cardinality) {
					t.Errorf("%d elements were had, and %v", len(all), err)
				}
			}
		})
	}
}

// TensorFlow's take() does not request another element after the last one.
func TestTheEndIsKnownBeforeTheLastElementIsReturned(t *testing.T) {
	for _, perFrame := range []uint64{0, 4} {
		d := startDispatcher(t, func(d *testDispatcher) { d.plan.Cardinality, d.plan.Repeat = 20, 1 })
		end := make(chan struct{})
		d.updateOf = spread(2, startWorker(t, same(testStream{count: 10, perFrame: perFrame, hold: end, holdAt: 10})))
		sendEnds := sync.OnceFunc(func() { close(end) })
		t.Cleanup(sendEnds)
		it := open(t, d).Open(IterOptions{})
		if all, err := readUpTo(t, it, 19); err != nil || len(all) != 19 {
			t.Fatal(len(all), err)
		}
		for range 3 {
			if _, status, err := it.NextElement(10 * time.Millisecond); status != NotYet || err != nil {
				t.Fatalf("the last element, which may not be the last, came as %v %v", status, err)
			}
		}
		sendEnds()
		if all, err := readUpTo(t, it, 1); err != nil || len(all) != 1 {
			t.Fatal(len(all), err)
		}
		if err := it.Close(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "both streams are finished", func() bool {
			return len(look(d, func() []finishedReport { return d.finished })) == 2
		})
	}
}

func TestAFailedElementDoesNotCountAgainstTheAssertedCardinality(t *testing.T) {
	for _, failing := range []uint64{0, 9, 10} {
		d := startDispatcher(t, func(d *testDispatcher) { d.plan.Cardinality, d.plan.AssertedCardinality, d.plan.Repeat = 10, 10, 1 })
		d.updateOf = spread(1, startWorker(t, same(testStream{count: 11, failAt: map[uint64]bool{failing: true}})))
		if all, err := read(t, open(t, d).Open(IterOptions{})); err != nil || len(all) != 11 {
			t.Errorf("with element %d failing: %d elements and failures, %v", failing, len(all), err)
		}
	}
}

// An element beyond an asserted cardinality may not fit into memory together with the last asserted element.
func TestTheLastElementIsHeldForABoundedTime(t *testing.T) {
	t.Parallel()
	d := startDispatcher(t, func(d *testDispatcher) { d.plan.Cardinality, d.plan.AssertedCardinality, d.plan.Repeat = 5, 5, 1 })
	d.updateOf = spread(1, startWorker(t, same(testStream{count: 10})))
	if all, err := read(t, open(t, d).Open(IterOptions{MaxOutstandingBytes: 8})); !reason.Is(err, reason.Cardinality) || len(all) != 5 {
		t.Errorf("%d elements, %v", len(all), err)
	}
}

// The first elements of an epoch begin its time, so they do not count.
func TestTheCloseOfAnEpochReportsItsTime(t *testing.T) {
	d := startDispatcher(t, func(d *testDispatcher) { d.plan.NumStreams, d.plan.Repeat, d.plan.Cardinality = 1, 2, 10 })
	d.updateOf = spread(1, startWorker(t, same(testStream{count: 10, perFrame: 1})))
	it := open(t, d).Open(IterOptions{})
	const step = 20 * time.Millisecond
	for range 20 {
		elements, status, err := it.NextElement(10 * time.Second)
		if status != Ready || err != nil {
			t.Fatalf("status %d, %v", status, err)
		}
		elements.Release()
		time.Sleep(step)
	}
	if _, err := read(t, it); err != nil {
		t.Fatal(err)
	}
	eventually(t, "both epochs are closed", func() bool { return look(d, func() int { return len(d.closings) }) == 2 })
	for _, closing := range look(d, func() []*pecanv1.CloseEpochRequest { return d.closings }) {
		// The pause after the last element of an epoch is not in its time.
		if closing.GetElements() != 9 || closing.GetSeconds() < 9*step.Seconds() || closing.GetSeconds() > 10 {
			t.Errorf("closed with %v", closing)
		}
	}
}
