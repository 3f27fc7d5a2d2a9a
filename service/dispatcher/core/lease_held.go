package core

import (
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/graph/split"
)

// reconcile compares what a worker holds with the leases. Runs with a current lease continue, others stop, and
// missing ones start.
func (c *Core) reconcile(workerID string, held []*pecanv1.HeldStream) {
	kept := map[pecanv1.StreamKey]bool{}
	for _, h := range held {
		key := h.GetId().Key()
		job, epoch, stream := c.leased(workerID, h.GetId(), h.GetLease())
		if stream == nil {
			if job := c.state.Job(key.Job); job != nil {
				c.stopRun(job, workerID, key, h.GetLease())
			} else {
				c.sendStop(workerID, key, h.GetLease())
			}
			continue
		}
		kept[key] = true
		volatileStream := c.volatileStreamNow(key, stream)
		volatileStream.started = true
		if h.Ended {
			c.streamProduced(job, epoch, stream, h.Count, h.RemainderRows)
		}
		if job.Plan.IsClosing(stream.Stream) {
			volatileStream.remainders = nil
			c.touchStream(epoch, stream.Stream)
		}
	}
	c.state.EachLease(workerID, func(job *durable.Job, epoch *durable.Epoch, stream *pecanv1.StoredStream) {
		key := keyOf(job, epoch, stream)
		if kept[key] {
			return
		}
		if stream.Produced || !split.IsRepeatable(job.Plan) && c.wasStarted(key, stream) {
			// The worker has lost the elements of a complete stream, or of a run that another run does not
			// repeat. Another lease computes them again.
			c.loseLease(key, stream, pecanv1.LeaseLost_MOVED, "worker "+workerID+" no longer holds it")
			return
		}
		volatileStream := c.volatileStream(key)
		volatileStream.newLease(stream.Lease, c.now)
		c.sendStart(workerID, c.startOf(job, epoch, stream))
	})
}

// leased finds a stream that the worker holds under the lease, or nothing.
func (c *Core) leased(workerID string, id *pecanv1.StreamId, lease uint64) (*durable.Job, *durable.Epoch, *pecanv1.StoredStream) {
	job, epoch, err := c.state.Epoch(id.GetJobId(), id.GetEpoch())
	if err != nil {
		return nil, nil, nil
	}
	stream := leasedIn(epoch, workerID, id.GetStream(), lease)
	if stream == nil {
		return nil, nil, nil
	}
	return job, epoch, stream
}

// leasedIn finds a stream of an epoch that the worker holds under the lease, or nil.
func leasedIn(epoch *durable.Epoch, workerID string, number uint32, lease uint64) *pecanv1.StoredStream {
	stream := epoch.Find(number)
	if stream == nil || stream.Worker.GetWorkerId() != workerID || stream.Worker == nil || stream.Lease != lease {
		return nil
	}
	return stream
}

// noteOpened notes that a worker has opened its stream.
func (c *Core) noteOpened(key pecanv1.StreamKey, stream *pecanv1.StoredStream, volatileStream *streamState) {
	if !volatileStream.started && stream.OpeningCrashes > 0 {
		// Other streams may have waited for this one.
		if _, epoch, err := c.state.Epoch(key.Job, key.Epoch); err == nil {
			c.touch(epoch)
		}
	}
	volatileStream.started = true
}

// progress is a worker's report of a stream, as in StreamLoad.
type progress struct {
	produced, acked, cleanBelow uint64
	opened                      bool
}

// noteProgress notes how far a worker has come with its stream.
func (c *Core) noteProgress(key pecanv1.StreamKey, stream *pecanv1.StoredStream, now progress) *streamState {
	volatileStream := c.volatileStreamNow(key, stream)
	if now.opened {
		c.noteOpened(key, stream, volatileStream)
	}
	c.countProduced(key, stream, volatileStream, now.produced)
	volatileStream.produced = max(volatileStream.produced, now.produced)
	acked := min(now.acked, now.produced)
	volatileStream.ackedBelow, volatileStream.cleanBelow = max(volatileStream.ackedBelow, acked), max(volatileStream.cleanBelow, min(now.cleanBelow, now.acked))
	if acked > volatileStream.acked {
		// The client reads, so its reports about the worker are over.
		volatileStream.acked, volatileStream.unreachableReports, volatileStream.unreachableReason = acked, 0, ""
	}
	return volatileStream
}

// countProduced counts the elements of a stream that its worker has produced since its last report.
func (c *Core) countProduced(key pecanv1.StreamKey, stream *pecanv1.StoredStream, before *streamState, produced uint64) {
	worker := c.workers[stream.Worker.GetWorkerId()]
	if worker == nil {
		return
	}
	counted := before.produced
	if counted == 0 {
		// The run may have begun at an index that readers have reached.
		counted = max(before.ackedBelow, stream.StartIndex)
	}
	if produced > counted {
		worker.totals.Produced(key.Job, produced-counted)
	}
}

// streamProduced notes that a worker produced the last element of a stream.
func (c *Core) streamProduced(job *durable.Job, epoch *durable.Epoch, stream *pecanv1.StoredStream, count, rows uint64) {
	if stream.Produced {
		return
	}
	key := keyOf(job, epoch, stream)
	exact := job.Options.GetMode() == pecanv1.Mode_MODE_EXACTLY_ONCE || job.Options.GetMode() == pecanv1.Mode_MODE_DETERMINISTIC
	// A position in a plan with groups does not say how many elements an ended stream had, and no position says it of
	// earlier epochs.
	known := stream.Count > 0 || job.Plan.GetGroup() == 0 && !job.Plan.GetCarry()
	if exact && (stream.Delivered && known && stream.Count != count || count < stream.StartIndex) {
		c.failStream(job, epoch, key, reason.New(reason.Internal, "%s produced %d elements in this run and %d before; in mode exactly-once or deterministic a dataset must produce the same elements each time. Look for random filters or changed files", key, count, max(stream.Count, stream.StartIndex)).Detail())
		return
	}
	if kept := otherRows(epoch, stream.Stream, rows); kept != nil && job.Plan.GetCarry() {
		c.failStream(job, epoch, key, reason.New(reason.Internal, "%s keeps %d rows back in this run and %d before; a dataset must produce the same elements each time. Look for random filters or changed files", key, rows, kept.Skip+kept.Rows).Detail())
		return
	}
	c.countProduced(key, stream, c.volatileStreamNow(key, stream), count)
	c.emitProduced(epoch, stream.Stream, stream.Lease, count, rows)
}
