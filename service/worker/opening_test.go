package worker

import (
	"context"
	"fmt"
	"testing"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/graph/rewrite"
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

// stuck is a planner with a dataset that cannot be opened to its end, as where a table is filled from a mount that does not answer.
type stuck struct {
	planner
	until chan struct{}
}

func (s stuck) instantiate(ctx context.Context, fingerprint string, plan *pecanv1.Plan, at rewrite.At) (*rewrite.StreamGraphs, error) {
	if fingerprint == "stuck" {
		<-s.until
		fingerprint = "thousand"
	}
	return s.planner.instantiate(ctx, fingerprint, plan, at)
}

// One that is to be opened alone, since workers have died of that, waits for one that hangs; others do not stand in line behind it.
func TestAStreamThatHangsWhileItIsOpenedHoldsNoOthersUp(t *testing.T) {
	w := serve(t, nil)
	until := make(chan struct{})
	w.graphs = stuck{w.graphs, until}
	hangs, alone, other := order("stuck"), order("thousand"), order("thousand")
	for i, o := range []*pecanv1.StartStream{hangs, alone, other} {
		o.Id.JobId, o.Lease = fmt.Sprint("job", i), uint64(i+1)
	}
	alone.OpenAlone = true
	defer close(until)
	w.start(hangs)
	waitFor(t, "it is being opened", func() bool { return len(w.openings.now()) == 1 })
	w.start(alone)
	time.Sleep(50 * time.Millisecond)
	w.start(other)
	made := func(o *pecanv1.StartStream) bool {
		for _, load := range w.loads() {
			if load.Lease == o.Lease {
				return load.Produced > 0
			}
		}
		return false
	}
	for end := time.Now().Add(20 * time.Second); !made(other); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			w.stop(&pecanv1.StopStream{Id: other.Id})
			t.Fatal("a stream of another job is not opened")
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if !w.alone.lock(ctx) {
		t.Fatal("no suspicious element can be made")
	}
	w.alone.unlock()
	if made(alone) {
		t.Error("it was opened beside another")
	}
}
