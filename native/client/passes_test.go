package client

import (
	"bytes"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

func TestAnOuterRepeatIsReadAsOneIteration(t *testing.T) {
	d := startDispatcher(t, func(d *testDispatcher) { d.plan.NumStreams, d.plan.Repeat, d.plan.Cardinality = 2, 3, 20 })
	d.snapshot = spread(2, startWorker(t, same(testStream{count: 10, perFrame: 3})))
	it := open(t, d).Open(IterOptions{})
	all, err := read(t, it)
	if err != nil || len(all) != 60 {
		t.Fatalf("%d elements, %v", len(all), err)
	}
	for i, g := range all {
		if g.epoch != uint64(i/20) {
			t.Fatalf("place %d is of epoch %d", i, g.epoch)
		}
	}
	eventually(t, "every epoch that was read is closed", func() bool { return look(d, func() int { return len(d.closed) }) == 3 })
	// A fourth pass is not prefetched, because the dataset repeats three times.
	if n := len(look(d, func() []*pecanv1.OpenEpochRequest { return d.opened })); n != 3 {
		t.Errorf("%d epochs opened", n)
	}
	for i, opened := range look(d, func() []*pecanv1.OpenEpochRequest { return d.opened }) {
		if opened.GetPass() != uint64(i) || opened.GetPrefetch() != (i > 0) {
			t.Errorf("opened %v", opened)
		}
	}
}

func TestAnInfiniteRepeatContinues(t *testing.T) {
	d := startDispatcher(t, func(d *testDispatcher) { d.plan.Repeat = -1 })
	d.snapshot = spread(1, startWorker(t, same(testStream{count: 3})))
	it := open(t, d).Open(IterOptions{})
	all, err := readUpTo(t, it, 100)
	if err != nil || all[99].epoch != 33 {
		t.Errorf("%+v, %v", all[len(all)-1], err)
	}
}

func TestRepeatingAnEmptyDatasetIsEmpty(t *testing.T) {
	for name, tc := range map[string]struct {
		repeat int64
		count  uint64
		opened int
	}{
		"an empty dataset for ever": {repeat: -1, opened: 1},
		"a dataset no times":        {repeat: 0, count: 5},
	} {
		t.Run(name, func(t *testing.T) {
			d := startDispatcher(t, func(d *testDispatcher) { d.plan.Repeat = tc.repeat })
			d.snapshot = spread(1, startWorker(t, same(testStream{count: tc.count})))
			it := open(t, d).Open(IterOptions{NoPrefetch: true})
			all, err := read(t, it)
			if err != nil || len(all) != 0 || waiting(it) != "" || len(it.Where().GetPosition().GetNext()) != 0 {
				t.Errorf("%d elements, %v", len(all), err)
			}
			if n := look(d, func() int { return len(d.opened) }); n != tc.opened {
				t.Errorf("%d epochs opened", n)
			}
		})
	}
}

func TestTheNextPassIsPrefetchedAndAdopted(t *testing.T) {
	for name, cardinality := range map[string]int64{"of known length": 10, "of unknown length": -2} {
		t.Run(name, func(t *testing.T) {
			d := startDispatcher(t, func(d *testDispatcher) { d.plan.Cardinality = cardinality })
			w := startWorker(t, same(testStream{count: 10}))
			d.snapshot = spread(1, w)
			job := open(t, d)
			for pass := range uint64(4) {
				it := job.Open(IterOptions{})
				eventually(t, "a pass that was opened ahead is adopted when it is asked for, and no other is", func() bool {
					adopted := look(d, func() []uint64 { return slices.Clone(d.adopted) })
					return len(adopted) == int(pass) && (pass == 0 || adopted[pass-1] == pass)
				})
				all, err := read(t, it)
				if err != nil || len(all) != 10 || all[0].epoch != pass {
					t.Fatalf("pass %d: %d elements, %v", pass, len(all), err)
				}
				eventually(t, "the next pass is open", job.aheadIsOpen)
				if n := len(look(d, func() []*pecanv1.OpenEpochRequest { return d.opened })); n != int(pass)+2 {
					t.Errorf("%d passes opened after pass %d", n, pass)
				}
				if n := w.opens.Load(); n != int64(pass)+1 {
					t.Errorf("%d streams opened: the pass ahead is being read before it is wanted", n)
				}
			}
			if err := job.Close(); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the pass ahead is closed with the job, and the job is left", func() bool {
				return look(d, func() bool { return len(d.closed) == 5 && d.goodbyes == 1 })
			})
		})
	}
}

