package client

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pecan-ml/pecan/native/buffer"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// seen is an element as the training loop has it; failed: an error in its place.
type seen struct {
	epoch  uint64
	stream uint32
	index  uint64
	failed bool
}

// readSteps reads up to limit steps in blocks of random sizes, or to the end.
func readSteps(t *testing.T, it *RenewableIteration, rng *rand.Rand, limit int) (steps []seen, ended bool) {
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
		case Failed:
			if !reason.Is(err, reason.ElementFailed) {
				t.Fatal(err)
			}
			steps = append(steps, seen{failed: true})
		case End:
			return steps, true
		}
	}
	return steps, false
}

func savedAt(t *testing.T, r *Renewable, consumed int, ended bool) *pecanv1.Token {
	t.Helper()
	text, err := r.Save(uint64(consumed), ended)
	if err != nil {
		t.Fatal(err)
	}
	token, err := decodeToken(text)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func TestThePositionBehindEachStepIsWhatTheStepsBeforeItHad(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	d := startDispatcher(t, func(d *testDispatcher) { d.plan.NumStreams, d.plan.Repeat = 3, 3 })
	d.snapshot = spread(3, startWorker(t, func(_ uint64, stream uint32) (testStream, bool) {
		return testStream{count: 10 + 7*uint64(stream), perFrame: 3, failAt: map[uint64]bool{12: true}}, true
	}))
	r := renewable(t, d, nil)
	steps, ended := readSteps(t, r.Open(IterOptions{}), rng, 1000)
	if !ended || len(steps) != 3*(10+17+24) {
		t.Fatalf("%d steps, ended %v", len(steps), ended)
	}
	next, epoch, elements, had := map[uint32]uint64{}, uint64(0), uint64(0), 0
	for n := 0; n <= len(steps); n++ {
		if n > 0 && n < len(steps) {
			step := steps[n-1]
			if had == 10+17+24 {
				// The position at the end of a pass is that of its end, until the next one has begun.
				next, epoch, had = map[uint32]uint64{}, epoch+1, 0
			}
			had++
			if !step.failed {
				next[step.stream] = step.index + 1
				elements++
			}
		}
		token := savedAt(t, r, n, false)
		position := token.GetPosition()
		if n == len(steps) {
			if position.GetEpoch() != 3 || len(position.GetNext()) > 0 || token.GetPasses() != 0 {
				t.Errorf("behind everything: %v", token)
			}
			break
		}
		if position.GetEpoch() != epoch || token.GetPasses() != epoch || token.GetElements() != elements {
			t.Fatalf("behind %d steps: %v, want epoch %d, %d elements", n, token, epoch, elements)
		}
		for stream := range uint32(3) {
			got := uint64(0)
			if int(stream) < len(position.GetNext()) {
				got = position.GetNext()[stream]
			}
			// A failed element moves its stream as well, and does not say which it was.
			if want := next[stream]; got != want && (got != 13 || want != 12) {
				t.Fatalf("behind %d steps: stream %d at %d, want %d", n, stream, got, want)
			}
			if slices.Contains(position.GetEnded(), stream) != (got == 10+7*uint64(stream)) {
				t.Fatalf("behind %d steps: %v", n, position)
			}
		}
	}
}

func TestPositionsGoBackAsFarAsDeliveriesAreKept(t *testing.T) {
	d := startDispatcher(t, func(d *testDispatcher) { d.plan.NumStreams = 2 })
	d.snapshot = spread(2, startWorker(t, same(testStream{count: 1500})))
	r := renewable(t, d, nil)
	it := r.Open(IterOptions{Deterministic: true, NoAhead: true})
	for taken := 0; taken < 2500; {
		rows, status, err := it.NextElement(50 * time.Millisecond)
		if status == Failed || status == End {
			t.Fatal(status, err)
		}
		if status == Ready {
			rows.Release()
			taken++
		}
	}
	if r.Delivered() != 2500 {
		t.Errorf("%d delivered", r.Delivered())
	}
	for _, n := range []int{2500 - keptDeliveries, 2000, 2499, 2500} {
		if got := savedAt(t, r, n, false).GetPosition(); got.GetNext()[0] != uint64(n+1)/2 || got.GetNext()[1] != uint64(n)/2 || got.GetTurn() != 1+uint32(n+1)%2 {
			t.Errorf("behind %d: %v", n, got)
		}
	}
	for n, words := range map[uint64]string{2500 - keptDeliveries - 1: "only the last 1024 deliveries", 2501: "only 2500 were handed over"} {
		if _, err := r.Save(n, false); !reason.Is(err, reason.BadArgument) || !strings.Contains(err.Error(), words) {
			t.Errorf("behind %d: %v", n, err)
		}
	}
	if err := it.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestALoadedStateIsWhereTheNextIterationBegins(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	d := startDispatcher(t, func(d *testDispatcher) {
		d.plan.NumStreams, d.plan.Fingerprint = 2, "f1"
		d.options = &pecanv1.JobOptions{Seed: 77}
	})
	d.snapshot = spread(2, startWorker(t, same(testStream{count: 20, perFrame: 3})))
	r := renewable(t, d, nil)
	steps, _ := readSteps(t, r.Open(IterOptions{NoAhead: true}), rng, 25)
	text, err := r.Save(25, false)
	if err != nil {
		t.Fatal(err)
	}
	first := r.Job()
	if err := r.Load(context.Background(), text); err != nil {
		t.Fatal(err)
	}
	if again, err := r.Save(0, false); err != nil || again != text {
		t.Errorf("nothing was read since, and the state is %q, %v", again, err)
	}
	rest, ended := readSteps(t, r.Open(IterOptions{NoAhead: true}), rng, 100)
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
	// The one after it begins at the start of the epoch that follows.
	if steps, _ := readSteps(t, r.Open(IterOptions{NoAhead: true}), rng, 100); len(steps) != 40 || steps[0].epoch != 1 {
		t.Errorf("%d steps of epoch %d", len(steps), steps[0].epoch)
	}
}

func TestTokensAreSmallAndWhole(t *testing.T) {
	for _, streams := range []int{1, 16, 1000, 60_000} {
		token := &pecanv1.Token{
			Format: tokenFormat, Fingerprint: strings.Repeat("f", 64), PlanHash: strings.Repeat("h", 64), Mode: pecanv1.Mode_MODE_DETERMINISTIC,
			NumStreams: int32(streams), Seed: 1<<64 - 1, Passes: 1 << 40, Elements: 1 << 50,
			Position: &pecanv1.Position{Epoch: 1 << 60, Turn: uint32(streams)},
		}
		for i := range streams {
			token.Position.Next = append(token.Position.Next, 1<<40+uint64(i))
			if i%2 == 0 {
				token.Position.Ended = append(token.Position.Ended, uint32(i))
			}
		}
		text, err := encodeToken(token)
		if err != nil {
			t.Fatal(err)
		}
		if limit := 4096 + 16*streams; len(text) > limit {
			t.Errorf("%d streams: %d bytes, the limit is %d", streams, len(text), limit)
		}
		if got, err := decodeToken(text); err != nil || got.String() != token.String() {
			t.Errorf("%d streams: %v", streams, err)
		}
	}
}

func FuzzToken(f *testing.F) {
	text, err := encodeToken(&pecanv1.Token{Format: tokenFormat, Fingerprint: "f", Position: &pecanv1.Position{Next: []uint64{1, 2}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add(tokenPrefix)
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		token, err := decodeToken(text)
		if err != nil {
			if !reason.Is(err, reason.BadArgument) {
				t.Error(err)
			}
			return
		}
		if again, err := encodeToken(token); err != nil || again == "" {
			t.Error(err)
		}
	})
}

// What a delivery costs in the hot path.
func BenchmarkDelivered(b *testing.B) {
	p, one := &positions{}, &pass{}
	one.epoch = &epoch{}
	rows := &Rows{Stream: 3, Count: 1, block: (*buffer.Block)(nil)}
	for b.Loop() {
		rows.Index++
		p.delivered(one, rows, false)
	}
}
