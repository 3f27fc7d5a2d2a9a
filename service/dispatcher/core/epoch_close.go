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
		c.trainerTook(job, epoch, req)
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
func (c *Core) leaveEpoch(job *durable.Job, epoch *durable.Epoch, clientID string, closed bool) {
	if !durable.Private(job) {
		for _, stream := range epoch.Active() {
			if stream.Consumer == clientID && !stream.Delivered {
				key := keyOf(job, epoch, stream)
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
					Id: key.ID(), ClientId: clientID, NextIndex: next,
				}}})
				c.endRelease(key)
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
	if len(epoch.Passes) == 0 && (durable.Private(job) || epoch.Delivered() || epoch.Error != nil) && !c.keeps(epoch) {
		c.endEpoch(job, epoch)
	}
}

// resumeIndex returns the index at which the next consumer starts after a client that left without reporting its position. The
// comment at the top of consumers.go has the rules by mode.
func (c *Core) resumeIndex(job *durable.Job, key pecanv1.StreamKey, stream *pecanv1.StoredStream) uint64 {
	volatileStream := c.volatileStream(key)
	index := stream.StartIndex
	switch job.Options.GetMode() {
	case pecanv1.Mode_MODE_AT_LEAST_ONCE:
	case pecanv1.Mode_MODE_AT_MOST_ONCE:
		// The reader may have elements of older leases.
		index = max(index, volatileStream.mayBeSentBelow())
	default:
		if volatileStream.lease == stream.Lease && stream.Worker != nil {
			index = max(index, volatileStream.acked)
		}
	}
	if stream.Produced {
		index = min(index, stream.Count)
	}
	return index
}

// endEpoch stops the streams of an epoch and closes it.
func (c *Core) endEpoch(job *durable.Job, epoch *durable.Epoch) {
	if epoch.RowsAwaited() {
		// The epoch after it must not wait for rows that nobody has.
		c.emitCarried(epoch, nil)
	}
	if job.Plan.GetWritesFiles() {
		for _, stream := range epoch.Active() {
			if stream.Worker != nil {
				c.stopRun(job, stream.Worker.WorkerId, keyOf(job, epoch, stream), 0)
			}
		}
	}
	c.sendOver(epoch)
	done := epoch.Delivered()
	if done {
		c.orders.KeepProfile(job, epoch)
	}
	c.orders.EpochEnded(job, epoch)
	c.measureCaches(job)
	c.caches.due = true
	for _, step := range cachedSteps(job) {
		if len(job.Epochs) == 1 && c.state.Cache(c.cacheKey(job, step)).GetManifest() != "" {
			// The cache of this job is not in use any more, so others may be worth more than it.
			clear(c.caches.unwanted)
		}
	}
	c.measureEpoch(job, epoch)
	c.dropVolatile(job.JobId, epoch)
	c.endWatches(func(w *watchState) bool { return w.job == job.JobId && w.epoch == epoch.Epoch },
		reason.New(reason.EpochUnknown, "watch epoch: epoch %d of job %q is over", epoch.Epoch, job.JobId))
	c.emit(&pecanv1.Record{Kind: &pecanv1.Record_EpochClosed{EpochClosed: &pecanv1.EpochClosed{
		JobId: job.JobId, Epoch: epoch.Epoch, Delivered: done, Elements: epoch.Elements(), Error: epoch.Error,
		StreamsTruncated: epoch.StreamsTruncated(), Lost: durable.Lost(job, epoch),
	}}})
	c.event("epoch closed", "job", job.JobId, "epoch", epoch.Epoch, "delivered", done, "elements", epoch.Elements())
}

// failStream fails the epoch of a stream that has failed for good, and the epochs that still join its rows. Every client
// of them gets the error.
func (c *Core) failStream(job *durable.Job, epoch *durable.Epoch, key pecanv1.StreamKey, detail *pecanv1.ErrorDetail) {
	if epoch.Error != nil {
		return
	}
	inOrder := durable.HasOrder(durable.FindEpoch(job, key.Epoch), key.Stream)
	c.orders.StreamFailed(job, key.Epoch, key.Stream, cmp.Or(detail.GetMessage(), key.String()))
	c.emit(&pecanv1.Record{Kind: &pecanv1.Record_EpochFailed{EpochFailed: &pecanv1.EpochFailed{JobId: job.JobId, Epoch: epoch.Epoch, Error: detail, InOrder: inOrder}}})
	c.warn("epoch failed", "job", job.JobId, "epoch", epoch.Epoch, "reason", detail.GetReason(), "error", detail.GetMessage())
	for _, later := range joining(epoch) {
		c.failStream(job, later, key, detail)
	}
}
