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
	rows := &element.Elements{Stream: 3, Count: 1}
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

// orderOf returns an order of this many steps.
func orderOf(steps int) *pecanv1.EpochOrder {
	order := &pecanv1.EpochOrder{Hash: strings.Repeat("o", 64)}
	for rank := range uint32(steps) {
		order.Steps = append(order.Steps, uint32(steps)-1-rank)
	}
	return order
}

// leftBy returns rows that the closing streams of the last groups of an epoch leave. A stream leaves fewer than a batch, and all
// together do.
func leftBy(epoch uint64, streams uint32) (rows []*pecanv1.KeptRows) {
	total := manyPlan.TotalStreams() - 1
	for stream := total - streams; stream < total; stream++ {
		rows = append(rows, &pecanv1.KeptRows{Epoch: epoch, Stream: stream, Rows: uint64(stream%3 + 1)})
	}
	rows[0].Skip = 5
	return rows
}

// The bound holds with an order of any number of steps, and with the rows that 40 groups leave for the next epoch.
func TestATokenIsShortWhileTheTrainerReadsInOrderOfGroups(t *testing.T) {
	for _, groups := range []uint32{0, 1, 100, manyStreams/16 - 1} {
		for _, steps := range []int{0, 128, 1024} {
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
			position := &pecanv1.Position{Epoch: 1 << 40, Turn: groups * 16, Carried: true}
			position.Joins, position.Carry = leftBy(1<<40-1, 40), leftBy(1<<40, 40)
			if steps > 0 {
				position.Order = orderOf(steps)
			}
			at.Record(position)
			text, err := Encode(grouped(position))
			t.Logf("after %d groups, in an order of %d steps: %d bytes", groups, steps, len(text))
			if err != nil || len(text) > 1<<10 {
				t.Errorf("after %d groups, in an order of %d steps, it has %d bytes (%v)", groups, steps, len(text), err)
			}
			wantPosition(t, text, position, at)
		}
	}
}

// The bound holds with the rows that 500 groups leave for the next epoch. Each further group adds at most four bytes.
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
		length := 0
		for _, rows := range []uint32{500, 2000} {
			position := &pecanv1.Position{Epoch: 1 << 40, Turn: total, Order: orderOf(1024), Carried: true}
			position.Joins, position.Carry = leftBy(1<<40-1, rows), leftBy(1<<40, rows)
			at.Record(position)
			text, err := Encode(grouped(position))
			t.Logf("%d streams have begun, %d apart, and %d closing streams leave rows: %d bytes", len(at.Next), spread, rows, len(text))
			switch {
			case err != nil:
				t.Error(err)
			case length == 0 && len(text) > 64<<10:
				t.Errorf("%d streams have begun, %d apart: %d bytes", len(at.Next), spread, len(text))
			case length > 0 && len(text)-length > 4*2*1500:
				t.Errorf("%d bytes with 500 entries in each list, and %d with 2,000", length, len(text))
			}
			length = len(text)
			wantPosition(t, text, position, at)
		}
	}
}

// Tokens of earlier versions have the rows of other epochs in the long form.
func TestATokenWithRowsInTheLongFormIsRead(t *testing.T) {
	position := &pecanv1.Position{Epoch: 3, Joins: leftBy(2, 40), Carried: true, Carry: leftBy(3, 40)}
	text, err := Encode(&pecanv1.Token{Format: TokenFormat, Position: position})
	if err != nil {
		t.Fatal(err)
	}
	if token, err := Decode(text); err != nil || !proto.Equal(token.GetPosition(), position) {
		t.Errorf("%v (%v)", token, err)
	}
}

func TestATokenWithABadListOfRowsIsRefused(t *testing.T) {
	for name, list := range map[string]*pecanv1.KeptList{
		"a column is too long":      {Rows: []uint64{1}, Streams: []int64{1, 1}},
		"a stream does not fit":     {Rows: []uint64{1}, Streams: []int64{1 << 32}},
		"a stream is negative":      {Rows: []uint64{1}, Streams: []int64{-1}},
		"the rows are listed twice": {Rows: []uint64{1}},
	} {
		position := &pecanv1.Position{JoinsList: list}
		if strings.HasPrefix(name, "the rows") {
			position.Joins = leftBy(1, 1)
		}
		text, err := Encode(&pecanv1.Token{Format: TokenFormat, Position: position})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Decode(text); !reason.Is(err, reason.BadArgument) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// wantPosition compares the position in a token.
func wantPosition(t *testing.T, text string, want *pecanv1.Position, at epoch.Progress) {
	t.Helper()
	wantProgress(t, text, at)
	token, err := Decode(text)
	if err != nil {
		t.Fatal(err)
	}
	want = proto.CloneOf(want)
	if len(want.GetOrder().GetSteps()) > maxRanks {
		want.Order.Steps = nil
	}
	if !proto.Equal(token.GetPosition(), want) {
		t.Errorf("a token has the position %v, want %v", token.GetPosition(), want)
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
