package resume

import (
	"math/rand/v2"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/pecan-ml/pecan/native/client/element"
	"github.com/pecan-ml/pecan/native/client/epoch"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

func FuzzToken(f *testing.F) {
	text, err := Encode(&pecanv1.Token{Format: TokenFormat, Fingerprint: "f", Position: &pecanv1.Position{Next: []uint64{1, 2}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add(tokenPrefix)
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		token, err := Decode(text)
		if err != nil {
			if !reason.Is(err, reason.BadArgument) {
				t.Error(err)
			}
			return
		}
		if again, err := Encode(token); err != nil || again == "" {
			t.Error(err)
		}
	})
}

// BenchmarkDelivered measures the cost of a delivery in the hot path.
func BenchmarkDelivered(b *testing.B) {
	p, one := &Log{}, &Pass{}
	one.Epoch = &epoch.Epoch{Consumer: &epoch.Consumer{}}
	rows := &element.Rows{Stream: 3, Count: 1}
	for b.Loop() {
		rows.Index++
		p.Delivered(one, rows, false)
	}
}

const manyStreams = 65536

func grouped(position *pecanv1.Position) *pecanv1.Token {
	return &pecanv1.Token{
		Format: TokenFormat, Fingerprint: strings.Repeat("f", 64), PlanHash: strings.Repeat("h", 64), Mode: pecanv1.Mode_MODE_DETERMINISTIC,
		NumStreams: manyStreams, Group: 16, Seed: 1 << 63, Passes: 1 << 40, Elements: 1 << 50, Position: position,
	}
}

// manyPlan is the largest plan. Its closing streams follow its streams.
var manyPlan = &pecanv1.Plan{NumStreams: manyStreams, Group: 16, BatchStrategy: pecanv1.BatchStrategy_BATCH_STRATEGY_CLOSING}

func TestATokenIsShortWhileTheTrainerReadsInOrderOfGroups(t *testing.T) {
	for _, groups := range []uint32{0, 1, 100, manyStreams/16 - 1} {
		at := epoch.Progress{Next: map[uint32]uint64{}}
		for stream := range groups * 16 {
			at.Over.Set(stream)
		}
		for group := range groups {
			at.Over.Set(manyStreams + group)
		}
		for stream := groups * 16; stream < groups*16+16; stream++ {
			if stream%3 == 0 {
				at.Over.Set(stream)
			} else {
				at.Next[stream] = 1<<40 + uint64(stream)
			}
		}
		position := &pecanv1.Position{Epoch: 1 << 40, Turn: groups * 16}
		at.Record(position)
		text, err := Encode(grouped(position))
		if err != nil || len(text) > 1<<10 {
			t.Errorf("after %d groups it has %d bytes (%v)", groups, len(text), err)
		}
		wantProgress(t, text, at)
	}
}

func TestATokenHasAtMost64KiB(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	total := manyPlan.TotalStreams()
	for _, spread := range []int{1, 2, 7, 16} {
		at := epoch.Progress{Next: map[uint32]uint64{}}
		for stream := uint32(0); stream < total && len(at.Next) < 4096; stream += uint32(1 + random.IntN(2*spread-1)) {
			at.Next[stream] = 1<<55 + random.Uint64N(1<<55)
		}
		for stream := range total {
			if at.Next[stream] == 0 && random.IntN(2) == 0 {
				at.Over.Set(stream)
			}
		}
		position := &pecanv1.Position{Epoch: 1 << 40, Turn: total}
		at.Record(position)
		text, err := Encode(grouped(position))
		if err != nil || len(text) > 64<<10 {
			t.Errorf("%d streams have begun, %d apart: %d bytes (%v)", len(at.Next), spread, len(text), err)
		}
		wantProgress(t, text, at)
	}
}

// wantProgress compares the progress in a token.
func wantProgress(t *testing.T, text string, want epoch.Progress) {
	t.Helper()
	token, err := Decode(text)
	if err != nil {
		t.Fatal(err)
	}
	total := manyPlan.TotalStreams()
	got, err := epoch.NewProgress(token.GetPosition(), total)
	if err != nil {
		t.Fatal(err)
	}
	for stream := range total {
		if got.Next[stream] != want.Next[stream] || got.Over.Has(stream) != want.Over.Has(stream) {
			t.Fatalf("stream %d: at %d, ended: %v; was saved at %d, ended: %v", stream, got.Next[stream], got.Over.Has(stream), want.Next[stream], want.Over.Has(stream))
		}
	}
}

func FuzzPosition(f *testing.F) {
	add := func(p *pecanv1.Position) {
		data, err := proto.Marshal(p)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	add(&pecanv1.Position{EndedRuns: []uint32{0, 32, 5, 1}, Begun: []uint32{33, 2}, BegunNext: []uint64{4, 9}})
	add(&pecanv1.Position{EndedBits: []byte{0x55, 0x0f}, Begun: []uint32{1}, BegunNext: []uint64{1 << 60}, Turn: 3})
	add(&pecanv1.Position{EndedRuns: []uint32{1<<32 - 1, 1<<32 - 1, 3}})
	add(&pecanv1.Position{Next: []uint64{3, 4}, Ended: []uint32{1}})
	plan := &pecanv1.Plan{NumStreams: 100, Group: 16, Hash: "h", BatchStrategy: pecanv1.BatchStrategy_BATCH_STRATEGY_CLOSING}
	f.Fuzz(func(t *testing.T, data []byte) {
		position := new(pecanv1.Position)
		if proto.Unmarshal(data, position) != nil {
			return
		}
		token := &pecanv1.Token{Position: position, NumStreams: 100, Group: 16, PlanHash: "h"}
		if err := checkPosition(token, plan); err != nil {
			if !reason.Is(err, reason.BadArgument) {
				t.Error(err)
			}
			return
		}
		// What is accepted is saved again as the same position.
		at, err := epoch.NewProgress(position, plan.TotalStreams())
		if err != nil {
			t.Fatal(err)
		}
		again := &pecanv1.Position{}
		at.Record(again)
		same, err := epoch.NewProgress(again, plan.TotalStreams())
		if err != nil {
			t.Fatal(err)
		}
		for stream := range plan.TotalStreams() {
			if at.Over.Has(stream) != same.Over.Has(stream) || !at.Over.Has(stream) && at.Next[stream] != same.Next[stream] {
				t.Fatalf("stream %d of %v is another in %v", stream, position, again)
			}
		}
	})
}
