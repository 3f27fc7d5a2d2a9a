package core

import (
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/graph"
)

// reconcile compares what a worker says it holds with the leases: what it holds rightly goes on, the rest is stopped,
// and what it should hold and does not is started.
func (c *Core) reconcile(workerID string, held []*pecanv1.HeldStream) {
	kept := map[streamKey]bool{}
	for _, h := range held {
		key := keyOf(h.GetId())
		job, epoch, stream := c.leased(workerID, h.GetId(), h.GetLease())
		if stream == nil {
			if job := c.state.Job(key.job); job != nil {
				c.takeBack(job, workerID, key, h.GetLease())
			} else {
				c.command(workerID, stopCommand(key, h.GetLease()))
			}
			continue
		}
		kept[key] = true
		soft := c.softNow(key, stream)
		soft.started = true
		if h.Ended {
			c.produced(job, epoch, stream, h.Count, h.RemainderRows)
		}
		if durable.IsClosing(job, stream) {
			soft.remainders = nil
		}
	}
	c.eachStream(func(job *pecanv1.StoredJob, epoch *pecanv1.StoredEpoch, stream *pecanv1.StoredStream) {
		key := streamKey{job.JobId, epoch.Epoch, stream.Stream}
		if stream.Worker.GetWorkerId() != workerID || kept[key] {
			return
		}
		if stream.Produced || !graph.Repeats(job.Plan) && c.begun(key, stream) {
			// It had made all of it and has lost it: it has to be made again. So has one of which another run may give other elements.
			c.loseLease(key, stream, pecanv1.LeaseLost_MOVED, "worker "+workerID+" does not hold it any more")
			return
		}
		soft := c.soft(key)
		soft.newLease(stream.Lease, c.now)
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

// hasOpened notes that a worker has opened the stream that it holds.
func (c *Core) hasOpened(key streamKey, stream *pecanv1.StoredStream) {
	soft := c.soft(key)
	if !soft.started && stream.OpeningCrashes > 0 {
		// Others may have waited for it.
		c.dirty = true
	}
	soft.started = true
}

// progressed notes how far a worker has come with a stream that is leased to it.
func (c *Core) progressed(key streamKey, stream *pecanv1.StoredStream, load *pecanv1.WorkerHeartbeat_StreamLoad) *streamState {
	soft := c.softNow(key, stream)
	if load.Opened {
		c.hasOpened(key, stream)
	}
	soft.produced = max(soft.produced, load.Produced)
	soft.had, soft.clean = max(soft.had, min(load.Acked, load.Produced)), max(soft.clean, min(load.CleanBelow, load.Acked))
	if acked := min(load.Acked, load.Produced); acked > soft.acked {
		// Its client reads, whatever it reported before.
		soft.acked, soft.reports, soft.reported = acked, 0, ""
	}
	return soft
}

// produced notes that a worker made the last element of a stream.
func (c *Core) produced(job *pecanv1.StoredJob, epoch *pecanv1.StoredEpoch, stream *pecanv1.StoredStream, count, rows uint64) {
	if stream.Produced {
		return
	}
	key := streamKey{job.JobId, epoch.Epoch, stream.Stream}
	exact := job.Options.GetMode() == pecanv1.Mode_MODE_EXACTLY_ONCE || job.Options.GetMode() == pecanv1.Mode_MODE_DETERMINISTIC
	if exact && (stream.Delivered && stream.Count != count || count < stream.StartIndex) {
		c.failStream(job, epoch, key, reason.New(reason.Internal, "%s gave %d elements when it was run again and %d before; a dataset read in mode exactly-once or deterministic has to give the same elements each time. Look for random filters, or for files that change", describe(key), count, max(stream.Count, stream.StartIndex)).Detail())
		return
	}
	c.emit(&pecanv1.Record{Kind: &pecanv1.Record_StreamProduced{StreamProduced: &pecanv1.StreamProduced{
		Id: key.id(), Lease: stream.Lease, Count: count, RemainderRows: rows,
	}}})
}
