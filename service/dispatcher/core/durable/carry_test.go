package durable

import (
	"math/rand/v2"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

func TestCarryIsTheEndOfTheJoinedRows(t *testing.T) {
	for _, c := range []struct {
		name      string
		joined    []*pecanv1.KeptRows
		batchRows uint64
		want      []*pecanv1.KeptRows
	}{
		{"nothing was kept back", nil, 8, nil},
		{"no batch is left open", []*pecanv1.KeptRows{{Epoch: 1, Stream: 0, Skip: 0, Rows: 3}, {Epoch: 1, Stream: 1, Skip: 0, Rows: 5}}, 8, nil},
		{"part of the last remainder", []*pecanv1.KeptRows{{Epoch: 1, Stream: 0, Skip: 0, Rows: 7}, {Epoch: 1, Stream: 1, Skip: 0, Rows: 5}}, 8, []*pecanv1.KeptRows{{Epoch: 1, Stream: 1, Skip: 1, Rows: 4}}},
		{"several remainders", []*pecanv1.KeptRows{{Epoch: 1, Stream: 0, Skip: 0, Rows: 7}, {Epoch: 1, Stream: 1, Skip: 0, Rows: 2}, {Epoch: 1, Stream: 2, Skip: 0, Rows: 0}, {Epoch: 1, Stream: 3, Skip: 0, Rows: 3}}, 8, []*pecanv1.KeptRows{{Epoch: 1, Stream: 1, Skip: 1, Rows: 1}, {Epoch: 1, Stream: 3, Skip: 0, Rows: 3}}},
		{"no batch was filled", []*pecanv1.KeptRows{{Epoch: 1, Stream: 4, Skip: 2, Rows: 3}, {Epoch: 2, Stream: 0, Skip: 0, Rows: 4}}, 8, []*pecanv1.KeptRows{{Epoch: 1, Stream: 4, Skip: 2, Rows: 3}, {Epoch: 2, Stream: 0, Skip: 0, Rows: 4}}},
		{"rows of the earlier epoch were sent in part", []*pecanv1.KeptRows{{Epoch: 1, Stream: 4, Skip: 2, Rows: 3}, {Epoch: 2, Stream: 0, Skip: 0, Rows: 1}}, 3, []*pecanv1.KeptRows{{Epoch: 2, Stream: 0, Skip: 0, Rows: 1}}},
		{"the skip grows", []*pecanv1.KeptRows{{Epoch: 1, Stream: 4, Skip: 2, Rows: 5}}, 3, []*pecanv1.KeptRows{{Epoch: 1, Stream: 4, Skip: 5, Rows: 2}}},
		{"the size is unknown", []*pecanv1.KeptRows{{Epoch: 1, Stream: 0, Skip: 0, Rows: 3}}, 0, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := Carry(c.joined, c.batchRows); !slices.EqualFunc(got, c.want, func(a, b *pecanv1.KeptRows) bool { return proto.Equal(a, b) }) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

// TestTheCarryFitsTheRowsThatAClosingStreamHolds compares the list with a closing stream that holds the rows themselves.
func TestTheCarryFitsTheRowsThatAClosingStreamHolds(t *testing.T) {
	type row struct {
		epoch  uint64
		stream uint32
		index  uint64
	}
	random := rand.New(rand.NewPCG(3, 12))
	for range 300 {
		batchRows, streams := 1+random.Uint64N(9), 1+random.Uint32N(6)
		var carry []*pecanv1.KeptRows
		var held []row
		sent := map[row]bool{}
		produced := 0
		for epoch := range uint64(12) {
			joined := slices.Clone(carry)
			for stream := range streams {
				rows := random.Uint64N(batchRows)
				if random.IntN(3) == 0 {
					rows = 0
				}
				joined = append(joined, &pecanv1.KeptRows{Epoch: epoch, Stream: stream, Rows: rows})
				for index := range rows {
					held = append(held, row{epoch, stream, index})
				}
				produced += int(rows)
			}
			var read []row
			for _, kept := range joined {
				for index := range kept.Rows {
					read = append(read, row{kept.Epoch, kept.Stream, kept.Skip + index})
				}
			}
			if !slices.Equal(read, held) {
				t.Fatalf("epoch %d of %d streams, batches of %d: joined %v, want %v", epoch, streams, batchRows, read, held)
			}
			full := len(held) / int(batchRows) * int(batchRows)
			for _, r := range held[:full] {
				if sent[r] {
					t.Fatalf("row %v was sent twice", r)
				}
				sent[r] = true
			}
			held = slices.Clone(held[full:])
			carry = Carry(joined, batchRows)
			// These bounds limit what has to run again after a loss.
			if len(carry) >= int(batchRows) {
				t.Fatalf("%d entries for batches of %d", len(carry), batchRows)
			}
			for _, kept := range carry {
				if kept.Rows == 0 {
					t.Fatalf("an entry without rows: %v", carry)
				}
			}
		}
		if produced != len(sent)+len(held) || len(held) >= int(batchRows) {
			t.Fatalf("%d rows, %d sent and %d held", produced, len(sent), len(held))
		}
	}
}