func TestALostAdoptionIsRepeated(t *testing.T) {
	d := startDispatcher(t, func(d *testDispatcher) { d.plan.Cardinality, d.loseAdoptions = 10, 3 })
	d.snapshot = spread(1, startWorker(t, same(testStream{count: 10})))
	job := open(t, d)
	for range 2 {
		// Elements arrive without waiting for the adoption.
		if all, err := read(t, job.Open(IterOptions{})); err != nil || len(all) != 10 {
			t.Fatalf("%d elements, %v", len(all), err)
		}
		eventually(t, "the next pass is open", job.aheadIsOpen)
	}
	it := job.Open(IterOptions{NoPrefetch: true})
	eventually(t, "the third pass is adopted", func() bool {
		return slices.Contains(look(d, func() []uint64 { return slices.Clone(d.adopted) }), 2)
	})
	if err := it.Close(); err != nil {
		t.Fatal(err)
	}
}

func (j *Job) aheadIsOpen() bool {
	j.mu.Lock()
	ahead := j.prefetched
	j.mu.Unlock()
	return ahead != nil && ahead.Report(false) != nil
}

func TestNoPassIsPrefetchedWhenACacheWritesFiles(t *testing.T) {
	d := startDispatcher(t, func(d *testDispatcher) { d.plan.Cardinality, d.plan.WritesFiles = 10, true })
	d.snapshot = spread(1, startWorker(t, same(testStream{count: 10})))
	job := open(t, d)
	for pass := range 2 {
		if _, err := read(t, job.Open(IterOptions{})); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the epoch is closed", func() bool { return look(d, func() int { return len(d.closed) }) == pass+1 })
		if n := look(d, func() int { return len(d.opened) }); n != pass+1 {
			t.Errorf("%d epochs opened after pass %d", n, pass)
		}
	}
}

func TestAPassThatWritesFilesOpensAfterThePreviousOneIsClosed(t *testing.T) {
	d := startDispatcher(t, func(d *testDispatcher) { d.plan.WritesFiles = true })
	d.snapshot = spread(1, startWorker(t, same(testStream{count: 1000})))
	job := open(t, d)
	const passes = 4
	for range passes {
		it := job.Open(IterOptions{})
		if _, err := readUpTo(t, it, 3); err != nil {
			t.Fatal(err)
		}
		look(d, func() int { d.loseCloses = 2; return 0 })
		if err := it.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if closed := look(d, func() []int { return slices.Clone(d.closedBefore) }); !slices.Equal(closed, []int{0, 1, 2, 3}) {
		t.Errorf("%v epochs were closed when the passes were opened", closed)
	}
}

func TestAPassThatWritesFilesIsClosedWhenItIsAbandonedAtOnce(t *testing.T) {
	d := startDispatcher(t, func(d *testDispatcher) { d.plan.WritesFiles = true })
	d.snapshot = spread(1, startWorker(t, same(testStream{count: 10})))
	job := open(t, d)
	for range 30 {
		if err := job.Open(IterOptions{}).Close(); err != nil {
			t.Fatal(err)
		}
	}
	if all, err := read(t, job.Open(IterOptions{})); err != nil || len(all) != 10 {
		t.Fatalf("%d elements, %v", len(all), err)
	}
	eventually(t, "every epoch that was opened is closed", func() bool {
		return look(d, func() bool {
			opened := map[string]bool{}
			for _, request := range d.opened {
				opened[request.GetRequestId()] = true
			}
			return len(d.closed) >= len(opened)
		})
	})
}

func TestNoPassIsPrefetchedWithNoPrefetch(t *testing.T) {
	d := startDispatcher(t)
	d.snapshot = spread(1, startWorker(t, same(testStream{count: 10})))
	if _, err := read(t, open(t, d).Open(IterOptions{NoPrefetch: true})); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the epoch is closed", func() bool { return look(d, func() int { return len(d.closed) }) == 1 })
	if n := look(d, func() int { return len(d.opened) }); n != 1 {
		t.Errorf("%d epochs opened", n)
	}
}

func TestAPassThatOtherTrainersReadIsEmpty(t *testing.T) {
	d := startDispatcher(t)
	d.delivered = true
	d.snapshot = func(uint64) *pecanv1.EpochUpdate { panic("an epoch that is over is not watched") }
	var said bytes.Buffer
	job := open(t, d, func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(&said, nil)) })
	job.consumer.Request.JobName = "team"
	all, err := read(t, job.Open(IterOptions{NoPrefetch: true}))
	if err != nil || len(all) != 0 {
		t.Errorf("%d elements, %v", len(all), err)
	}
	// This is usually a mistake: the second trainer begins after the first one has read everything.
	for _, word := range []string{"has no elements left", "job_name=team", "another job_name"} {
		if !strings.Contains(said.String(), word) {
			t.Errorf("%q lacks %q", said.String(), word)
		}
	}
}

