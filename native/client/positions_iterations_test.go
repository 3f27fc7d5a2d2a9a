package client

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pecan-ml/pecan/native/client/resume"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

func TestTheNextIterationStartsAtALoadedState(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	d := startDispatcher(t, func(d *testDispatcher) {
		d.plan.NumStreams, d.plan.Fingerprint = 2, "f1"
		d.options = &pecanv1.JobOptions{Seed: 77}
	})
	d.updateOf = spread(2, startWorker(t, same(testStream{count: 20, perFrame: 3})))
	r := rejoiningJob(t, d, nil)
	steps, _ := readSteps(t, r.Open(IterOptions{NoPrefetch: true}), rng, 25)
	text, err := r.Save(0, 25, false)
	if err != nil {
		t.Fatal(err)
	}
	first := r.Job()
	if err := r.Load(context.Background(), text); err != nil {
		t.Fatal(err)
	}
	if again, err := r.Save(0, 0, false); err != nil || again != text {
		t.Errorf("nothing was read since, and the state is %q, %v", again, err)
	}
	rest, ended := readSteps(t, r.Open(IterOptions{NoPrefetch: true}), rng, 100)
	if !ended || len(rest) != 15 {
		t.Errorf("%d more, ended %v", len(rest), ended)
	}
	all := map[seen]bool{}
	for _, step := range append(steps, rest...) {
		all[step] = true
	}
	if len(all) != 40 {
		t.Errorf("%d different elements", len(all))
	}
	opened := look(d, func() []*pecanv1.OpenEpochRequest { return slices.Clone(d.opened) })
	if last := opened[len(opened)-1]; last.GetJobId() == first.ID() || last.GetPosition() == nil {
		t.Errorf("opened %v", last)
	}
	if seeds := look(d, func() []uint64 { return slices.Clone(d.seeds) }); !slices.Contains(seeds, 77) {
		t.Errorf("jobs of the seeds %v", seeds)
	}
	// The iteration after it begins at the start of the next epoch.
	if steps, _ := readSteps(t, r.Open(IterOptions{NoPrefetch: true}), rng, 100); len(steps) != 40 || steps[0].epoch != 1 {
		t.Errorf("%d steps of epoch %d", len(steps), steps[0].epoch)
	}
}

// A training loop gets an outage error, or stops, before its first element, and creates another iterator. The new iterator
// begins where the first would have begun: at the loaded position or at the start of the same epoch.
func TestAnIterationWithoutDeliveriesHandsItsPositionToTheNextOne(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	d := startDispatcher(t, func(d *testDispatcher) { d.plan.NumStreams, d.plan.Fingerprint = 2, "f1" })
	d.updateOf = spread(2, startWorker(t, same(testStream{count: 20, perFrame: 3})))
	r := rejoiningJob(t, d, nil)
	leave := func() {
		t.Helper()
		it := r.Open(IterOptions{NoPrefetch: true})
		eventually(t, "the epoch is open", func() bool { return it.it.current.Position() != nil })
		if err := it.Close(); err != nil {
			t.Fatal(err)
		}
	}
	read := func(limit, want int, epoch uint64) {
		t.Helper()
		it := r.Open(IterOptions{NoPrefetch: true})
		steps, _ := readSteps(t, it, rng, limit)
		if len(steps) != want || steps[0].epoch != epoch {
			t.Fatalf("%d elements, the first is %v, want %d of epoch %d", len(steps), steps[0], want, epoch)
		}
		if err := it.Close(); err != nil {
			t.Fatal(err)
		}
	}
	leave()
	leave()
	read(100, 40, 0)
	leave()
	read(25, 25, 1)
	leave()
	// The position after the 65th element belongs to this epoch and not to the next one, because elements remain.
	text, err := r.Save(0, 65, false)
	if err != nil {
		t.Fatal(err)
	}
	read(5, 5, 2)
	if again, err := r.Save(0, 65, false); err != nil || again != text {
		t.Errorf("the position after the same elements is another one, %v", err)
	}
	if err := r.Load(context.Background(), text); err != nil {
		t.Fatal(err)
	}
	leave()
	if again, err := r.Save(0, 0, false); err != nil || again != text {
		t.Errorf("nothing was read since, and the state is another one, %v", err)
	}
	read(100, 15, 1)
	// The dispatcher opens an epoch after it has closed the previous one.
	if closed := look(d, func() []int { return slices.Clone(d.closedBefore) }); !slices.IsSorted(closed) || closed[2] != 2 {
		t.Errorf("before each epoch was opened, this many were closed: %v", closed)
	}
}

