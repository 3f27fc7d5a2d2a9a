package resume

import (
	"testing"

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
	one.Epoch = &epoch.Epoch{}
	rows := &element.Rows{Stream: 3, Count: 1}
	for b.Loop() {
		rows.Index++
		p.Delivered(one, rows, false)
	}
}