// A pass of a shared job that is abandoned before the dispatcher knows it does not count. Otherwise the next pass would
// be ahead of the open epoch, and the dispatcher would refuse it. Passes that begin together are requested one by one.
func TestPassesOfASharedJobAreNumberedAsTheyAreOpened(t *testing.T) {
	w := startWorker(t, same(testStream{count: 5, perFrame: 5}))
	d := startDispatcher(t)
	d.snapshot = spread(1, w)
	job := open(t, d)
	job.consumer.Request.JobName = "shared"
	const rounds = 50
	var kept []*Iteration
	for n := range rounds {
		its := []*Iteration{job.Open(IterOptions{NoPrefetch: true}), job.Open(IterOptions{NoPrefetch: true}), job.Open(IterOptions{NoPrefetch: true})}
		time.Sleep(time.Duration(n) * 20 * time.Microsecond)
		its[0].Close()
		its[2].Close()
		kept = append(kept, its[1])
	}
	for n, it := range kept {
		if got, err := read(t, it); err != nil || len(got) != 5 {
			t.Fatalf("iteration %d: %d elements, %v", n, len(got), err)
		}
		it.Close()
	}
	eventually(t, "every epoch that was opened is closed", func() bool { return look(d, func() bool { return len(d.closed) == len(d.opened) }) })
	for n, request := range look(d, func() []*pecanv1.OpenEpochRequest { return d.opened }) {
		if request.GetPass() != uint64(n) {
			t.Fatalf("pass %d is asked for where %d epochs are open", request.GetPass(), n)
		}
	}
}

func TestStreamsThatAppearLaterAreRead(t *testing.T) {
	d := startDispatcher(t, func(d *testDispatcher) {
		d.plan.NumStreams = 0
		d.options.Mode = pecanv1.Mode_MODE_OFF
	})
	w := startWorker(t, same(testStream{count: 10}))
	n, final := uint32(1), false
	d.snapshot = func(uint64) *pecanv1.EpochUpdate {
		u := spread(n, w)(0)
		u.StreamsFinal = final
		return u
	}
	it := open(t, d).Open(IterOptions{})
	first, err := readUpTo(t, it, 10)
	if err != nil {
		t.Fatal(err)
	}
	if _, status, _ := it.NextElement(20 * time.Millisecond); status != NotYet {
		t.Errorf("ended while streams may come: %v", status)
	}
	d.update(func() { n = 2 })
	second, err := readUpTo(t, it, 10)
	if err != nil {
		t.Fatal(err)
	}
	d.update(func() { final = true })
	rest, err := read(t, it)
	if err != nil {
		t.Fatal(err)
	}
	wantAll(t, append(append(first, second...), rest...), 10, 10)
}

