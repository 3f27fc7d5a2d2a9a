package epoch

import (
	"context"

	"github.com/pecan-ml/pecan/native/client/control"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// maxReports bounds the streams in one call.
const maxReports = 4096

// streamReports are the ends and releases of streams that the dispatcher has not received yet. One background call sends
// all that wait, so the dispatcher writes its journal once for many streams. Epoch.mu guards them.
type streamReports struct {
	finished []*pecanv1.FinishedStream
	released []*pecanv1.ReleasedStream
	// queued is set if a background call is queued that sends everything.
	queued bool
}

// reportFinished reports that the whole stream was received. e.mu is held.
func (e *Epoch) reportFinished(one *pecanv1.FinishedStream) {
	e.reports.finished = append(e.reports.finished, one)
	e.queueReports()
}

// reportReleased reports that another consumer may continue the stream. e.mu is held.
func (e *Epoch) reportReleased(one *pecanv1.ReleasedStream) {
	e.reports.released = append(e.reports.released, one)
	e.queueReports()
}

func (e *Epoch) queueReports() {
	if !e.reports.queued {
		e.reports.queued = true
		e.link.Deliver(e.sendReports)
	}
}

// sendReports sends all waiting reports. It returns an error if the dispatcher is away. The reports then stay, and the
// link repeats the call.
func (e *Epoch) sendReports(ctx context.Context) error {
	for {
		e.mu.Lock()
		finished := e.reports.finished[:min(len(e.reports.finished), maxReports)]
		released := e.reports.released[:min(len(e.reports.released), maxReports)]
		e.reports.queued = len(finished)+len(released) > 0
		more := e.reports.queued
		e.mu.Unlock()
		if !more {
			return nil
		}
		if err := e.sendFinished(ctx, finished); err != nil {
			return err
		}
		if err := e.sendReleased(ctx, released); err != nil {
			return err
		}
	}
}

func (e *Epoch) sendFinished(ctx context.Context, list []*pecanv1.FinishedStream) error {
	return sendList(e, list, &e.reports.finished, func() ([]*pecanv1.RefusedStream, error) {
		answer, err := e.link.API().FinishStreams(ctx, &pecanv1.FinishStreamsRequest{
			ClientId: e.Consumer.ClientID, JobId: e.Consumer.JobID, Epoch: e.id, Streams: list,
		})
		return answer.GetRefused(), err
	})
}

func (e *Epoch) sendReleased(ctx context.Context, list []*pecanv1.ReleasedStream) error {
	return sendList(e, list, &e.reports.released, func() ([]*pecanv1.RefusedStream, error) {
		answer, err := e.link.API().ReleaseStreams(ctx, &pecanv1.ReleaseStreamsRequest{
			ClientId: e.Consumer.ClientID, JobId: e.Consumer.JobID, Epoch: e.id, Streams: list,
		})
		return answer.GetRefused(), err
	})
}

// sendList sends the first waiting reports of one kind. The reports stay if the dispatcher is away.
func sendList[R any](e *Epoch, list []R, waiting *[]R, send func() ([]*pecanv1.RefusedStream, error)) error {
	if len(list) == 0 {
		return nil
	}
	if err := e.refusedReports(send()); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	*waiting = (*waiting)[len(list):]
	return nil
}

// refusedReports returns an error if the whole list must be sent again. A report that arrives twice counts once.
func (e *Epoch) refusedReports(refused []*pecanv1.RefusedStream, err error) error {
	if control.IsOutage(err) {
		return err
	}
	if err != nil {
		e.link.Log().Debug("the dispatcher refused reports of streams", "epoch", e.id, "error", err)
	}
	for _, one := range refused {
		why := reason.FromDetail(one.GetError())
		if control.IsOutage(why) {
			return why
		}
		e.link.Log().Debug("the dispatcher refused the report of a stream", "epoch", e.id, "stream", one.GetStream(), "error", why)
	}
	return nil
}
