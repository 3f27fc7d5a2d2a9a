package serve

import (
	"crypto/rand"
	"testing"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/worker/payload"
)

func TestCompressionIsChosenByMeasurement(t *testing.T) {
	noise := make([]byte, 1<<20)
	_, _ = rand.Read(noise)
	plain := payload.Parts{Buffers: [][]byte{make([]byte, 1<<20)}, Raw: 1 << 20}
	random := payload.Parts{Buffers: [][]byte{noise}, Raw: 1 << 20}
	measured := func(near bool, per time.Duration) *link {
		l := &link{local: near}
		if per > 0 {
			l.wrote(1<<20, per)
		}
		return l
	}
	// The kernel's buffer takes three of four writes at once, and the fourth waits until it has room.
	buffered := &link{}
	for n := range 20 {
		buffered.wrote(1<<20, time.Millisecond)
		if n%4 == 0 {
			buffered.wrote(1<<20, 300*time.Millisecond)
		}
	}
	const auto = pecanv1.Compression_COMPRESSION_AUTO
	cases := map[string]struct {
		link *link
		how  pecanv1.Compression
		p    payload.Parts
		want bool
	}{
		"a slow link and data that shrinks": {measured(false, 10*time.Millisecond), auto, plain, true},
		"a slow link and noise":             {measured(false, 10*time.Millisecond), auto, random, false},
		"a slow link after a buffer":        {buffered, auto, plain, true},
		"a fast link":                       {measured(false, time.Millisecond/2), auto, plain, false},
		"a link of which nothing is known":  {measured(false, 0), auto, plain, false},
		"the same host":                     {measured(true, 10*time.Millisecond), auto, plain, false},
		"snappy when it is asked for":       {measured(true, 0), pecanv1.Compression_COMPRESSION_SNAPPY, random, true},
		"none when it is asked for":         {measured(false, time.Second), pecanv1.Compression_COMPRESSION_NONE, plain, false},
		"nothing to compress":               {measured(false, time.Second), auto, payload.Parts{}, false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if got := c.link.compresses(c.how, c.p); got != c.want {
				t.Fatal(got)
			}
		})
	}
}