// TensorFlow may close a failed iterator shortly after the training loop has started the next one.
func TestAFailedIterationHandsItsPositionToOneThatStartsBeforeItIsClosed(t *testing.T) {
	d := startDispatcher(t, func(d *testDispatcher) { d.plan.NumStreams, d.plan.Fingerprint = 1, "f1" })
	worker := startWorker(t, same(testStream{count: 20, perFrame: 3}))
	d.updateOf = func(uint64) *pecanv1.EpochUpdate {
		return &pecanv1.EpochUpdate{Waiting: "no worker is registered", NoWorkers: true}
	}
	r := rejoiningJob(t, d, nil)
	options := IterOptions{NoPrefetch: true, Timeout: 50 * time.Millisecond}
	first := r.Open(options)
	eventually(t, "the report that there is no worker", func() bool {
		_, status, err := first.NextElement(10 * time.Millisecond)
		return status == Failed && reason.Is(err, reason.NoWorkers)
	})
	d.mu.Lock()
	d.updateOf = spread(1, worker)
	d.mu.Unlock()
	closed := make(chan error, 1)
	time.AfterFunc(200*time.Millisecond, func() { closed <- first.Close() })
	steps, _ := readSteps(t, r.Open(options), rand.New(rand.NewPCG(9, 10)), 5)
	if err := <-closed; err != nil {
		t.Fatal(err)
	}
	if len(steps) != 5 || steps[0].epoch != 0 {
		t.Errorf("%d elements, the first is %v, want 5 of epoch 0", len(steps), steps[0])
	}
}

// TensorFlow's repeat() opens an iteration for each pass. If the first pass is empty, repeat() ends.
func TestAPositionAtTheEndOfAPassIsTheStartOfTheNextOne(t *testing.T) {
	for name, c := range map[string]struct {
		cardinality, repeat int64
		ahead               int
	}{
		"nothing read ahead, known length":                  {cardinality: 20, repeat: 1},
		"nothing read ahead, unknown length":                {cardinality: -2, repeat: 1},
		"nothing read ahead, unknown length, endless":       {cardinality: -2, repeat: -1},
		"the next pass read ahead, known length":            {cardinality: 20, repeat: 1, ahead: 5},
		"the next pass read ahead, unknown length":          {cardinality: -2, repeat: 1, ahead: 5},
		"the next pass read ahead, unknown length, endless": {cardinality: -2, repeat: -1, ahead: 5},
	} {
		t.Run(name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(5, 6))
			d := startDispatcher(t, func(d *testDispatcher) {
				d.plan.NumStreams, d.plan.Cardinality, d.plan.Repeat = 2, c.cardinality, c.repeat
			})
			d.updateOf = spread(2, startWorker(t, same(testStream{count: 10, perFrame: 3})))
			r := rejoiningJob(t, d, nil)
			it := r.Open(IterOptions{NoPrefetch: true})
			readSteps(t, it, rng, 20)
			if c.ahead > 0 && c.repeat == 1 {
				if _, ended := readSteps(t, it, rng, 1); !ended {
					t.Fatal("the pass has no end")
				}
				it = r.Open(IterOptions{NoPrefetch: true})
			}
			readSteps(t, it, rng, c.ahead)
			text, err := r.Save(0, 20, false)
			if err != nil {
				t.Fatal(err)
			}
			if err := r.Load(context.Background(), text); err != nil {
				t.Fatal(err)
			}
			again := r.Open(IterOptions{NoPrefetch: true})
			steps, _ := readSteps(t, again, rng, 20)
			if len(steps) != 20 || steps[0].epoch != 1 || steps[19].epoch != 1 {
				t.Fatalf("it goes on with %d elements: %v", len(steps), steps)
			}
			if _, ended := readSteps(t, again, rng, 1); ended != (c.repeat == 1) {
				t.Errorf("after the pass, ended is %v", ended)
			}
		})
	}
}

