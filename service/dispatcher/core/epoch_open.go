package core

import (
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
)

// openEpoch lets a client read an epoch of its job: the requested one, or a new one. A repeated request gets the first answer.
func (c *Core) openEpoch(in OpenEpochAt) (*pecanv1.OpenEpochResponse, error) {
	req := in.Request
	job, err := c.member("open epoch", req.ClientId, req.JobId)
	if err != nil {
		return nil, err
	}
	if known := answered(c.state.Client(req.ClientId).Requests, req); known != nil {
		return &pecanv1.OpenEpochResponse{Epoch: known.Epoch, Order: c.orders.PositionOrder(job, durable.FindEpoch(job, known.Epoch))}, nil
	}
	if job.Error != nil {
		return nil, reason.FromDetail(job.Error)
	}
	number := job.NextEpoch
	if !durable.Private(job) {
		number = req.Pass
	}
	if req.Position != nil {
		if err := checkPosition(job, req.Position); err != nil {
			return nil, err
		}
		number = req.Position.Epoch
	} else if number > job.NextEpoch {
		return nil, reason.New(reason.BadArgument, "open epoch: pass %d of job %q asked for, but its next epoch is %d; passes must be opened in order", number, req.JobId, job.NextEpoch)
	} else if number > durable.MaxEpoch {
		// A position may still be in the last epoch.
		return nil, reason.New(reason.BadArgument, "open epoch: job %q has reached epoch %d, which is the last possible one", req.JobId, uint64(durable.MaxEpoch))
	}
	if req.Position == nil && number < job.NextEpoch {
		epoch := durable.FindEpoch(job, number)
		if closed := durable.FindClosed(job, number); closed.GetError() != nil {
			return nil, reason.FromDetail(closed.Error)
		}
		if epoch == nil || epoch.Delivered() {
			return &pecanv1.OpenEpochResponse{Epoch: number, AlreadyDelivered: true}, nil
		}
		if epoch.Error != nil {
			return nil, reason.FromDetail(epoch.Error)
		}
		if durable.FindPass(epoch, req.ClientId) != nil {
			return nil, reason.New(reason.BadArgument, "open epoch: client %q reads epoch %d of job %q already; two iterators of one client cannot share a pass", req.ClientId, number, req.JobId)
		}
	} else {
		if n := len(job.Epochs) - c.keptEpochs(job); n >= c.cfg.MaxEpochs {
			return nil, reason.New(reason.ServiceLimit, "open epoch: job %q has %d open iterators, the dispatcher allows at most %d (--max-epochs); delete those that are no longer read", req.JobId, n, c.cfg.MaxEpochs)
		}
		order, err := c.orders.OrderAt(job, req.Position, in.Order)
		if err != nil {
			return nil, err
		}
		after, err := afterOf(job, number, req)
		if err != nil {
			return nil, err
		}
		c.openNewEpoch(job, number, req.Position, order, after)
	}
	joined := &pecanv1.EpochJoined{JobId: job.JobId, Epoch: number, ClientId: req.ClientId, RequestId: req.RequestId, Prefetch: req.Prefetch, HeartbeatNumber: req.HeartbeatNumber}
	if !req.Prefetch {
		joined.AtS = c.unix()
		joined.CacheKeys, joined.KeysKnown = c.newCacheKeys(job)
	}
	c.emit(&pecanv1.Record{Kind: &pecanv1.Record_EpochJoined{EpochJoined: joined}})
	c.clients[req.ClientId].passes[passKey{job.JobId, number}] = &passState{seen: c.now, took: c.now}
	return &pecanv1.OpenEpochResponse{Epoch: number, Order: c.orders.PositionOrder(job, durable.FindEpoch(job, number))}, nil
}

