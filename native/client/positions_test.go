package client

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/pecan-ml/pecan/native/client/resume"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// seen is an element that the training loop received; failed is set for an error in its place.
type seen struct {
	epoch  uint64
	stream uint32
	index  uint64
	failed bool
}

// readSteps reads up to limit steps in blocks of random sizes, or to the end.
func readSteps(t *testing.T, it *RejoiningIteration, rng *rand.Rand, limit int) (steps []seen, ended bool) {
	t.Helper()
	for deadline := time.Now().Add(testDeadline); len(steps) < limit; {
		if time.Now().After(deadline) {
			t.Fatalf("nothing more after %d elements", len(steps))
		}
		rows, status, err := it.NextBlock(min(1+rng.IntN(9), limit-len(steps)), 50*time.Millisecond)
		switch status {
		case Ready:
			for data := rows.Tensors[0].Data; len(data) > 0; data = data[8:] {
				v := binary.LittleEndian.Uint64(data)
				steps = append(steps, seen{epoch: v >> 48, stream: uint32(v>>32) & 0xffff, index: v & 0xffffffff})
			}
			rows.Release()
		case Failed, Broken:
			if status == Broken || !reason.Is(err, reason.ElementFailed) {
				t.Fatal(err)
			}
			steps = append(steps, seen{failed: true})
		case End:
			return steps, true
		}
	}
	return steps, false
}