func TestAnEndReportedOnlyByTheDispatcherIsAnEnd(t *testing.T) {
	hold := make(chan struct{})
	w := startWorker(t, same(testStream{count: 11, hold: hold, holdAt: 10}))
	t.Cleanup(func() { close(hold) })
	d := startDispatcher(t)
	ended := false
	d.snapshot = func(uint64) *pecanv1.EpochUpdate {
		u := spread(2, w)(0)
		u.Streams[0].Ended, u.Streams[0].Count = ended, 10
		// A stream without elements is never opened.
		u.Streams[1].Ended, u.Streams[1].Worker = true, nil
		return u
	}
	it := open(t, d).Open(IterOptions{})
	first, err := readUpTo(t, it, 10)
	if err != nil {
		t.Fatal(err)
	}
	d.update(func() { ended = true })
	rest, err := read(t, it)
	if err != nil {
		t.Fatal(err)
	}
	wantAll(t, append(first, rest...), 10, 0)
}

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
			d.snapshot = spread(1, startWorker(t, same(testStream{count: tc.has})))
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
		d.snapshot = spread(2, startWorker(t, same(testStream{count: 10, perFrame: perFrame, hold: end, holdAt: 10})))
		sendEnds := sync.OnceFunc(func() { close(end) })
		t.Cleanup(sendEnds)
		it := open(t, d).Open(IterOptions{})
		if all, err := readUpTo(t, it, 19); err != nil || len(all) != 19 {
			t.Fatal(len(all), err)
		}
		for range 3 {
			if _, status, err := it.NextElement(10 * time.Millisecond); status != NotYet || err != nil {
				t.Fatalf("the last one, of which nobody knows that it is that, came as %v %v", status, err)
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
			return len(look(d, func() []*pecanv1.FinishStreamRequest { return d.finished })) == 2
		})
	}
}

func TestAFailedElementDoesNotCountAgainstTheAssertedCardinality(t *testing.T) {
	for _, failing := range []uint64{0, 9, 10} {
		d := startDispatcher(t, func(d *testDispatcher) { d.plan.Cardinality, d.plan.AssertedCardinality, d.plan.Repeat = 10, 10, 1 })
		d.snapshot = spread(1, startWorker(t, same(testStream{count: 11, failAt: map[uint64]bool{failing: true}})))
		if all, err := read(t, open(t, d).Open(IterOptions{})); err != nil || len(all) != 11 {
			t.Errorf("with element %d failing: %d elements and failures, %v", failing, len(all), err)
		}
	}
}

// An element beyond an asserted cardinality may not fit into memory together with the last asserted element.
func TestTheLastElementIsHeldForABoundedTime(t *testing.T) {
	d := startDispatcher(t, func(d *testDispatcher) { d.plan.Cardinality, d.plan.AssertedCardinality, d.plan.Repeat = 5, 5, 1 })
	d.snapshot = spread(1, startWorker(t, same(testStream{count: 10})))
	if all, err := read(t, open(t, d).Open(IterOptions{MaxOutstandingBytes: 8})); !reason.Is(err, reason.Cardinality) || len(all) != 5 {
		t.Errorf("%d elements, %v", len(all), err)
	}
}

func TestASharedStreamIsReleasedAtTheTrainersPosition(t *testing.T) {
	for name, options := range map[string]struct {
		mode  pecanv1.Mode
		class pecanv1.DeterminismClass
	}{
		"exactly once": {pecanv1.Mode_MODE_EXACTLY_ONCE, classB},
		// The worker must still have the elements that another trainer requests, because they cannot be recomputed.
		"at most once, in a free order": {pecanv1.Mode_MODE_AT_MOST_ONCE, classC},
	} {
		t.Run(name, func(t *testing.T) { givenUpWhereItStands(t, options.mode, options.class) })
	}
}

func givenUpWhereItStands(t *testing.T, mode pecanv1.Mode, class pecanv1.DeterminismClass) {
	w := startWorker(t, same(testStream{count: 100, perFrame: 10}))
	d := startDispatcher(t, func(d *testDispatcher) { d.options.Mode, d.plan.Determinism = mode, class })
	release := false
	d.snapshot = func(uint64) *pecanv1.EpochUpdate {
		u := spread(1, w)(0)
		u.Streams[0].Release = release
		if n := len(d.released); n > 0 {
			u.Streams, u.NoMoreStreams = nil, true
		}
		return u
	}
	job := open(t, d)
	job.consumer.Request.JobName = "shared"
	it := job.Open(IterOptions{NoPrefetch: true})
	first, err := readUpTo(t, it, 25)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "what was taken, and no more, is acknowledged", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, index := range w.acked {
			return index >= 20 && index <= 25
		}
		return false
	})
	d.update(func() { release = true })
	eventually(t, "the stream is given up", func() bool { return look(d, func() int { return len(d.released) }) == 1 })
	if given := look(d, func() *pecanv1.ReleaseStreamRequest { return d.released[0] }); given.GetNextIndex() != 25 {
		t.Errorf("released %v", given)
	}
	d.update(func() {})
	rest, err := read(t, it)
	if err != nil || len(rest) != 0 {
		t.Errorf("%d elements after the stream was given up, %v", len(rest), err)
	}
	wantAll(t, first, 25)
}

