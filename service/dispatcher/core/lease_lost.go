package core

import (
	"fmt"

	"google.golang.org/grpc/codes"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/dispatcher/core/schedule"
)

// dropUnneededLeases stops the streams that no consumer waits for.
func (c *Core) dropUnneededLeases() {
	for _, epoch := range c.touchedEpochs() {
		for _, stream := range c.touchedStreams(epoch) {
			c.endTruncated(epoch, stream)
			if stream.Worker == nil || schedule.Needed(epoch, stream) {
				continue
			}
			c.move(epoch, stream, "not needed any more")
		}
	}
}

// move takes a stream from its worker, so that it is leased again if it is needed.
func (c *Core) move(epoch *durable.Epoch, stream *pecanv1.StoredStream, why string) {
	key := keyOf(epoch.Job, epoch, stream)
	c.stopRun(epoch.Job, stream.Worker.GetWorkerId(), key, stream.Lease)
	c.loseLease(key, stream, pecanv1.LeaseLost_MOVED, why)
}

// streamFailed moves a stream if the worker may have caused the failure, and fails the epoch otherwise.
func (c *Core) streamFailed(workerID string, r *pecanv1.StreamFailed) {
	key := r.GetId().Key()
	job, epoch, stream := c.leased(workerID, r.GetId(), r.GetLease())
	if stream == nil {
		c.sendStop(workerID, key, r.GetLease())
		return
	}
	detail := r.GetError()
	if r.GetBelowWindow() {
		c.warn("stream leased again, because a reader needs elements below the window", "job", key.Job, "epoch", key.Epoch, "stream", key.Stream, "lease", stream.Lease, "worker", workerID, "error", detail.GetMessage())
		c.move(epoch, stream, detail.GetMessage())
		return
	}
	switch codes.Code(detail.GetCode()) {
	case codes.Unavailable, codes.Aborted, codes.DeadlineExceeded, codes.Canceled:
		if int(stream.Failures)+1 < c.cfg.MaxFailures {
			volatileStream := c.volatileStream(key)
			volatileStream.avoid = append(volatileStream.avoid, workerID)
			c.warn("stream failed, and is leased again", "job", key.Job, "epoch", key.Epoch, "stream", key.Stream, "lease", stream.Lease, "worker", workerID, "error", detail.GetMessage())
			if job.Plan.GetWritesFiles() {
				// A failed run that is not closed takes its files with it.
				c.stopRun(job, workerID, key, stream.Lease)
			}
			c.loseLease(key, stream, pecanv1.LeaseLost_FAILED, fmt.Sprintf("worker %s: %s", workerID, detail.GetMessage()))
			return
		}
		detail = &pecanv1.ErrorDetail{Code: detail.GetCode(), Reason: detail.GetReason(), Message: fmt.Sprintf(
			"%s failed %d times, the last time on worker %s: %s", key, c.cfg.MaxFailures, workerID, detail.GetMessage())}
	}
	if detail.GetCode() == int32(codes.OK) {
		detail = reason.New(reason.Internal, "%s failed on worker %s: %s", key, workerID, detail.GetMessage()).Detail()
	}
	c.failStream(job, epoch, key, detail)
}

