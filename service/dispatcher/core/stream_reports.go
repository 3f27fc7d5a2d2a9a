package core

import (
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/graph/split"
)

// finishStreams finishes each stream of a list.
func (c *Core) finishStreams(req *pecanv1.FinishStreamsRequest) (*pecanv1.FinishStreamsResponse, error) {
	if _, err := c.member("finish streams", req.ClientId, req.JobId); err != nil {
		return nil, err
	}
	return &pecanv1.FinishStreamsResponse{Refused: refusedStreams(req.JobId, req.Epoch, req.Streams, func(id *pecanv1.StreamId, one *pecanv1.FinishedStream) error {
		return c.finishStream(req.ClientId, id, one)
	})}, nil
}

// releaseStreams releases each stream of a list.
func (c *Core) releaseStreams(req *pecanv1.ReleaseStreamsRequest) (*pecanv1.ReleaseStreamsResponse, error) {
	if _, err := c.member("release streams", req.ClientId, req.JobId); err != nil {
		return nil, err
	}
	return &pecanv1.ReleaseStreamsResponse{Refused: refusedStreams(req.JobId, req.Epoch, req.Streams, func(id *pecanv1.StreamId, one *pecanv1.ReleasedStream) error {
		return c.releaseStream(req.ClientId, id, one)
	})}, nil
}

// refusedStreams reports each stream of a list, and returns those whose reports are refused.
func refusedStreams[R interface{ GetStream() uint32 }](jobID string, epoch uint64, list []R, report func(*pecanv1.StreamId, R) error) (refused []*pecanv1.RefusedStream) {
	for _, one := range list {
		id := &pecanv1.StreamId{JobId: jobID, Epoch: epoch, Stream: one.GetStream()}
		if err := report(id, one); err != nil {
			refused = append(refused, &pecanv1.RefusedStream{Stream: id.Stream, Error: reason.From(err).Detail()})
		}
	}
	return refused
}

// openStream finds the stream of a client's call. Nil without an error means that the epoch is over or the stream is
// settled, and the late call is fine.
func (c *Core) openStream(what, clientID string, id *pecanv1.StreamId) (*durable.Job, *durable.Epoch, *pecanv1.StoredStream, error) {
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
	if id.GetStream() >= epoch.Total() {
		return nil, nil, nil, reason.New(reason.StreamUnknown, "%s: epoch %d of job %q has %d streams, there is no stream %d", what, epoch.Epoch, job.JobId, epoch.Total(), id.GetStream())
	}
	if epoch.Settled(id.GetStream()) {
		return nil, nil, nil, nil
	}
	return job, epoch, epoch.Stream(id.GetStream()), nil
}

// isLate reports whether a call belongs to an earlier assignment of the stream. The call was delayed or repeated
// while the stream went to others, or restarted. A lease or an assignment that the stream never had is an error.
func isLate(what string, job *durable.Job, stream *pecanv1.StoredStream, lease, assignment uint64) (bool, error) {
	if lease == 0 || lease > stream.Lease {
		return false, reason.New(reason.StaleLease, "%s: stream %d was never leased under lease %d; its newest is %d", what, stream.Stream, lease, stream.Lease)
	}
	if assignment == 0 || assignment > stream.Assignment {
		return false, reason.New(reason.BadArgument, "%s: stream %d never had assignment %d; its newest is %d", what, stream.Stream, assignment, stream.Assignment)
	}
	return assignment < stream.Assignment || lease < stream.Lease && split.RestartsFromStart(job.Plan, job.Options), nil
}

