package worker

import (
	"context"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/internal/clock"
)

// drainPoll is how often a worker that leaves looks whether its readers have everything.
const drainPoll = 5 * time.Millisecond

// drain prepares a goodbye: no stream makes another element, readers get what there is, and what would cost much to run again is
// saved. So a stream begins elsewhere where it ends here. Each goes when it has come to rest and does not wait for the others: a
// trainer that reads streams in turn takes nothing of one before another has gone on. A stream that nobody may go on with runs to its
// end. It is over when all of that is done, after the drain timeout, or when there is no dispatcher to say goodbye to.
func (w *Worker) drain(ctx context.Context) {
	w.departing.Store(true)
	w.trials.Cancel(true)
	if !w.session.isUp() {
		return
	}
	// It shall not lease anything to this worker any more.
	w.session.Send(&pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Heartbeat{Heartbeat: w.heartbeat()}})
	begun, drained, told := time.Now(), false, 0
	for !drained && time.Since(begun) < w.config.DrainTimeout && w.session.isUp() {
		var rests int
		drained, rests = w.streams.Leave()
		if rests > told {
			w.session.Send(&pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Heartbeat{Heartbeat: w.heartbeat()}})
		}
		told = rests
		if !drained && !clock.Sleep(ctx, drainPoll) {
			break
		}
	}
	w.streams.Mute()
	w.streams.ReportMetrics()
	w.log.Info("leaving", "drained", drained, "took", time.Since(begun).Round(time.Millisecond))
}
