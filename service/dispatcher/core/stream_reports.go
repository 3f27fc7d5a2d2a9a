package core

import (
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/graph/split"
)

// openStream finds the stream of a client's call. Nil without an error means that the epoch is over, and the late
// call is fine.
func (c *Core) openStream(what, clientID string, id *pecanv1.StreamId) (*pecanv1.StoredJob, *pecanv1.StoredEpoch, *pecanv1.StoredStream, error) {
	job, err := c.member(what, clientID, id.GetJobId())
	if err != nil {
		return nil, nil, nil, err
	}
	epoch := durable.FindEpoch(job, id.GetEpoch())
	if epoch == nil {
		if id.GetEpoch() < job.NextEpoch {
			return nil, nil, nil, nil
		}
		return nil, nil, nil, reason.New(reason.EpochUnknown, "%s: job %q has no epoch %d; its next one is %d", what, job.JobId, id.GetEpoch(), job.NextEpoch)
	}
	if int64(id.GetStream()) >= int64(len(epoch.Streams)) {
		return nil, nil, nil, reason.New(reason.StreamUnknown, "%s: epoch %d of job %q has %d streams, there is no stream %d", what, epoch.Epoch, job.JobId, len(epoch.Streams), id.GetStream())
	}
	return job, epoch, epoch.Streams[id.GetStream()], nil
}

// checkLease refuses leases that the stream never had.
func checkLease(what string, stream *pecanv1.StoredStream, lease uint64) error {
	if lease == 0 || lease > stream.Lease {
		return reason.New(reason.StaleLease, "%s: stream %d was never leased under lease %d; its newest is %d", what, stream.Stream, lease, stream.Lease)
	}
	return nil
}

// isLate reports whether a call belongs to an earlier assignment of the stream. The call was delayed or repeated
// while the stream went to others, or restarted. An assignment that was never made is an error.
func isLate(what string, job *pecanv1.StoredJob, stream *pecanv1.StoredStream, lease, assignment uint64) (bool, error) {
	if assignment == 0 || assignment > stream.Assignment {
		return false, reason.New(reason.BadArgument, "%s: stream %d never had assignment %d; its newest is %d", what, stream.Stream, assignment, stream.Assignment)
	}
	return assignment < stream.Assignment || lease < stream.Lease && split.RestartsFromStart(job.Plan, job.Options), nil
}

func (c *Core) finishStream(req *pecanv1.FinishStreamRequest) error {
	const what = "finish stream"
	job, epoch, stream, err := c.openStream(what, req.ClientId, req.Id)
	if err != nil || stream == nil {
		return err
	}
	if stream.Delivered && stream.Consumer == req.ClientId && stream.Count == req.Count {
		// The call is a repeat. Or the pass began after the stream's end, and the stream was never leased.
		return nil
	}
	if err := checkLease(what, stream, req.Lease); err != nil {
		return err
	}
	if late, err := isLate(what, job, stream, req.Lease, req.Assignment); late || err != nil {
		return err
	}
	if stream.Consumer != req.ClientId {
		return reason.New(reason.StaleLease, "%s: client %[3]q does not read stream %[2]d", what, stream.Stream, req.ClientId)
	}
	if stream.Delivered {
		return nil
	}
	if req.Abandoned && split.MayMove(job.Plan, job.Options) {
		return reason.New(reason.BadArgument, "%s: client %q abandoned the rest of stream %d of job %q, but the job's mode does not allow that", what, req.ClientId, stream.Stream, job.JobId)
	}
	// An older run may have had another number of elements, where runs do not repeat each other.
	older := req.Lease < stream.Lease && !split.IsRepeatable(job.Plan)
	if req.Count < stream.StartIndex || stream.Produced && req.Count != stream.Count && !req.Abandoned && !older {
		return reason.New(reason.BadArgument, "%s: client %q counts %d elements in stream %d; it started at %d, and the stream has %d", what, req.ClientId, req.Count, stream.Stream, stream.StartIndex, stream.Count)
	}
	end := &pecanv1.StreamDelivered{Id: req.Id, Count: req.Count, Truncated: req.Abandoned || older && job.Plan.HasClosing()}
	if end.Truncated {
		end.Produced = c.producedCount(keyOf(req.Id), stream)
		c.warn("a client abandoned the rest of a stream", "job", job.JobId, "epoch", epoch.Epoch, "stream", stream.Stream, "lease", req.Lease, "elements", req.Count)
	}
	c.deliver(job, epoch, end)
	return nil
}

// deliver ends a stream with what its consumer has of it. A requested release is void then, because nobody waits
// for the rest.
func (c *Core) deliver(job *pecanv1.StoredJob, epoch *pecanv1.StoredEpoch, end *pecanv1.StreamDelivered) {
	c.emit(&pecanv1.Record{Kind: &pecanv1.Record_StreamDelivered{StreamDelivered: end}})
	c.volatileStream(keyOf(end.Id)).releasing = false
	if durable.Delivered(epoch) {
		c.event("epoch delivered", "job", job.JobId, "epoch", epoch.Epoch, "elements", durable.Elements(epoch))
	}
}

func (c *Core) releaseStream(req *pecanv1.ReleaseStreamRequest) error {
	const what = "release stream"
	job, epoch, stream, err := c.openStream(what, req.ClientId, req.Id)
	if err != nil || stream == nil {
		return err
	}
	if err := checkLease(what, stream, req.Lease); err != nil {
		return err
	}
	if late, err := isLate(what, job, stream, req.Lease, req.Assignment); late || err != nil {
		return err
	}
	if stream.Consumer != req.ClientId {
		if stream.Consumer == "" && stream.StartIndex == req.NextIndex {
			// The call is a repeat.
			return nil
		}
		return reason.New(reason.StaleLease, "%s: client %[3]q does not read stream %[2]d", what, stream.Stream, req.ClientId)
	}
	if stream.Delivered {
		return nil
	}
	if req.NextIndex < stream.StartIndex || stream.Produced && req.NextIndex > stream.Count {
		return reason.New(reason.BadArgument, "%s: next index %d of stream %d is outside the range of client %q (from %d, %d elements in all)", what, req.NextIndex, stream.Stream, req.ClientId, stream.StartIndex, stream.Count)
	}
	if durable.Private(job) {
		return reason.New(reason.BadArgument, "%s: job %q is private; no other client could continue stream %d. Close the epoch instead", what, job.JobId, stream.Stream)
	}
	if req.NextIndex > stream.StartIndex && wouldRepeat(job, stream, req.Lease) {
		c.truncateAt(job, epoch, stream, req.NextIndex)
		return nil
	}
	c.emit(&pecanv1.Record{Kind: &pecanv1.Record_ConsumerReleased{ConsumerReleased: &pecanv1.ConsumerReleased{
		Id: req.Id, ClientId: req.ClientId, NextIndex: req.NextIndex,
	}}})
	volatileStream := c.volatileStream(keyOf(req.Id))
	if volatileStream.releasing && durable.FindPass(epoch, volatileStream.nextConsumer) != nil {
		c.assign(req.Id, stream, volatileStream.nextConsumer)
	}
	volatileStream.releasing = false
	return nil
}
