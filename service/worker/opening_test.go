package worker

import (
	"testing"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// A stream that finds as many being opened as there are cores waits for its turn, and not for ever: one of them may hang.
func TestStreamsAreOpenedInTurns(t *testing.T) {
	w := serve(t, nil)
	for range cap(w.openings.turns) {
		w.openings.turns <- struct{}{}
	}
	opened := func(o *pecanv1.StartStream) func() bool {
		return func() bool {
			for _, load := range w.loads() {
				if load.Lease == o.Lease {
					return load.Opened
				}
			}
			return false
		}
	}
	patient, next := order("thousand"), order("thousand")
	next.Id.Stream, next.Lease = 1, patient.Lease+1
	begun := time.Now()
	w.start(patient)
	waitFor(t, "a stream is opened whose turn did not come", opened(patient))
	if waited := time.Since(begun); waited < openingPatience {
		t.Errorf("it was opened after %v, out of turn", waited)
	}
	w.start(next)
	<-w.openings.turns
	waitFor(t, "a stream is opened when it is its turn", opened(next))
	for range cap(w.openings.turns) - 1 {
		<-w.openings.turns
	}
	if n := len(w.openings.turns); n != 0 {
		t.Errorf("%d turns were not given back", n)
	}
}
