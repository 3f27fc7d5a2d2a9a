package epoch

import (
	"context"
	"time"

	"github.com/pecan-ml/pecan/native/client/wait"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// final reports whether no other try can succeed after this error.
func final(err error) bool { return reason.Is(err, reason.Unsupported) }

// failureTimeout is how long a stream may fail with an error that is probably permanent. In that time the
// dispatcher moves the stream or fails the epoch.
const failureTimeout = 5 * time.Second

const reportPause = 250 * time.Millisecond

// reopen closes the channel and requests the stream again from the next index.
func (st *stream) reopen(why error) {
	st.closeChannel()
	st.failed(why)
}

// failed records the loss of a channel, and when to try again.
func (st *stream) failed(why error) {
	if st.failures == 0 {
		st.since = time.Now()
	}
	st.failures++
	st.lastError = why
	if st.failures == 1 && !reason.Is(why, reason.NoWorkers) {
		st.retryAt = time.Now().Add(wait.FirstPause / 4)
	} else {
		st.retryAt = time.Now().Add(st.pause.Next())
	}
	wait.Signal(st.epoch.kick)
}

// report tells the dispatcher, at a limited rate, that a worker is unreachable or sends invalid data.
func (st *stream) report(why error) {
	now := time.Now()
	if st.worker == nil || now.Sub(st.reported) < reportPause {
		return
	}
	st.reported = now
	e := st.epoch
	request := &pecanv1.ReportWorkerRequest{
		ClientId: e.Consumer.ClientID, Id: st.id(), Lease: st.lease, WorkerId: st.worker.GetWorkerId(), NextIndex: st.next, Message: why.Error(),
		Number: e.Consumer.Reports.Add(1),
	}
	e.link.Try(func(ctx context.Context) error {
		_, err := e.link.API().ReportWorker(ctx, request)
		return err
	})
}

// disconnected records that the connection to the stream's worker ended.
func (st *stream) disconnected(why error, unreachable bool) {
	st.failed(why)
	if final(why) {
		st.epoch.err = why
		wait.Signal(st.epoch.Notify)
		return
	}
	if unreachable || st.failures > 1 {
		st.report(why)
	}
}
