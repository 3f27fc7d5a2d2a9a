package client

import (
	"slices"
	"sync/atomic"
	"testing"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

const (
	classB = pecanv1.DeterminismClass_DETERMINISM_CLASS_B
	classC = pecanv1.DeterminismClass_DETERMINISM_CLASS_C
)

func TestTheModeDecidesHowAStreamContinuesAfterItsWorkerIsLost(t *testing.T) {
	const taken, count = 40, 100
	for name, c := range map[string]struct {
		mode  pecanv1.Mode
		class pecanv1.DeterminismClass
		// again is set if the first elements come again. ends is set if no more elements come.
		again, ends bool
	}{
		"exactly once":                            {pecanv1.Mode_MODE_EXACTLY_ONCE, classB, false, false},
		"at least once, where an index is fixed":  {pecanv1.Mode_MODE_AT_LEAST_ONCE, classB, false, false},
		"at least once, where it is not":          {pecanv1.Mode_MODE_AT_LEAST_ONCE, classC, true, false},
		"at most once, where it is not":           {pecanv1.Mode_MODE_AT_MOST_ONCE, classC, false, true},
		"at most once, and the stream goes on":    {pecanv1.Mode_MODE_AT_MOST_ONCE, classB, false, false},
		"each worker everything, in a free order": {pecanv1.Mode_MODE_OFF, classC, true, false},
		"each worker everything, in a fixed one":  {pecanv1.Mode_MODE_OFF, classB, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			hold := make(chan struct{})
			old := startWorker(t, same(testStream{count: count, perFrame: 5, hold: hold, holdAt: taken}))
			t.Cleanup(func() { close(hold) })
			fresh := startWorker(t, same(testStream{count: count, perFrame: 7}))
			d := startDispatcher(t, func(d *testDispatcher) {
				d.options.Mode, d.plan.Determinism = c.mode, c.class
			})
			lease, worker := uint64(3), old
			d.updateOf = func(uint64) *pecanv1.EpochUpdate {
				return &pecanv1.EpochUpdate{TotalStreams: 1, StreamsFinal: true, Streams: []*pecanv1.ConsumerStream{{Assignment: 1, Lease: lease, WorkerNumber: numberOf(worker.address())}}}
			}
			it := open(t, d).Open(IterOptions{})
			first, err := readUpTo(t, it, taken)
			if err != nil {
				t.Fatal(err)
			}
			d.update(func() { lease, worker = 4, fresh })
			rest, err := read(t, it)
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case c.ends:
				wantAll(t, append(first, rest...), taken)
				eventually(t, "the report that the rest is abandoned", func() bool {
					return look(d, func() bool {
						return slices.ContainsFunc(d.finished, func(r finishedReport) bool {
							return r.GetAbandoned() && r.GetCount() == taken && r.GetLease() == 4
						})
					})
				})
			case c.again:
				wantAll(t, rest, count)
			default:
				wantAll(t, append(first, rest...), count)
			}
			if gaveUp := look(d, func() bool { return slices.ContainsFunc(d.finished, finishedReport.GetAbandoned) }); gaveUp && !c.ends {
				t.Error("something was given up")
			}
		})
	}
}

// A trainer of a shared job leaves with elements of an abandoned stream in its queue. These elements are lost too, and
// are counted as lost.
func TestTheQueueOfAnAbandonedStreamIsDroppedWithItsTrainer(t *testing.T) {
	const held, taken = 40, 12
	hold := make(chan struct{})
	worker := startWorker(t, same(testStream{count: 100, perFrame: 5, hold: hold, holdAt: held}))
	t.Cleanup(func() { close(hold) })
	d := startDispatcher(t, func(d *testDispatcher) {
		d.options.Mode, d.plan.Determinism = pecanv1.Mode_MODE_AT_MOST_ONCE, classC
	})
	cut := false
	d.updateOf = func(uint64) *pecanv1.EpochUpdate {
		update := &pecanv1.ConsumerStream{Assignment: 1, Lease: 3, WorkerNumber: numberOf(worker.address())}
		if cut {
			update.WorkerNumber, update.Truncated, update.Produced = 0, true, held
		}
		return &pecanv1.EpochUpdate{TotalStreams: 1, StreamsFinal: true, Streams: []*pecanv1.ConsumerStream{update}}
	}
	job := open(t, d)
	job.consumer.Request.JobName = "shared"
	it := job.Open(IterOptions{NoPrefetch: true})
	if _, err := readUpTo(t, it, taken); err != nil {
		t.Fatal(err)
	}
	e := it.current
	eventually(t, "all that was made is here", func() bool { return e.State().Streams[0].Next == held })
	d.update(func() { cut = true })
	eventually(t, "the trainer knows that no more comes", func() bool { return e.State().Streams[0].Ended })
	it.Close()
	eventually(t, "the report of the loop's position", func() bool {
		return look(d, func() bool { return len(d.released) == 1 && d.released[0].GetNextIndex() == taken })
	})
	if finished := look(d, func() []finishedReport { return d.finished }); len(finished) != 0 {
		t.Errorf("finished %v", finished)
	}
}