// A trainer that has read all elements of a pass but not its end still gets the end, even from another job.
func TestALostJobDoesNotPreventTheEndOfACompletePass(t *testing.T) {
	d := startDispatcher(t)
	d.updateOf = spread(1, startWorker(t, same(testStream{count: 10})))
	j := open(t, d)
	it := j.Open(IterOptions{NoPrefetch: true, Resume: &resume.Point{Position: &pecanv1.Position{Epoch: 3, Next: []uint64{10}}, Elements: 10}})
	if all, err := read(t, it); err != nil || len(all) != 0 {
		t.Errorf("%d elements, %v", len(all), err)
	}
}

func TestThePositionAfterEmptyPassesIsTheNextEpoch(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	d := startDispatcher(t)
	d.updateOf = spread(1, startWorker(t, func(epoch uint64, _ uint32) (testStream, bool) {
		return testStream{count: []uint64{0, 3, 0, 0, 3}[min(epoch, 4)]}, true
	}))
	r := rejoiningJob(t, d, nil)
	consumed := 0
	for pass := range uint64(4) {
		steps, _ := readSteps(t, r.Open(IterOptions{NoPrefetch: true}), rng, 100)
		consumed += len(steps)
		for _, ended := range []bool{false, true} {
			if got := savedAt(t, r, consumed, ended).GetPosition(); got.GetEpoch() != pass+1 || len(got.GetNext()) > 0 {
				t.Errorf("after pass %d, ended is %v: %v", pass, ended, got)
			}
		}
	}
	readSteps(t, r.Open(IterOptions{NoPrefetch: true}), rng, 2)
	if got := savedAt(t, r, 3, false).GetPosition(); got.GetEpoch() != 4 || len(got.GetNext()) > 0 {
		t.Errorf("where the pass after empty ones was read ahead: %v", got)
	}
}

func TestAnIteratorsPositionExcludesElementsOfOtherIterators(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 10))
	d := startDispatcher(t)
	d.updateOf = spread(1, startWorker(t, same(testStream{count: 50, perFrame: 1})))
	r := rejoiningJob(t, d, nil)
	want := func(reading, consumed, epoch, next uint64) {
		t.Helper()
		text, err := r.Save(reading, consumed, false)
		if err != nil {
			t.Fatal(err)
		}
		token, err := resume.Decode(text)
		if err != nil {
			t.Fatal(err)
		}
		got := uint64(0)
		if all := token.GetPosition().GetNext(); len(all) > 0 {
			got = all[0]
		}
		if token.GetPosition().GetEpoch() != epoch || got != next {
			t.Errorf("after %d of reading %d: %v, want index %d of epoch %d", consumed, reading, token.GetPosition(), next, epoch)
		}
	}
	older := r.NewIterator()
	first := r.Open(IterOptions{NoPrefetch: true})
	readSteps(t, first, rng, 10)
	newer := r.NewIterator()
	second := r.Open(IterOptions{NoPrefetch: true})
	want(newer, 0, 1, 0)
	// The iteration still prefetches.
	readSteps(t, first, rng, 5)
	want(newer, 0, 1, 0)
	want(older, 7, 0, 7)
	readSteps(t, second, rng, 8)
	want(older, 15, 0, 15)
	want(newer, 0, 1, 0)
	want(newer, 3, 1, 3)
	readSteps(t, first, rng, 5)
	want(newer, 8, 1, 8)
	for _, reading := range []uint64{0, older} {
		if _, err := r.Save(reading, 3, false); !reason.Is(err, reason.BadArgument) || !strings.Contains(err.Error(), "two iterators") {
			t.Errorf("reading %d: %v", reading, err)
		}
	}
	text, err := r.Save(newer, 8, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Load(context.Background(), text); err != nil {
		t.Fatal(err)
	}
	if after := r.NewIterator(); after <= newer {
		t.Errorf("numbers begin again: %d after %d", after, newer)
	}
	if _, err := r.Save(newer, 0, false); !reason.Is(err, reason.BadArgument) || !strings.Contains(err.Error(), "create a new one") {
		t.Errorf("an iterator of before the state was loaded: %v", err)
	}
}
