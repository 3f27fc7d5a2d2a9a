package worker

import (
	"context"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/internal/clock"
)

// drainPoll is the time between two checks whether the readers have everything.
const drainPoll = 5 * time.Millisecond

// drain prepares a planned departure. No stream produces another element, readers receive what is ready, and
// streams that are expensive to run again are saved. Each stream then continues elsewhere where it ended here.
//
// Each stream departs when it is drained and does not wait for the others: a trainer that reads streams in turn
// may be waiting for one that has to continue elsewhere first. A stream that no other worker may continue runs
// to its end.
//
// drain returns when all streams are drained, after the drain timeout, or if there is no session.
func (w *Worker) drain(ctx context.Context) {
	w.departing.Store(true)
	w.trials.Cancel(true)
	if !w.session.isUp() {
		return
	}
	// This heartbeat stops the dispatcher from leasing more streams to this worker.
	w.session.Send(&pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Heartbeat{Heartbeat: w.heartbeat()}})
	begun, drained, reported := time.Now(), false, 0
	for !drained && time.Since(begun) < w.config.DrainTimeout && w.session.isUp() {
		var count int
		drained, count = w.streams.Drain()
		if count > reported {
			w.session.Send(&pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Heartbeat{Heartbeat: w.heartbeat()}})
		}
		reported = count
		if !drained && !clock.Sleep(ctx, drainPoll) {
			break
		}
	}
	w.streams.Mute()
	w.streams.ReportMetrics()
	w.log.Info("worker leaves", "drained", drained, "took", time.Since(begun).Round(time.Millisecond))
}
