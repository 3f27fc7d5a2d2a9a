package client

import (
	"slices"
	"testing"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

const (
	classB = pecanv1.DeterminismClass_DETERMINISM_CLASS_B
	classC = pecanv1.DeterminismClass_DETERMINISM_CLASS_C
)

func TestWhatAModeTakesOfAStreamWhoseWorkerIsLost(t *testing.T) {
	const taken, count = 40, 100
	for name, c := range map[string]struct {
		mode  pecanv1.Mode
		class pecanv1.DeterminismClass
		// again: the first elements come once more. ends: nothing more comes.
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
			d.snapshot = func(uint64) *pecanv1.EpochUpdate {
				return &pecanv1.EpochUpdate{TotalStreams: 1, StreamsFinal: true, Streams: []*pecanv1.ConsumerStream{{Assignment: 1, Lease: lease, Worker: worker.address()}}}
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
			case c.again:
				wantAll(t, rest, count)
			default:
				wantAll(t, append(first, rest...), count)
			}
		})
	}
}

func TestAStreamThatIsGivenUpEndsWhereItsReaderIs(t *testing.T) {
	hold := make(chan struct{})
	worker := startWorker(t, same(testStream{count: 100, perFrame: 5, hold: hold, holdAt: 40}))
	t.Cleanup(func() { close(hold) })
	d := startDispatcher(t, func(d *testDispatcher) {
		d.options.Mode, d.plan.AssertedCardinality = pecanv1.Mode_MODE_AT_MOST_ONCE, 100
	})
	cut := false
	d.snapshot = func(uint64) *pecanv1.EpochUpdate {
		told := &pecanv1.ConsumerStream{Assignment: 1, Lease: 3, Worker: worker.address()}
		if cut {
			told.Worker, told.CutOff, told.Made = nil, true, 55
		}
		return &pecanv1.EpochUpdate{TotalStreams: 1, StreamsFinal: true, Streams: []*pecanv1.ConsumerStream{told}}
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
	eventually(t, "the dispatcher is told how much came", func() bool {
		return look(d, func() bool {
			return slices.ContainsFunc(d.finished, func(r *pecanv1.FinishStreamRequest) bool { return r.GetId().GetEpoch() == 0 && r.GetCount() == 40 })
		})
	})
}
