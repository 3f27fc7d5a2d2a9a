package worker

import (
	"context"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/internal/clock"
)

const (
	// drainPoll is the time between two checks whether the readers have everything.
	drainPoll = 5 * time.Millisecond
	// patience is how long readers may take to receive what is ready of streams that can begin at any index. These
	// streams then continue elsewhere, so that they are gone within 2 s.
	patience = 1500 * time.Millisecond
)

// depart begins a planned departure: on a signal, or when the dispatcher asks for it. It does not wait. Only the first
// call has an effect.
func (w *Worker) depart(why string, timeout time.Duration) {
	w.departure.Do(func() {
		w.log.Info("the worker is going to leave", "why", why, "drain_timeout", timeout)
		go func() {
			w.drain(w.leaving, timeout)
			w.leave()
		}()
	})
}

// departOn begins the departure that the dispatcher asks for.
func (w *Worker) departOn(command *pecanv1.Leave) {
	timeout := w.config.DrainTimeout
	if asked := command.GetDrainTimeoutS(); asked > 0 && asked < timeout.Seconds() {
		timeout = seconds(asked)
	}
	w.depart("the dispatcher asks for it: "+command.GetWhy(), timeout)
}

// drain prepares a planned departure. No stream produces another element, readers receive what is ready, and
// streams that are expensive to run again are saved. Each stream then continues elsewhere where it ended here.
//
// Each stream departs when it is drained and does not wait for the others. A trainer that reads streams in turn may wait for
// one that has to continue elsewhere first. A stream that no other worker may continue runs to its end. A stream that can
// begin at any index does not wait for a slow reader.
//
// drain returns when all streams are drained, after the timeout, or if there is no session.
func (w *Worker) drain(ctx context.Context, timeout time.Duration) {
	w.departing.Store(true)
	w.trials.Cancel(true)
	if !w.session.isUp() {
		return
	}
	// This heartbeat stops the dispatcher from leasing more streams to this worker.
	w.session.Send(&pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Heartbeat{Heartbeat: w.heartbeat()}})
	begun, drained, reported := time.Now(), false, 0
	for !drained && time.Since(begun) < timeout && w.session.isUp() {
		var count int
		drained, count = w.streams.Drain(time.Since(begun) >= patience)
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
	w.log.Info("the worker leaves", "drained", drained, "took", time.Since(begun).Round(time.Millisecond))
}