// Reports about one run do not apply to the next run. The dispatcher may have started the next run before it received
// the reports.
func TestAReleasedClassCStreamRestartsWithANewLease(t *testing.T) {
	w := startWorker(t, same(testStream{count: 30, perFrame: 10}))
	d := startDispatcher(t, func(d *testDispatcher) { d.options.Mode, d.plan.Determinism = pecanv1.Mode_MODE_AT_LEAST_ONCE, classC })
	lease, release := uint64(3), false
	d.snapshot = func(uint64) *pecanv1.EpochUpdate {
		u := spread(1, w)(0)
		u.Streams[0].Lease, u.Streams[0].Release = lease, release
		return u
	}
	job := open(t, d)
	job.consumer.Request.JobName = "shared"
	it := job.Open(IterOptions{NoPrefetch: true})
	if _, err := readUpTo(t, it, 12); err != nil {
		t.Fatal(err)
	}
	d.update(func() { release = true })
	eventually(t, "the stream is given up", func() bool { return look(d, func() int { return len(d.released) }) == 1 })
	d.update(func() { lease, release = 4, false })
	all, err := read(t, it)
	if err != nil {
		t.Fatal(err)
	}
	wantAll(t, all, 30)
}

func TestASharedStreamFromAnotherTrainerStartsWhereThatOneStopped(t *testing.T) {
	w := startWorker(t, same(testStream{count: 30}))
	d := startDispatcher(t)
	d.snapshot = func(uint64) *pecanv1.EpochUpdate {
		u := spread(1, w)(0)
		u.Streams[0].StartIndex = 12
		return u
	}
	job := open(t, d)
	job.consumer.Request.JobName = "shared"
	all, err := read(t, job.Open(IterOptions{}))
	if err != nil || len(all) != 18 || all[0].index != 12 {
		t.Errorf("%d elements, %v", len(all), err)
	}
}

func TestAStreamRevokedBeforeItsFirstSnapshotIsReleasedAtItsStartIndex(t *testing.T) {
	w := startWorker(t, same(testStream{count: 30}))
	d := startDispatcher(t)
	start, assignment := uint64(12), uint64(1)
	d.snapshot = func(uint64) *pecanv1.EpochUpdate {
		u := spread(1, w)(0)
		u.Streams[0].StartIndex, u.Streams[0].Assignment, u.Streams[0].Release, u.NoMoreStreams = start, assignment, true, false
		return u
	}
	job := open(t, d)
	job.consumer.Request.JobName = "shared"
	it := job.Open(IterOptions{NoPrefetch: true})
	given := func(index, assignment uint64) func() bool {
		return func() bool {
			return look(d, func() bool {
				n := len(d.released)
				return n > 0 && d.released[n-1].GetNextIndex() == index && d.released[n-1].GetAssignment() == assignment
			})
		}
	}
	eventually(t, "it is given up at 12", given(12, 1))
	// Another trainer has read on and released the stream, and this trainer gets it again. The update between was skipped.
	d.update(func() { start, assignment = 20, 3 })
	eventually(t, "it is given up at 20", given(20, 3))
	// The other trainer has read nothing. Only the assignment number shows that the stream was with another trainer.
	d.update(func() { assignment = 5 })
	eventually(t, "it is given up at 20 once more", given(20, 5))
	// The same update comes again. The stream is already released.
	d.update(func() {})
	eventually(t, "the snapshot has come", func() bool { return it.epoch().State().Version == look(d, func() uint64 { return d.version }) })
	if n := look(d, func() int { return len(d.released) }); n != 3 {
		t.Errorf("given up %d times", n)
	}
	if err := it.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestAbandoningASharedPassReleasesItsStreams(t *testing.T) {
	w := startWorker(t, same(testStream{count: 10}))
	d := startDispatcher(t, func(d *testDispatcher) { d.plan.NumStreams = 2 })
	d.snapshot = spread(2, w)
	job := open(t, d)
	job.consumer.Request.JobName = "shared"
	it := job.Open(IterOptions{NoPrefetch: true})
	if _, err := readUpTo(t, it, 7); err != nil {
		t.Fatal(err)
	}
	position := it.Where().Position
	if err := it.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "both streams are released, then the epoch closed", func() bool { return look(d, func() int { return len(d.closed) }) == 1 })
	sum := uint64(0)
	for _, given := range look(d, func() []*pecanv1.ReleaseStreamRequest { return d.released }) {
		// A position may omit streams of which no element was dequeued.
		stands, stream := uint64(0), int(given.GetId().GetStream())
		if stream < len(position.Next) {
			stands = position.Next[stream]
		}
		if given.GetNextIndex() != stands {
			t.Errorf("released %v, the trainer stands at %v", given, position.Next)
		}
		sum += given.GetNextIndex()
	}
	if sum != 7 || len(look(d, func() []*pecanv1.FinishStreamRequest { return d.finished })) != 0 {
		t.Errorf("released at %d in all, position %+v", sum, position)
	}
}