// adoptEpoch notes that a client begins to read an epoch that it had prefetched. If the pass or the epoch is
// closed, nothing changes.
func (c *Core) adoptEpoch(req *pecanv1.AdoptEpochRequest) error {
	job, err := c.member("adopt epoch", req.ClientId, req.JobId)
	if err != nil {
		return err
	}
	epoch := durable.FindEpoch(job, req.Epoch)
	if epoch == nil {
		if req.Epoch < job.NextEpoch {
			return nil
		}
		return reason.New(reason.EpochUnknown, "adopt epoch: job %q has no epoch %d; its next one is %d", job.JobId, req.Epoch, job.NextEpoch)
	}
	if pass := durable.FindPass(epoch, req.ClientId); pass != nil && pass.Prefetch {
		keys, known := c.newCacheKeys(job)
		c.emit(&pecanv1.Record{Kind: &pecanv1.Record_EpochAdopted{EpochAdopted: &pecanv1.EpochAdopted{
			JobId: job.JobId, Epoch: req.Epoch, ClientId: req.ClientId, AtS: c.unix(), CacheKeys: keys, KeysKnown: known,
		}}})
		// It took nothing before, because it read an earlier epoch.
		if known := c.clients[req.ClientId].passes[passKey{job.JobId, req.Epoch}]; known != nil {
			known.took = c.now
		}
	}
	return nil
}

// checkPosition refuses a position at which a pass cannot begin.
func checkPosition(job *durable.Job, position *pecanv1.Position) error {
	const what = "open epoch at a position"
	streams := durable.PlannedStreams(job)
	switch {
	case !durable.Private(job):
		return reason.New(reason.BadArgument, "%s: job %q is shared by its name, and a position is that of one trainer. Omit the name if a trainer has to resume where it stopped", what, job.Name)
	case streams == 0:
		return reason.New(reason.BadArgument, "%s: job %q has sharding OFF: its streams belong to workers and differ from run to run", what, job.JobId)
	case position.Epoch > durable.MaxEpoch || durable.FindEpoch(job, position.Epoch) != nil:
		return reason.New(reason.BadArgument, "%s: epoch %d of job %q is open already, or its number is above %d", what, position.Epoch, job.JobId, uint64(durable.MaxEpoch))
	case len(position.Next) > int(streams):
		return reason.New(reason.BadArgument, "%s: it names %d streams, job %q has %d", what, len(position.Next), job.JobId, streams)
	case position.Turn > streams:
		return reason.New(reason.BadArgument, "%s: it names a stream above the %d of job %q", what, streams, job.JobId)
	}
	if _, err := position.EndedStreams(streams); err != nil {
		return reason.New(reason.BadArgument, "%s: it names a stream above the %d of job %q", what, streams, job.JobId)
	}
	if _, _, err := position.BegunStreams(streams); err != nil {
		return reason.New(reason.BadArgument, "%s of job %q: %w", what, job.JobId, err)
	}
	if err := position.CheckRows(job.Plan); err != nil {
		return reason.New(reason.BadArgument, "%s of job %q: %w", what, job.JobId, err)
	}
	return nil
}

// openNewEpoch opens an epoch of a job, and ends the older epochs that nobody reads.
func (c *Core) openNewEpoch(job *durable.Job, number uint64, position *pecanv1.Position, order []string, after *uint64) {
	streams := durable.PlannedStreams(job)
	// A half-read epoch that nobody reads ends when the second epoch after it begins.
	for _, old := range slices.Clone(job.Epochs) {
		if len(old.Passes) == 0 && old.Epoch+1 < number && !c.keeps(old) {
			c.endEpoch(job, old)
		}
	}
	order, whole := orderOfEpoch(job, position, order)
	ordered := c.orders.BeginPilot(job, number, position, order, whole)
	c.emit(&pecanv1.Record{Kind: &pecanv1.Record_EpochOpened{EpochOpened: &pecanv1.EpochOpened{
		JobId: job.JobId, Epoch: number, Streams: streams, Position: position, Order: slices.Clone(order), OrderStreams: ordered, After: after, CachedStep: job.CacheDecision.GetNode(),
	}}})
	c.beginMeasuring(job, number)
	c.openSources(job, position)
	c.event("epoch opened", "job", job.JobId, "epoch", number, "streams", streams, "resumed", position != nil, "ordered", len(order) > 0)
}
