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
	kept := map[streamKey]bool{}
	for _, h := range held {
		key := keyOf(h.GetId())
		job, epoch, stream := c.leased(workerID, h.GetId(), h.GetLease())
		if stream == nil {
			if job := c.state.Job(key.job); job != nil {
				c.stopRun(job, workerID, key, h.GetLease())
			} else {
				c.command(workerID, stopCommand(key, h.GetLease()))
			}
			continue
		}
		kept[key] = true
		volatileStream := c.volatileStreamNow(key, stream)
		volatileStream.started = true
		if h.Ended {
			c.streamProduced(job, epoch, stream, h.Count, h.RemainderRows)
		}
		if durable.IsClosing(job, stream) {
			volatileStream.remainders = nil
		}
	}
	c.eachStream(func(job *pecanv1.StoredJob, epoch *pecanv1.StoredEpoch, stream *pecanv1.StoredStream) {
		key := streamKey{job.JobId, epoch.Epoch, stream.Stream}
		if stream.Worker.GetWorkerId() != workerID || kept[key] {
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
		c.command(workerID, c.startCommand(job, epoch, stream))
	})
}

// leased finds a stream that the worker holds under the lease, or nothing.
func (c *Core) leased(workerID string, id *pecanv1.StreamId, lease uint64) (*pecanv1.StoredJob, *pecanv1.StoredEpoch, *pecanv1.StoredStream) {
	job, epoch, err := c.state.Epoch(id.GetJobId(), id.GetEpoch())
	if err != nil || int64(id.GetStream()) >= int64(len(epoch.Streams)) {
		return nil, nil, nil
	}
	stream := epoch.Streams[id.GetStream()]
	if stream.Worker.GetWorkerId() != workerID || stream.Worker == nil || stream.Lease != lease {
		return nil, nil, nil
	}
	return job, epoch, stream
}

func (c *Core) eachStream(do func(*pecanv1.StoredJob, *pecanv1.StoredEpoch, *pecanv1.StoredStream)) {
	for _, job := range c.state.Jobs() {
		for _, epoch := range job.Epochs {
			for _, stream := range epoch.Streams {
				do(job, epoch, stream)
			}
		}
	}
}

// noteOpened notes that a worker has opened its stream.
func (c *Core) noteOpened(key streamKey, stream *pecanv1.StoredStream) {
	volatileStream := c.volatileStream(key)
	if !volatileStream.started && stream.OpeningCrashes > 0 {
		// Other streams may have waited for this one.
		c.dirty = true
	}
	volatileStream.started = true
}

// noteProgress notes how far a worker has come with its stream.
func (c *Core) noteProgress(key streamKey, stream *pecanv1.StoredStream, load *pecanv1.WorkerHeartbeat_StreamLoad) *streamState {
	volatileStream := c.volatileStreamNow(key, stream)
	if load.Opened {
		c.noteOpened(key, stream)
	}
	volatileStream.produced = max(volatileStream.produced, load.Produced)
	volatileStream.ackedBelow, volatileStream.cleanBelow = max(volatileStream.ackedBelow, min(load.Acked, load.Produced)), max(volatileStream.cleanBelow, min(load.CleanBelow, load.Acked))
	if acked := min(load.Acked, load.Produced); acked > volatileStream.acked {
		// The client reads, so its reports about the worker are over.
		volatileStream.acked, volatileStream.unreachableReports, volatileStream.unreachableReason = acked, 0, ""
	}
	return volatileStream
}

// streamProduced notes that a worker produced the last element of a stream.
func (c *Core) streamProduced(job *pecanv1.StoredJob, epoch *pecanv1.StoredEpoch, stream *pecanv1.StoredStream, count, rows uint64) {
	if stream.Produced {
		return
	}
	key := streamKey{job.JobId, epoch.Epoch, stream.Stream}
	exact := job.Options.GetMode() == pecanv1.Mode_MODE_EXACTLY_ONCE || job.Options.GetMode() == pecanv1.Mode_MODE_DETERMINISTIC
	if exact && (stream.Delivered && stream.Count != count || count < stream.StartIndex) {
		c.failStream(job, epoch, key, reason.New(reason.Internal, "%s produced %d elements in this run and %d before; in mode exactly-once or deterministic a dataset must produce the same elements each time. Look for random filters or changed files", describe(key), count, max(stream.Count, stream.StartIndex)).Detail())
		return
	}
	c.emit(&pecanv1.Record{Kind: &pecanv1.Record_StreamProduced{StreamProduced: &pecanv1.StreamProduced{
		Id: key.id(), Lease: stream.Lease, Count: count, RemainderRows: rows,
	}}})
}
