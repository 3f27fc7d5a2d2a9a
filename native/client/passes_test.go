package client

import (
	"bytes"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pecan-ml/pecan/native/client/epoch"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

func TestAnOuterRepeatIsReadAsOneIteration(t *testing.T) {
	d := startDispatcher(t, func(d *testDispatcher) { d.plan.NumStreams, d.plan.Repeat, d.plan.Cardinality = 2, 3, 20 })
	d.updateOf = spread(2, startWorker(t, same(testStream{count: 10, perFrame: 3})))
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
	d.updateOf = spread(1, startWorker(t, same(testStream{count: 3})))
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
		"an empty dataset forever": {repeat: -1, opened: 1},
		"a dataset no times":       {repeat: 0, count: 5},
	} {
		t.Run(name, func(t *testing.T) {
			d := startDispatcher(t, func(d *testDispatcher) { d.plan.Repeat = tc.repeat })
			d.updateOf = spread(1, startWorker(t, same(testStream{count: tc.count})))
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
			d.updateOf = spread(1, w)
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
	d.updateOf = spread(1, startWorker(t, same(testStream{count: 10})))
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
	d.updateOf = spread(1, startWorker(t, same(testStream{count: 10})))
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
	d.updateOf = spread(1, startWorker(t, same(testStream{count: 1000})))
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
	d.updateOf = spread(1, startWorker(t, same(testStream{count: 10})))
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
	d.updateOf = spread(1, startWorker(t, same(testStream{count: 10})))
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
	d.updateOf = func(uint64) *pecanv1.EpochUpdate { panic("an epoch that is over is not watched") }
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
	d.updateOf = spread(1, w)
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
	d.updateOf = func(uint64) *pecanv1.EpochUpdate {
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
	d.updateOf = func(uint64) *pecanv1.EpochUpdate {
		u := spread(2, w)(0)
		u.Streams[0].Ended, u.Streams[0].Count = ended, 10
		// A stream without elements is never opened.
		u.Streams[1].Ended, u.Streams[1].WorkerNumber = true, 0
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

func TestPositionsCountDequeuedElements(t *testing.T) {
	d := startDispatcher(t, func(d *testDispatcher) { d.plan.NumStreams = 2 })
	d.updateOf = spread(2, startWorker(t, same(testStream{count: 10, perFrame: 4})))
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
	d.updateOf = func(uint64) *pecanv1.EpochUpdate { return &pecanv1.EpochUpdate{} }
	it := open(t, d).Open(IterOptions{})
	done := make(chan error, 1)
	go func() {
		_, _, err := it.NextElement(testDeadline)
		done <- err
	}()
	eventually(t, "it waits", func() bool { return len(it.dequeuing) == 1 && waiting(it) != "" })
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
	d.updateOf = spread(1, startWorker(t, same(testStream{count: 20, pad: 2000}), withUnix))
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

// The order of a deterministic epoch follows from its number. So iterations have the numbers in which they began, although each
// opens its epoch in the background.
func TestIterationsOfADeterministicJobAreNumberedAsTheyBegin(t *testing.T) {
	d := startDispatcher(t)
	d.updateOf = spread(1, startWorker(t, same(testStream{count: 10})))
	job := open(t, d)
	job.consumer.Options = &pecanv1.JobOptions{Mode: pecanv1.Mode_MODE_DETERMINISTIC}
	var iterations []*Iteration
	for range 32 {
		iterations = append(iterations, job.Open(IterOptions{NoPrefetch: true}))
	}
	eventually(t, "all are open", func() bool { return look(d, func() int { return len(d.opened) }) == len(iterations) })
	for i, it := range iterations {
		eventually(t, "the client has the answer", func() bool { return !epoch.Unanswered(it.current.Answered) })
		if got := it.current.Number(); got != uint64(i) {
			t.Errorf("iteration %d reads epoch %d", i, got)
		}
		if err := it.Close(); err != nil {
			t.Error(err)
		}
	}
}