// reportWorker notes that a client cannot reach a worker. If other facts or reports agree, the streams move to other workers.
func (c *Core) reportWorker(req *pecanv1.ReportWorkerRequest) error {
	job, epoch, stream, err := c.openStream("report worker", req.ClientId, req.Id)
	if err != nil || stream == nil {
		return err
	}
	key := req.Id.Key()
	if stream.Worker == nil || stream.Lease != req.Lease || stream.Worker.WorkerId != req.WorkerId || stream.Consumer != req.ClientId {
		return nil
	}
	volatileStream := c.volatileStream(key)
	if req.Number != 0 && volatileStream.reporter == req.ClientId && req.Number <= volatileStream.reportNumber {
		// A repeated report may be about a solved problem.
		return nil
	}
	volatileStream.reporter, volatileStream.reportNumber = req.ClientId, req.Number
	if volatileStream.lease == req.Lease {
		volatileStream.produced = max(volatileStream.produced, req.NextIndex)
	}
	worker := c.workers[req.WorkerId]
	if worker != nil && worker.unheardSinceRestart && volatileStream.unreachableReports == 0 {
		// The report may be a copy for the dispatcher before the restart, and the worker may be on its way. A
		// client that still cannot reach the worker reports again.
		volatileStream.unreachableReports++
		return nil
	}
	if worker == nil || worker.away && c.reaches(req.WorkerId, req.ClientId) {
		// Two facts agree: the session is broken, and a client cannot reach the worker.
		c.loseWorker(req.WorkerId, true, "its session is broken and client "+req.ClientId+" cannot reach it")
		return nil
	}
	volatileStream.unreachableReports++
	volatileStream.unreachableReason = req.Message
	c.touchStream(epoch, stream.Stream)
	switch reach := c.reach(req.WorkerId, req.ClientId); {
	case reach == schedule.Unreachable:
	case reach == schedule.Reachable && volatileStream.unreachableReports < 3 && c.now-volatileStream.leasedAt < c.cfg.SuspectAfter:
		return nil
	case !c.otherWorker(job, req.ClientId, req.WorkerId):
		return nil
	}
	c.warn("stream moved, because its client cannot read it", "job", key.Job, "epoch", key.Epoch, "stream", key.Stream, "lease", stream.Lease, "worker", req.WorkerId, "error", req.Message)
	c.moveUnreached(job, epoch, stream, req)
	return nil
}

// loseLeaseWithWorker ends the lease of a stream whose worker is lost. If the stream may have killed the worker, the record
// has the suspected elements, and the job fails at the limit.
func (c *Core) loseLeaseWithWorker(key pecanv1.StreamKey, job *durable.Job, stream *pecanv1.StoredStream, worker *workerState, died bool, why string) {
	mark := c.volatileStream(key).mark
	if worker.trying {
		// The tried order may have killed the worker. That counts against the order, not against an element.
		c.volatileStream(key).crashed = false
	}
	suspects, suspicious := c.suspects(key, stream, worker.crash != "")
	suspicious = suspicious && !worker.trying
	if opening := c.diedOpening(key, stream); !died || !suspicious || opening {
		c.loseLease(key, stream, pecanv1.LeaseLost_MOVED, why)
		if opening && c.crashLimits().OpeningReached(stream) {
			c.blameOpening(key, job, stream, worker)
		}
		return
	}
	lost := &pecanv1.LeaseLost{
		Id: key.ID(), Lease: stream.Lease, Cause: pecanv1.LeaseLost_DIED, Progress: suspects.First, SuspectBelow: suspects.Below, InFlight: suspects.InFlight, Why: why,
		Truncated: c.truncates(key, stream), Crashed: worker.crash != "", OpeningCrashes: c.openingCrashes(key, stream),
	}
	lost.Serial = c.crashLimits().Serial(stream, lost)
	c.emitLost(lost)
	if c.crashLimits().Reached(stream) {
		c.blame(key, job, stream, mark, worker)
	}
}

// loseLease ends a lease for a cause other than a suspected death.
func (c *Core) loseLease(key pecanv1.StreamKey, stream *pecanv1.StoredStream, cause pecanv1.LeaseLost_Cause, why string) {
	volatileStream := c.volatileStream(key)
	progress := uint64(0)
	if volatileStream.lease == stream.Lease {
		progress = volatileStream.produced
	}
	c.emitLost(&pecanv1.LeaseLost{
		Id: key.ID(), Lease: stream.Lease, Cause: cause, Progress: progress, Why: why, Truncated: c.truncates(key, stream),
		OpeningCrashes: c.openingCrashes(key, stream), Serial: stream.Serial,
	})
}

func (c *Core) emitLost(lost *pecanv1.LeaseLost) {
	if key := lost.Id.Key(); lost.Truncated {
		c.warn("stream truncated", "job", key.Job, "epoch", key.Epoch, "stream", key.Stream, "lease", lost.Lease)
	}
	c.emit(&pecanv1.Record{Kind: &pecanv1.Record_LeaseLost{LeaseLost: lost}})
}