func savedAt(t *testing.T, r *RejoiningJob, consumed int, ended bool) *pecanv1.Token {
	t.Helper()
	text, err := r.Save(0, uint64(consumed), ended)
	if err != nil {
		t.Fatal(err)
	}
	token, err := resume.Decode(text)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func TestThePositionAfterEachStepCoversTheStepsBeforeIt(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	d := startDispatcher(t, func(d *testDispatcher) { d.plan.NumStreams, d.plan.Repeat = 3, 3 })
	d.snapshot = spread(3, startWorker(t, func(_ uint64, stream uint32) (testStream, bool) {
		return testStream{count: 10 + 7*uint64(stream), perFrame: 3, failAt: map[uint64]bool{12: true}}, true
	}))
	r := rejoiningJob(t, d, nil)
	steps, ended := readSteps(t, r.Open(IterOptions{}), rng, 1000)
	if !ended || len(steps) != 3*(10+17+24) {
		t.Fatalf("%d steps, ended %v", len(steps), ended)
	}
	next, epoch, elements, had := map[uint32]uint64{}, uint64(0), uint64(0), 0
	for n := 0; n <= len(steps); n++ {
		if n > 0 && n < len(steps) {
			step := steps[n-1]
			had++
			if !step.failed {
				next[step.stream] = step.index + 1
				elements++
			}
			if had == 10+17+24 {
				// The position at the end of a pass is the start of the next pass, which was partly prefetched.
				next, epoch, had = map[uint32]uint64{}, epoch+1, 0
			}
		}
		token := savedAt(t, r, n, false)
		position := token.GetPosition()
		if n == len(steps) {
			if position.GetEpoch() != 3 || len(position.GetNext()) > 0 || token.GetPasses() != 0 {
				t.Errorf("after all steps: %v", token)
			}
			break
		}
		if position.GetEpoch() != epoch || token.GetPasses() != epoch || token.GetElements() != elements {
			t.Fatalf("after %d steps: %v, want epoch %d, %d elements", n, token, epoch, elements)
		}
		for stream := range uint32(3) {
			got := uint64(0)
			if int(stream) < len(position.GetNext()) {
				got = position.GetNext()[stream]
			}
			// A failed element also advances its stream. The error does not say which element it was.
			if want := next[stream]; got != want && (got != 13 || want != 12) {
				t.Fatalf("after %d steps: stream %d at %d, want %d", n, stream, got, want)
			}
			if slices.Contains(position.GetEnded(), stream) != (got == 10+7*uint64(stream)) {
				t.Fatalf("after %d steps: %v", n, position)
			}
		}
	}
}

func TestPositionsGoBackAsFarAsDeliveriesAreKept(t *testing.T) {
	d := startDispatcher(t, func(d *testDispatcher) { d.plan.NumStreams = 2 })
	d.snapshot = spread(2, startWorker(t, same(testStream{count: 1500})))
	r := rejoiningJob(t, d, nil)
	it := r.Open(IterOptions{Deterministic: true, NoPrefetch: true})
	for taken := 0; taken < 2500; {
		rows, status, err := it.NextElement(50 * time.Millisecond)
		if status == Failed || status == Broken || status == End {
			t.Fatal(status, err)
		}
		if status == Ready {
			rows.Release()
			taken++
		}
	}
	for _, n := range []int{2500 - resume.KeptDeliveries, 2000, 2499, 2500} {
		if got := savedAt(t, r, n, false).GetPosition(); got.GetNext()[0] != uint64(n+1)/2 || got.GetNext()[1] != uint64(n)/2 || got.GetTurn() != 1+uint32(n+1)%2 {
			t.Errorf("after %d elements: %v", n, got)
		}
	}
	for n, words := range map[uint64]string{2500 - resume.KeptDeliveries - 1: "only the last 1024 deliveries", 2501: "only 2500 were returned"} {
		if _, err := r.Save(0, n, false); !reason.Is(err, reason.BadArgument) || !strings.Contains(err.Error(), words) {
			t.Errorf("after %d elements: %v", n, err)
		}
	}
	if err := it.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestTheNextIterationStartsAtALoadedState(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	d := startDispatcher(t, func(d *testDispatcher) {
		d.plan.NumStreams, d.plan.Fingerprint = 2, "f1"
		d.options = &pecanv1.JobOptions{Seed: 77}
	})
	d.snapshot = spread(2, startWorker(t, same(testStream{count: 20, perFrame: 3})))
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
	d.snapshot = spread(2, startWorker(t, same(testStream{count: 20, perFrame: 3})))
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
		t.Errorf("before each epoch was opened, so many were closed: %v", closed)
	}
}

// TensorFlow may close a failed iterator shortly after the training loop has started the next one.
func TestAFailedIterationHandsItsPositionToOneThatStartsBeforeItIsClosed(t *testing.T) {
	d := startDispatcher(t, func(d *testDispatcher) { d.plan.NumStreams, d.plan.Fingerprint = 1, "f1" })
	worker := startWorker(t, same(testStream{count: 20, perFrame: 3}))
	d.snapshot = func(uint64) *pecanv1.EpochUpdate {
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
	d.snapshot = spread(1, worker)
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
			d.snapshot = spread(2, startWorker(t, same(testStream{count: 10, perFrame: 3})))
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
	d.snapshot = spread(1, startWorker(t, same(testStream{count: 10})))
	j := open(t, d)
	it := j.Open(IterOptions{NoPrefetch: true, Resume: &resume.Point{Position: &pecanv1.Position{Epoch: 3, Next: []uint64{10}}, Elements: 10}})
	if all, err := read(t, it); err != nil || len(all) != 0 {
		t.Errorf("%d elements, %v", len(all), err)
	}
}

func TestThePositionAfterEmptyPassesIsTheNextEpoch(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	d := startDispatcher(t)
	d.snapshot = spread(1, startWorker(t, func(epoch uint64, _ uint32) (testStream, bool) {
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
	d.snapshot = spread(1, startWorker(t, same(testStream{count: 50, perFrame: 1})))
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

// In a class C dataset an index does not identify an element. The mode then decides what a position guarantees.
func TestTheModeDecidesWhereAClassCDatasetResumes(t *testing.T) {
	const remainder = pecanv1.BatchStrategy_BATCH_STRATEGY_REMAINDER
	for name, c := range map[string]struct {
		mode  pecanv1.Mode
		class pecanv1.DeterminismClass
		way   pecanv1.BatchStrategy
		next  []uint64
		ended []uint32
	}{
		"at least once, an index is fixed":  {pecanv1.Mode_MODE_AT_LEAST_ONCE, classB, 0, []uint64{20, 7}, []uint32{0}},
		"at most once, an index is fixed":   {pecanv1.Mode_MODE_AT_MOST_ONCE, classB, 0, []uint64{20, 7}, []uint32{0}},
		"at least once, it is not":          {pecanv1.Mode_MODE_AT_LEAST_ONCE, classC, 0, []uint64{20, 0}, []uint32{0}},
		"at most once, it is not":           {pecanv1.Mode_MODE_AT_MOST_ONCE, classC, 0, []uint64{20, 7}, []uint32{0, 1}},
		"at least once, rows are kept back": {pecanv1.Mode_MODE_AT_LEAST_ONCE, classC, remainder, []uint64{0, 0}, nil},
		"at most once, rows are kept back":  {pecanv1.Mode_MODE_AT_MOST_ONCE, classC, remainder, []uint64{20, 7}, []uint32{0, 1, 3}},
		"at least once, rows have an index": {pecanv1.Mode_MODE_AT_LEAST_ONCE, classB, remainder, []uint64{20, 7}, []uint32{0}},
	} {
		t.Run(name, func(t *testing.T) {
			d := startDispatcher(t, func(d *testDispatcher) {
				d.plan.NumStreams, d.plan.Determinism, d.plan.BatchStrategy, d.options.Mode = 3, c.class, c.way, c.mode
			})
			d.snapshot = func(uint64) *pecanv1.EpochUpdate {
				return &pecanv1.EpochUpdate{TotalStreams: 3, Streams: []*pecanv1.ConsumerStream{{}, {Stream: 1}, {Stream: 2}}}
			}
			it := open(t, d).Open(IterOptions{Resume: &resume.Point{Position: &pecanv1.Position{Epoch: 4, Next: []uint64{20, 7}, Ended: []uint32{0}}}})
			eventually(t, "the epoch is opened", func() bool { return look(d, func() bool { return len(d.opened) > 0 }) })
			position := look(d, func() *pecanv1.Position { return d.opened[0].GetPosition() })
			if position.GetEpoch() != 4 || !slices.Equal(position.GetNext(), c.next) || !slices.Equal(position.GetEnded(), c.ended) {
				t.Errorf("it is opened at %v", position)
			}
			if err := it.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// L3: a token is refused if a property of the dataset differs that changes the element at an index. The error names the
// property and both values, and the job does not change.
func TestATokenOfAnotherDatasetIsRefused(t *testing.T) {
	d := startDispatcher(t, func(d *testDispatcher) {
		d.plan = &pecanv1.Plan{NumStreams: 2, Fingerprint: "f1", Hash: "h1", Repeat: 3}
		d.options = &pecanv1.JobOptions{Seed: 77, SeedSet: true, Mode: pecanv1.Mode_MODE_DETERMINISTIC}
	})
	d.snapshot = spread(2, startWorker(t, same(testStream{count: 20})))
	r, err := open(t, d).session.CreateRejoiningJob(context.Background(), JobSpec{DatasetID: "f1", Options: d.options}, nil)
	if err != nil {
		t.Fatal(err)
	}
	before := r.Job()
	for name, c := range map[string]struct {
		change func(*pecanv1.Token)
		words  []string
	}{
		"of another graph":  {func(t *pecanv1.Token) { t.Fingerprint = "f2" }, []string{"the graph f2", "f1"}},
		"of another plan":   {func(t *pecanv1.Token) { t.PlanHash = "h2" }, []string{"the plan h2", "h1"}},
		"of other streams":  {func(t *pecanv1.Token) { t.NumStreams = 3 }, []string{"a number of streams of 3", "2"}},
		"of another mode":   {func(t *pecanv1.Token) { t.Mode = pecanv1.Mode_MODE_AT_LEAST_ONCE }, []string{"MODE_AT_LEAST_ONCE", "MODE_DETERMINISTIC"}},
		"of another seed":   {func(t *pecanv1.Token) { t.Seed = 78 }, []string{"the seed 78", "77"}},
		"of another format": {func(t *pecanv1.Token) { t.Format = 2 }, []string{"format 2", "format 1"}},
		"without a place":   {func(t *pecanv1.Token) { t.Position = nil }, []string{"no position"}},
		"with more streams": {func(t *pecanv1.Token) { t.Position.Next = []uint64{1, 2, 3} }, []string{"stream 2", "this dataset has 2 streams"}},
		"of an end beyond":  {func(t *pecanv1.Token) { t.Position.Ended = []uint32{1, 2} }, []string{"stream 2", "this dataset has 2 streams"}},
		"of a turn beyond":  {func(t *pecanv1.Token) { t.Position.Turn = 1<<32 - 1 }, []string{"stream 4294967294", "this dataset has 2 streams"}},
		"of a pass beyond":  {func(t *pecanv1.Token) { t.Passes = 3 }, []string{"3 passes", "repeats 3"}},
		"of another order":  {func(t *pecanv1.Token) { t.Position.Order = &pecanv1.EpochOrder{Hash: "o1"} }, []string{`order="off"`, "`order_tolerance`"}},
		"of a pass far off": {func(t *pecanv1.Token) { t.Passes = 1<<64 - 1 }, []string{"18446744073709551615 passes", "repeats 3"}},
	} {
		token := savedAt(t, r, 0, false)
		c.change(token)
		text, err := resume.Encode(token)
		if err != nil {
			t.Fatal(err)
		}
		err = r.Load(context.Background(), text)
		if !reason.Is(err, reason.BadArgument) || r.Job() != before {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, word := range c.words {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%s: %v does not say %q", name, err, word)
			}
		}
	}
	text, err := r.Save(0, 0, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Load(context.Background(), text); err != nil || r.Job() == before {
		t.Errorf("unchanged it is refused: %v", err)
	}
}

// A position has the step order of its epoch from the opening of the epoch on. A resumed epoch uses the same order.
func TestAPositionNamesTheOrderOfItsEpoch(t *testing.T) {
	plan := &pecanv1.Plan{NumStreams: 2, Hash: "h1", Repeat: 2, Cardinality: -2, AssertedCardinality: -2}
	other, registered := pecanv1.NewEpochOrder(plan, []string{"b", "a"}), &pecanv1.EpochOrder{}
	d := startDispatcher(t, func(d *testDispatcher) {
		d.plan = plan
		d.options = &pecanv1.JobOptions{Seed: 77, SeedSet: true, Mode: pecanv1.Mode_MODE_DETERMINISTIC, Order: pecanv1.Order_ORDER_AUTO}
		d.orders = map[uint64]*pecanv1.EpochOrder{0: registered, 1: other}
	})
	d.snapshot = spread(2, startWorker(t, same(testStream{count: 5})))
	r := rejoiningJob(t, d, nil)
	if at := savedAt(t, r, 0, false).GetPosition(); at.Order != nil {
		t.Errorf("before anything is open the order is %v", at.Order)
	}
	if steps, ended := readSteps(t, r.Open(IterOptions{}), rand.New(rand.NewPCG(1, 2)), 1000); !ended || len(steps) != 20 {
		t.Fatalf("%d steps, %v", len(steps), ended)
	}
	for consumed, want := range map[int]*pecanv1.EpochOrder{1: registered, 9: registered, 10: other, 13: other, 19: other, 20: nil} {
		if got := savedAt(t, r, consumed, false).GetPosition(); !proto.Equal(got.GetOrder(), want) || (got.GetOrder() == nil) != (want == nil) {
			t.Errorf("after %d elements the position is %v, want the order %v", consumed, got, want)
		}
	}
	for _, consumed := range []uint64{10, 13} {
		// Not in parallel: the next session would count the open files of this session's new connections as leaks.
		t.Run(fmt.Sprint("after ", consumed), func(t *testing.T) {
			text, err := r.Save(0, consumed, false)
			if err != nil {
				t.Fatal(err)
			}
			fresh := rejoiningJob(t, d, nil)
			if err := fresh.Load(context.Background(), text); err != nil {
				t.Fatal(err)
			}
			look(d, func() any { d.places, d.opened = map[string]string{}, nil; return nil })
			it := fresh.Open(IterOptions{})
			eventually(t, "the epoch is opened", func() bool { return look(d, func() bool { return len(d.opened) > 0 }) })
			if at := look(d, func() *pecanv1.Position { return d.opened[0].GetPosition() }); at.GetEpoch() != 1 || !proto.Equal(at.GetOrder(), other) {
				t.Errorf("it is opened at %v", at)
			}
			if err := it.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestTokensAreSmallAndChecked(t *testing.T) {
	for streams, steps := range map[int]int{1: 1024, 16: 1025, 1000: 1024, 60_000: 65_536} {
		token := &pecanv1.Token{
			Format: resume.TokenFormat, Fingerprint: strings.Repeat("f", 64), PlanHash: strings.Repeat("h", 64), Mode: pecanv1.Mode_MODE_DETERMINISTIC,
			NumStreams: int32(streams), Seed: 1<<64 - 1, Passes: 1 << 40, Elements: 1 << 50,
			Position: &pecanv1.Position{Epoch: 1 << 60, Turn: uint32(streams)},
		}
		for i := range streams {
			token.Position.Next = append(token.Position.Next, 1<<40+uint64(i))
			if i%2 == 0 {
				token.Position.Ended = append(token.Position.Ended, uint32(i))
			}
		}
		var order []string
		for i := range steps {
			order = append(order, fmt.Sprintf("ParallelMapDatasetV2/_%d", i))
		}
		token.Position.Order = pecanv1.NewEpochOrder(&pecanv1.Plan{}, order)
		if spelt := len(token.Position.Order.Steps) > 0; spelt != (steps == 1024) {
			t.Errorf("%d steps are spelt out: %v", steps, spelt)
		}
		text, err := resume.Encode(token)
		if err != nil {
			t.Fatal(err)
		}
		if limit := 4096 + 16*streams; len(text) > limit {
			t.Errorf("%d streams: %d bytes, the limit is %d", streams, len(text), limit)
		}
		if got, err := resume.Decode(text); err != nil || got.String() != token.String() {
			t.Errorf("%d streams: %v", streams, err)
		}
	}
}