func TestPositionsCountDequeuedElements(t *testing.T) {
	d := startDispatcher(t, func(d *testDispatcher) { d.plan.NumStreams = 2 })
	d.snapshot = spread(2, startWorker(t, same(testStream{count: 10, perFrame: 4})))
	it := open(t, d).Open(IterOptions{Deterministic: true})
	if _, err := readUpTo(t, it, 5); err != nil {
		t.Fatal(err)
	}
	if p := it.Where().Position; fmt.Sprint(p.Next) != "[3 2]" || p.Epoch != 0 || p.Turn != 1 {
		t.Errorf("position %+v", p)
	}
}

func TestClosingEndsAWait(t *testing.T) {
	d := startDispatcher(t)
	d.snapshot = func(uint64) *pecanv1.EpochUpdate { return &pecanv1.EpochUpdate{} }
	it := open(t, d).Open(IterOptions{})
	done := make(chan error, 1)
	go func() {
		_, _, err := it.NextElement(testDeadline)
		done <- err
	}()
	eventually(t, "it waits", func() bool { return len(it.token) == 1 && waiting(it) != "" })
	if err := it.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-done:
		if !reason.Is(err, reason.Closed) {
			t.Error(err)
		}
	case <-time.After(5 * time.Second):
		t.Error("the wait went on")
	}
	if err := it.Close(); err != nil {
		t.Error(err)
	}
}