// finishStream records that a client has received all elements of a stream, or has abandoned the rest. A late or repeated
// call changes nothing.
func (c *Core) finishStream(clientID string, id *pecanv1.StreamId, one *pecanv1.FinishedStream) error {
	const what = "finish stream"
	job, epoch, stream, err := c.openStream(what, clientID, id)
	if err != nil || stream == nil {
		return err
	}
	if stream.Delivered && stream.Consumer == clientID && stream.Count == one.Count {
		// The call is a repeat. Or the pass began after the stream's end, and the stream was never leased.
		return nil
	}
	if late, err := isLate(what, job, stream, one.Lease, one.Assignment); late || err != nil {
		return err
	}
	if stream.Consumer != clientID {
		return reason.New(reason.StaleLease, "%s: client %[3]q does not read stream %[2]d", what, stream.Stream, clientID)
	}
	if stream.Delivered {
		return nil
	}
	if one.Abandoned && split.MayMove(job.Plan, job.Options) {
		return reason.New(reason.BadArgument, "%s: client %q abandoned the rest of stream %d of job %q, but the job's mode does not allow that", what, clientID, stream.Stream, job.JobId)
	}
	// An older run may have had another number of elements, where runs do not repeat each other.
	older := one.Lease < stream.Lease && !split.IsRepeatable(job.Plan)
	if one.Count < stream.StartIndex || stream.Produced && one.Count != stream.Count && !one.Abandoned && !older {
		return reason.New(reason.BadArgument, "%s: client %q counts %d elements in stream %d; it started at %d, and the stream has %d", what, clientID, one.Count, stream.Stream, stream.StartIndex, stream.Count)
	}
	end := &pecanv1.StreamDelivered{Id: id, Count: one.Count, Truncated: one.Abandoned || older && job.Plan.HasClosing()}
	if end.Truncated {
		end.Produced = c.producedCount(id.Key(), stream)
		c.warn("rest of a stream abandoned by its client", "job", job.JobId, "epoch", epoch.Epoch, "stream", stream.Stream, "lease", one.Lease, "elements", one.Count)
	}
	c.deliver(job, epoch, end)
	return nil
}

// deliver ends a stream with what its consumer has of it. A requested release is void then, because nobody waits
// for the rest.
func (c *Core) deliver(job *durable.Job, epoch *durable.Epoch, end *pecanv1.StreamDelivered) {
	if end.Truncated {
		c.emit(&pecanv1.Record{Kind: &pecanv1.Record_StreamDelivered{StreamDelivered: end}})
	} else {
		c.emitDelivered(epoch, end.Id.Stream, end.Count)
	}
	c.endRelease(end.Id.Key())
	if epoch.Delivered() {
		c.event("epoch delivered", "job", job.JobId, "epoch", epoch.Epoch, "elements", epoch.Elements())
	}
}

// releaseStream takes a stream back from its consumer, so that the next consumer continues at the given index. If a new run
// would repeat elements that the mode must not repeat, the rest is truncated.
func (c *Core) releaseStream(clientID string, id *pecanv1.StreamId, one *pecanv1.ReleasedStream) error {
	const what = "release stream"
	job, epoch, stream, err := c.openStream(what, clientID, id)
	if err != nil || stream == nil {
		return err
	}
	if late, err := isLate(what, job, stream, one.Lease, one.Assignment); late || err != nil {
		return err
	}
	if stream.Consumer != clientID {
		if stream.Consumer == "" && stream.StartIndex == one.NextIndex {
			// The call is a repeat.
			return nil
		}
		return reason.New(reason.StaleLease, "%s: client %[3]q does not read stream %[2]d", what, stream.Stream, clientID)
	}
	if stream.Delivered {
		return nil
	}
	if one.NextIndex < stream.StartIndex || stream.Produced && one.NextIndex > stream.Count {
		return reason.New(reason.BadArgument, "%s: next index %d of stream %d is outside the range of client %q (from %d, %d elements in all)", what, one.NextIndex, stream.Stream, clientID, stream.StartIndex, stream.Count)
	}
	if durable.Private(job) {
		return reason.New(reason.BadArgument, "%s: job %q is private; no other client could continue stream %d. Close the epoch instead", what, job.JobId, stream.Stream)
	}
	if one.NextIndex > stream.StartIndex && wouldRepeat(job, stream, one.Lease) {
		c.truncateAt(job, epoch, stream, one.NextIndex)
		return nil
	}
	c.emit(&pecanv1.Record{Kind: &pecanv1.Record_ConsumerReleased{ConsumerReleased: &pecanv1.ConsumerReleased{
		Id: id, ClientId: clientID, NextIndex: one.NextIndex,
	}}})
	volatileStream := c.volatileStream(id.Key())
	if next := volatileStream.nextConsumer; volatileStream.releasing && durable.FindPass(epoch, next) != nil && c.canRead(epoch, epoch.Stream(id.Stream), next) {
		c.assign(epoch, epoch.Stream(id.Stream), next)
	}
	c.endRelease(id.Key())
	return nil
}
