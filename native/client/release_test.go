package client

import (
	"testing"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

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
	d.updateOf = func(uint64) *pecanv1.EpochUpdate {
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
	if given := look(d, func() releasedReport { return d.released[0] }); given.GetNextIndex() != 25 {
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
	d.updateOf = func(uint64) *pecanv1.EpochUpdate {
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
	d.updateOf = func(uint64) *pecanv1.EpochUpdate {
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

func TestAStreamRevokedBeforeItsFirstUpdateIsReleasedAtItsStartIndex(t *testing.T) {
	w := startWorker(t, same(testStream{count: 30}))
	d := startDispatcher(t)
	start, assignment := uint64(12), uint64(1)
	d.updateOf = func(uint64) *pecanv1.EpochUpdate {
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
	eventually(t, "the update has come", func() bool { return it.epoch().State().Version == look(d, func() uint64 { return d.version }) })
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
	d.updateOf = spread(2, w)
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
	for _, given := range look(d, func() []releasedReport { return d.released }) {
		// A position may omit streams of which no element was dequeued.
		stands, stream := uint64(0), int(given.GetStream())
		if stream < len(position.Next) {
			stands = position.Next[stream]
		}
		if given.GetNextIndex() != stands {
			t.Errorf("released %v, the trainer stands at %v", given, position.Next)
		}
		sum += given.GetNextIndex()
	}
	if sum != 7 || len(look(d, func() []finishedReport { return d.finished })) != 0 {
		t.Errorf("released at %d in all, position %+v", sum, position)
	}
}