func TestAThousandIterationsLeakNothing(t *testing.T) {
	d := startDispatcher(t)
	d.snapshot = spread(1, startWorker(t, same(testStream{count: 20, pad: 2000}), withUnix))
	job := open(t, d)
	before := openFiles(t)
	for i := range 1000 {
		it := job.Open(IterOptions{NoPrefetch: i%2 == 0})
		if i%3 == 0 {
			if _, err := readUpTo(t, it, 1); err != nil {
				t.Fatal(err)
			}
		}
		if err := it.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if after := openFiles(t); after > before+10 {
		t.Errorf("%d files open, %d before", after, before)
	}
}

// The dispatcher ends a pass that heartbeats do not name, without the trainer's last reports. So heartbeats name a pass
// until the trainer has reported its end.
func TestHeartbeatsNameAPassUntilItsEndIsReported(t *testing.T) {
	d := startDispatcher(t)
	d.snapshot = spread(1, startWorker(t, same(testStream{count: 10})))
	job := open(t, d)
	named := func(beats int) bool {
		return look(d, func() bool {
			return len(d.beats) >= beats && len(d.beats[len(d.beats)-1].GetPasses()) == 1
		})
	}
	look(d, func() int { d.loseCloses = 1 << 30; return 0 })
	if _, err := read(t, job.Open(IterOptions{NoPrefetch: true})); err != nil {
		t.Fatal(err)
	}
	begun := look(d, func() int { return len(d.beats) })
	eventually(t, "the pass is named, over and over again", func() bool { return named(begun + 3) })
	look(d, func() int { d.loseCloses = 0; return 0 })
	eventually(t, "the epoch is closed", func() bool { return look(d, func() int { return len(d.closed) }) == 1 })
	eventually(t, "it is not named any more", func() bool {
		return look(d, func() bool { return len(d.beats[len(d.beats)-1].GetPasses()) == 0 })
	})
}

// Heartbeats may arrive late or twice, so they have numbers. The request of a pass carries the newest number. Until the
// answer arrives, heartbeats report that there may be a pass that they cannot name.
func TestHeartbeatNumbersOrderHeartbeatsAndOpenings(t *testing.T) {
	d := startDispatcher(t)
	d.snapshot = spread(1, startWorker(t, same(testStream{count: 10})))
	held := make(chan struct{})
	d.update(func() { d.holdOpens = held })
	job := open(t, d)
	eventually(t, "there were heartbeats", func() bool { return look(d, func() bool { return len(d.beats) >= 3 }) })
	it := job.Open(IterOptions{NoPrefetch: true})
	last := func() *pecanv1.ClientHeartbeatRequest {
		return look(d, func() *pecanv1.ClientHeartbeatRequest { return d.beats[len(d.beats)-1] })
	}
	eventually(t, "heartbeats tell that a pass is asked for", func() bool { return last().GetOpening() && len(last().GetPasses()) == 0 })
	close(held)
	if _, err := readUpTo(t, it, 1); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the pass is named", func() bool { return !last().GetOpening() && len(last().GetPasses()) == 1 })
	look(d, func() any {
		asked := d.opened[0].GetHeartbeatNumber()
		if asked == 0 {
			t.Error("the pass was asked for without the number of a heartbeat")
		}
		for n, beat := range d.beats {
			if beat.GetNumber() != uint64(n+1) {
				t.Errorf("heartbeat %d has the number %d", n+1, beat.GetNumber())
			}
			if named := len(beat.GetPasses()) > 0; beat.GetNumber() > asked && !named && !beat.GetOpening() {
				t.Errorf("heartbeat %d speaks as if there were no pass, which was asked for after heartbeat %d", n+1, asked)
			}
		}
		return nil
	})
}

func TestHeartbeatsReportAnOpeningPassAfterItsClose(t *testing.T) {
	d := startDispatcher(t)
	d.snapshot = spread(1, startWorker(t, same(testStream{count: 10})))
	held := make(chan struct{})
	d.update(func() { d.holdOpens = held })
	job := open(t, d)
	job.consumer.Request.JobName = "shared"
	beats := func() int { return look(d, func() int { return len(d.beats) }) }
	it := job.Open(IterOptions{NoPrefetch: true})
	eventually(t, "the pass is asked for", func() bool { return look(d, func() bool { return d.asksOpen }) })
	if err := it.Close(); err != nil {
		t.Fatal(err)
	}
	// A heartbeat may have been in flight.
	closed := beats() + 1
	eventually(t, "heartbeats come", func() bool { return beats() > closed+3 })
	look(d, func() any {
		for _, beat := range d.beats[closed:] {
			if !beat.GetOpening() {
				t.Errorf("heartbeat %d speaks as if no pass were asked for", beat.GetNumber())
			}
		}
		return nil
	})
	close(held)
	eventually(t, "the epoch is closed", func() bool { return look(d, func() int { return len(d.closed) }) == 1 })
}

func TestTheHeartbeatReportsTheTrainersProgress(t *testing.T) {
	hold := make(chan struct{})
	d := startDispatcher(t)
	d.snapshot = spread(1, startWorker(t, same(testStream{count: 10, hold: hold, holdAt: 4})))
	job := open(t, d)
	it := job.Open(IterOptions{})
	if _, err := readUpTo(t, it, 4); err != nil {
		t.Fatal(err)
	}
	it.NextElement(20 * time.Millisecond)
	last := func() *pecanv1.ClientHeartbeatRequest_Pass {
		return look(d, func() *pecanv1.ClientHeartbeatRequest_Pass {
			if n := len(d.beats); n > 0 && len(d.beats[n-1].GetPasses()) == 1 {
				return d.beats[n-1].GetPasses()[0]
			}
			return nil
		})
	}
	eventually(t, "the report that the trainer waits", func() bool {
		p := last()
		return p != nil && p.GetStarved() && p.GetElements() == 4 && p.GetBytes() == 32 && p.GetWaitedS() > 0
	})
	close(hold)
	if _, err := readUpTo(t, it, 1); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the report that the trainer no longer waits", func() bool { return !last().GetStarved() })
}
