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
		elements, status, err := it.NextBlock(min(1+rng.IntN(9), limit-len(steps)), 50*time.Millisecond)
		switch status {
		case Ready:
			for data := elements.Tensors[0].Data; len(data) > 0; data = data[8:] {
				v := binary.LittleEndian.Uint64(data)
				steps = append(steps, seen{epoch: v >> 48, stream: uint32(v>>32) & 0xffff, index: v & 0xffffffff})
			}
			elements.Release()
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
	d.updateOf = spread(3, startWorker(t, func(_ uint64, stream uint32) (testStream, bool) {
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
	d.updateOf = spread(2, startWorker(t, same(testStream{count: 1500})))
	r := rejoiningJob(t, d, nil)
	it := r.Open(IterOptions{Deterministic: true, NoPrefetch: true})
	for taken := 0; taken < 2500; {
		elements, status, err := it.NextElement(50 * time.Millisecond)
		if status == Failed || status == Broken || status == End {
			t.Fatal(status, err)
		}
		if status == Ready {
			elements.Release()
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

// In a class C dataset an index does not identify an element. The mode then decides what a position guarantees.
func TestTheModeDecidesWhereAClassCDatasetResumes(t *testing.T) {
	const remainder = pecanv1.BatchStrategy_BATCH_STRATEGY_REMAINDER
	for name, c := range map[string]struct {
		mode     pecanv1.Mode
		class    pecanv1.DeterminismClass
		strategy pecanv1.BatchStrategy
		next     []uint64
		ended    []uint32
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
				d.plan.NumStreams, d.plan.Determinism, d.plan.BatchStrategy, d.options.Mode = 3, c.class, c.strategy, c.mode
			})
			d.updateOf = func(uint64) *pecanv1.EpochUpdate {
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
	d.updateOf = spread(2, startWorker(t, same(testStream{count: 20})))
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
		"of another plan":   {func(t *pecanv1.Token) { t.PlanHash = "h2" }, []string{"the plan h2", "h1", "the version of Pecan with which it was saved, or begin without this state"}},
		"of other streams":  {func(t *pecanv1.Token) { t.NumStreams = 3 }, []string{"a number of streams of 3", "2"}},
		"of another mode":   {func(t *pecanv1.Token) { t.Mode = pecanv1.Mode_MODE_AT_LEAST_ONCE }, []string{"MODE_AT_LEAST_ONCE", "MODE_DETERMINISTIC"}},
		"of another seed":   {func(t *pecanv1.Token) { t.Seed = 78 }, []string{"the seed 78", "77"}},
		"of another format": {func(t *pecanv1.Token) { t.Format = 3 }, []string{"format 3", "formats 1 and 2"}},
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
	d.updateOf = spread(2, startWorker(t, same(testStream{count: 5})))
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
