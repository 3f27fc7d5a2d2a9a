package core_test

import (
	"testing"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core"
)

// The workers of a bounded number of jobs change in one tick. Until the others have their turn, a worker that is lost is
// still one of those that serve them.
func TestManyJobsLoseAWorker(t *testing.T) {
	const workers = 4
	f := newFleet(t, workers, 400)
	for round := range 3 * workers {
		for range 5 {
			f.second()
		}
		lost := round % workers
		bye := &pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Goodbye{Goodbye: &pecanv1.WorkerGoodbye{}}}
		f.decide("goodbye", core.FromWorker{Session: core.SessionID(lost + 1), Message: bye})
		clear(f.runs[lost])
		for range 5 {
			f.now += 100 * time.Millisecond
			f.decide("tick", core.Tick{})
		}
		f.hello(lost)
	}
	if f.windows == 0 {
		t.Error("no window was measured")
	}
}
