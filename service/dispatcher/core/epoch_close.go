package core

import (
	"cmp"
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
)

func (c *Core) closeEpoch(req *pecanv1.CloseEpochRequest) error {
	job, err := c.member("close epoch", req.ClientId, req.JobId)
	if err != nil {
		return err
	}
	epoch := durable.FindEpoch(job, req.Epoch)
	if epoch == nil && req.Epoch >= job.NextEpoch {
		return reason.New(reason.EpochUnknown, "close epoch: job %q has no epoch %d; its next one is %d", job.JobId, req.Epoch, job.NextEpoch)
	}
	if epoch != nil && durable.FindPass(epoch, req.ClientId) != nil && !c.reopened(req) {
		c.leaveEpoch(job, epoch, req.ClientId, true)
	}
	return nil
}

// reopened reports whether the open pass is newer than the one to close: the call was repeated or delayed.
func (c *Core) reopened(req *pecanv1.CloseEpochRequest) bool {
	for _, known := range slices.Backward(c.state.Client(req.ClientId).Requests) {
		if known.Opened && known.JobId == req.JobId && known.Epoch == req.Epoch {
			return req.RequestId != "" && req.RequestId != known.RequestId
		}
	}
	return false
}

// leaveEpoch removes a client from an epoch and frees its streams. The epoch ends when no client is left that may
// want the rest. A client that closes the epoch itself has first released every stream of which it had elements. If
// a stream is still assigned to such a client, the assignment had not reached the client. The client then has no
// elements under this assignment, so the stream keeps its start index.
func (c *Core) leaveEpoch(job *pecanv1.StoredJob, epoch *pecanv1.StoredEpoch, clientID string, closed bool) {
	if !durable.Private(job) {
		for _, stream := range epoch.Streams {
			if stream.Consumer == clientID && !stream.Delivered {
				key := streamKey{job.JobId, epoch.Epoch, stream.Stream}
				next := stream.StartIndex
				if !closed {
					// The client does not say what it received.
					if wouldRepeat(job, stream, c.volatileStream(key).assignedLease) {
						c.truncateAt(job, epoch, stream, stream.StartIndex)
						continue
					}
					next = c.resumeIndex(job, key, stream)
				}
				c.emit(&pecanv1.Record{Kind: &pecanv1.Record_ConsumerReleased{ConsumerReleased: &pecanv1.ConsumerReleased{
					Id: key.id(), ClientId: clientID, NextIndex: next,
				}}})
				c.volatileStream(key).releasing = false
			}
		}
	}
	c.emit(&pecanv1.Record{Kind: &pecanv1.Record_EpochLeft{EpochLeft: &pecanv1.EpochLeft{JobId: job.JobId, Epoch: epoch.Epoch, ClientId: clientID}}})
	if client := c.clients[clientID]; client != nil {
		delete(client.passes, passKey{job.JobId, epoch.Epoch})
	}
	c.endWatches(func(w *watchState) bool {
		return w.client == clientID && w.job == job.JobId && w.epoch == epoch.Epoch
	}, nil)
	if len(epoch.Passes) == 0 && (durable.Private(job) || durable.Delivered(epoch) || epoch.Error != nil) {
		c.endEpoch(job, epoch)
	}
}

// resumeIndex returns the index at which the next consumer starts after a client that left without reporting its position. The
// package comment has the rules by mode.
func (c *Core) resumeIndex(job *pecanv1.StoredJob, key streamKey, stream *pecanv1.StoredStream) uint64 {
	volatileStream := c.volatileStream(key)
	index := stream.StartIndex
	if volatileStream.lease == stream.Lease && stream.Worker != nil {
		switch job.Options.GetMode() {
		case pecanv1.Mode_MODE_AT_LEAST_ONCE:
		case pecanv1.Mode_MODE_AT_MOST_ONCE:
			index = max(index, volatileStream.acked, volatileStream.produced)
		default:
			index = max(index, volatileStream.acked)
		}
	}
	if stream.Produced {
		index = min(index, stream.Count)
	}
	return index
}

// endEpoch stops the streams of an epoch and closes it.
func (c *Core) endEpoch(job *pecanv1.StoredJob, epoch *pecanv1.StoredEpoch) {
	for _, stream := range epoch.Streams {
		if stream.Worker != nil {
			c.stopRun(job, stream.Worker.WorkerId, streamKey{job.JobId, epoch.Epoch, stream.Stream}, 0)
		}
	}
	done := durable.Delivered(epoch)
	c.dropVolatile(job.JobId, epoch)
	c.endWatches(func(w *watchState) bool { return w.job == job.JobId && w.epoch == epoch.Epoch },
		reason.New(reason.EpochUnknown, "watch epoch: epoch %d of job %q is over", epoch.Epoch, job.JobId))
	c.emit(&pecanv1.Record{Kind: &pecanv1.Record_EpochClosed{EpochClosed: &pecanv1.EpochClosed{
		JobId: job.JobId, Epoch: epoch.Epoch, Delivered: done, Elements: durable.Elements(epoch), Error: epoch.Error,
		StreamsTruncated: durable.StreamsTruncated(epoch), Lost: durable.Lost(job, epoch),
	}}})
	c.event("epoch closed", "job", job.JobId, "epoch", epoch.Epoch, "delivered", done, "elements", durable.Elements(epoch))
}

// failStream fails the epoch of a stream that has failed for good. Every client of the epoch gets the error.
func (c *Core) failStream(job *pecanv1.StoredJob, epoch *pecanv1.StoredEpoch, key streamKey, detail *pecanv1.ErrorDetail) {
	if epoch.Error != nil {
		return
	}
	c.orders.StreamFailed(job, key.epoch, key.stream, cmp.Or(detail.GetMessage(), describe(key)))
	c.emit(&pecanv1.Record{Kind: &pecanv1.Record_EpochFailed{EpochFailed: &pecanv1.EpochFailed{JobId: job.JobId, Epoch: epoch.Epoch, Error: detail}}})
	c.warn("epoch failed", "job", job.JobId, "epoch", epoch.Epoch, "reason", detail.GetReason(), "error", detail.GetMessage())
}