// A shared job requests elements from the index after the last one that its loop has taken. A request for a later index
// would let the worker drop elements that are only in the trainer's queue. A crash of the trainer would then lose them.
func TestASharedStreamIsRequestedFromTheTrainersPosition(t *testing.T) {
	const made, taken, count = 40, 12, 100
	hold := make(chan struct{})
	first := startWorker(t, same(testStream{count: count, perFrame: 5, hold: hold, holdAt: made}))
	t.Cleanup(func() { close(hold) })
	second := startWorker(t, same(testStream{count: count, perFrame: 5}))
	var asked atomic.Uint64
	second.refuse = func(o *pecanv1.OpenStream) error { asked.Store(o.GetStartIndex()); return nil }
	d := startDispatcher(t)
	lease, worker := uint64(3), first
	d.updateOf = func(uint64) *pecanv1.EpochUpdate {
		return &pecanv1.EpochUpdate{TotalStreams: 1, StreamsFinal: true, Streams: []*pecanv1.ConsumerStream{{Assignment: 1, Lease: lease, WorkerNumber: numberOf(worker.address())}}}
	}
	job := open(t, d)
	job.consumer.Request.JobName = "shared"
	it := job.Open(IterOptions{NoPrefetch: true})
	some, err := readUpTo(t, it, taken)
	if err != nil {
		t.Fatal(err)
	}
	e := it.current
	eventually(t, "all that was made is here", func() bool { return e.State().Streams[0].Next == made })
	d.update(func() { lease, worker = 4, second })
	eventually(t, "the stream's new worker is asked", func() bool { return second.opens.Load() > 0 })
	if start := asked.Load(); start > taken {
		t.Errorf("the new worker is asked for element %d and those after it, where %d were taken", start, taken)
	}
	rest, err := read(t, it)
	if err != nil {
		t.Fatal(err)
	}
	wantAll(t, append(some, rest...), count)
}

func TestAnAbandonedStreamEndsAtItsReadersIndex(t *testing.T) {
	hold := make(chan struct{})
	worker := startWorker(t, same(testStream{count: 100, perFrame: 5, hold: hold, holdAt: 40}))
	t.Cleanup(func() { close(hold) })
	d := startDispatcher(t, func(d *testDispatcher) {
		d.options.Mode, d.plan.AssertedCardinality = pecanv1.Mode_MODE_AT_MOST_ONCE, 100
	})
	cut := false
	d.updateOf = func(uint64) *pecanv1.EpochUpdate {
		update := &pecanv1.ConsumerStream{Assignment: 1, Lease: 3, WorkerNumber: numberOf(worker.address())}
		if cut {
			update.WorkerNumber, update.Truncated, update.Produced = 0, true, 55
		}
		return &pecanv1.EpochUpdate{TotalStreams: 1, StreamsFinal: true, Streams: []*pecanv1.ConsumerStream{update}}
	}
	it := open(t, d).Open(IterOptions{})
	first, err := readUpTo(t, it, 40)
	if err != nil {
		t.Fatal(err)
	}
	d.update(func() { cut = true })
	rest, err := read(t, it)
	if err != nil {
		t.Fatal(err)
	}
	wantAll(t, append(first, rest...), 40)
	eventually(t, "the report of the number of elements", func() bool {
		return look(d, func() bool {
			return slices.ContainsFunc(d.finished, func(r finishedReport) bool { return r.epoch == 0 && r.GetCount() == 40 })
		})
	})
}

// A trainer of a shared job has received the end of a stream but not dequeued it. It reports the end when it dequeues it,
// under the lease of that run, because another run may have another number of elements. Other trainers that read the
// other run do not get the rest.
func TestAStreamEndsUnderTheLeaseOfItsElements(t *testing.T) {
	const count = 40
	first, second := startWorker(t, same(testStream{count: count, perFrame: 5})), startWorker(t, same(testStream{count: count + 5, perFrame: 5}))
	d := startDispatcher(t, func(d *testDispatcher) {
		d.options.Mode, d.plan.Determinism = pecanv1.Mode_MODE_AT_MOST_ONCE, classC
	})
	lease, worker, back := uint64(3), first, false
	d.updateOf = func(uint64) *pecanv1.EpochUpdate {
		return &pecanv1.EpochUpdate{TotalStreams: 1, StreamsFinal: true, Streams: []*pecanv1.ConsumerStream{{Assignment: 1, Lease: lease, WorkerNumber: numberOf(worker.address()), Release: back}}}
	}
	job := open(t, d)
	job.consumer.Request.JobName = "shared"
	it := job.Open(IterOptions{})
	some, err := readUpTo(t, it, 1)
	if err != nil {
		t.Fatal(err)
	}
	e := it.epoch()
	eventually(t, "the stream has ended", func() bool { return e.State().Streams[0].Ended })
	d.update(func() { lease, worker, back = 4, second, true })
	eventually(t, "the trainer knows the newer lease", func() bool { return e.State().Streams[0].Lease == 4 })
	rest, err := read(t, it)
	if err != nil {
		t.Fatal(err)
	}
	wantAll(t, append(some, rest...), count)
	eventually(t, "the report of the end", func() bool { return look(d, func() bool { return len(d.finished) > 0 }) })
	if update := look(d, func() finishedReport { return d.finished[0] }); update.GetLease() != 3 || update.GetCount() != count || update.GetAbandoned() {
		t.Errorf("reported: %v", update)
	}
	released := func(r releasedReport) bool { return r.epoch == 0 }
	if look(d, func() bool { return slices.ContainsFunc(d.released, released) }) {
		t.Error("it was handed on")
	}
}
