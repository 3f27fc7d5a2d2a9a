package core

import (
	"fmt"
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/graph"
)

func (c *Core) openEpoch(in OpenEpochAt) (*pecanv1.OpenEpochResponse, error) {
	req := in.Request
	job, err := c.member("open epoch", req.ClientId, req.JobId)
	if err != nil {
		return nil, err
	}
	if known := answered(c.state.clients[req.ClientId].Requests, req); known != nil {
		return &pecanv1.OpenEpochResponse{Epoch: known.Epoch, Order: c.positionOrder(job, findEpoch(job, known.Epoch))}, nil
	}
	if job.Error != nil {
		return nil, reason.FromDetail(job.Error)
	}
	number := job.NextEpoch
	if !private(job) {
		number = req.Pass
	}
	if req.Position != nil {
		if err := checkPosition(job, req.Position); err != nil {
			return nil, err
		}
		number = req.Position.Epoch
	} else if number > job.NextEpoch {
		return nil, reason.New(reason.BadArgument, "open epoch: pass %d of job %q asked for, but its next epoch is %d; passes are opened one after the other", number, req.JobId, job.NextEpoch)
	} else if number > maxEpoch {
		// A position may be of the last one.
		return nil, reason.New(reason.BadArgument, "open epoch: job %q has come to epoch %d, and there are none behind that", req.JobId, uint64(maxEpoch))
	}
	if req.Position == nil && number < job.NextEpoch {
		epoch := findEpoch(job, number)
		if closed := findClosed(job, number); closed.GetError() != nil {
			return nil, reason.FromDetail(closed.Error)
		}
		if epoch == nil || delivered(epoch) {
			return &pecanv1.OpenEpochResponse{Epoch: number, AlreadyDelivered: true}, nil
		}
		if epoch.Error != nil {
			return nil, reason.FromDetail(epoch.Error)
		}
		if findPass(epoch, req.ClientId) != nil {
			return nil, reason.New(reason.BadArgument, "open epoch: client %q reads epoch %d of job %q already; two iterators of one client cannot share a pass", req.ClientId, number, req.JobId)
		}
	} else {
		if n := len(job.Epochs); n >= c.cfg.MaxEpochs {
			return nil, reason.New(reason.ServiceLimit, "open epoch: job %q has %d iterators under way, the dispatcher allows at most %d (--max-epochs); delete those that are not read any more", req.JobId, n, c.cfg.MaxEpochs)
		}
		order, err := c.orderAt(job, in)
		if err != nil {
			return nil, err
		}
		c.openNewEpoch(job, number, req.Position, order)
	}
	c.emit(&pecanv1.Record{Kind: &pecanv1.Record_EpochJoined{EpochJoined: &pecanv1.EpochJoined{
		JobId: job.JobId, Epoch: number, ClientId: req.ClientId, RequestId: req.RequestId, Prefetch: req.Prefetch, HeartbeatNumber: req.HeartbeatNumber,
	}}})
	c.clients[req.ClientId].passes[passKey{job.JobId, number}] = &passState{seen: c.now}
	return &pecanv1.OpenEpochResponse{Epoch: number, Order: c.positionOrder(job, findEpoch(job, number))}, nil
}

// adoptEpoch notes that a client begins to read what it had opened ahead of need. One that has closed the pass meanwhile, or
// whose epoch is over, tells nothing new.
func (c *Core) adoptEpoch(req *pecanv1.AdoptEpochRequest) error {
	job, err := c.member("adopt epoch", req.ClientId, req.JobId)
	if err != nil {
		return err
	}
	epoch := findEpoch(job, req.Epoch)
	if epoch == nil {
		if req.Epoch < job.NextEpoch {
			return nil
		}
		return reason.New(reason.EpochUnknown, "adopt epoch: job %q has no epoch %d; its next one is %d", job.JobId, req.Epoch, job.NextEpoch)
	}
	if pass := findPass(epoch, req.ClientId); pass != nil && pass.Prefetch {
		c.emit(&pecanv1.Record{Kind: &pecanv1.Record_EpochAdopted{EpochAdopted: &pecanv1.EpochAdopted{
			JobId: job.JobId, Epoch: req.Epoch, ClientId: req.ClientId,
		}}})
	}
	return nil
}

// checkPosition refuses a pass that cannot begin where it is asked to.
func checkPosition(job *pecanv1.StoredJob, position *pecanv1.Position) error {
	const what = "open epoch at a position"
	streams := plannedStreams(job)
	switch {
	case !private(job):
		return reason.New(reason.BadArgument, "%s: job %q is shared by its name, and a position is that of one trainer. Leave the name out where a trainer shall go on where it stopped", what, job.Name)
	case streams == 0:
		return reason.New(reason.BadArgument, "%s: job %q has sharding OFF, where streams are the workers' and differ from run to run", what, job.JobId)
	case position.Epoch > maxEpoch || findEpoch(job, position.Epoch) != nil:
		return reason.New(reason.BadArgument, "%s: epoch %d of job %q is open already, or its number is above %d", what, position.Epoch, job.JobId, uint64(maxEpoch))
	case len(position.Next) > int(streams):
		return reason.New(reason.BadArgument, "%s: it names %d streams, job %q has %d", what, len(position.Next), job.JobId, streams)
	case position.Turn > streams || slices.ContainsFunc(position.Ended, func(n uint32) bool { return n >= streams }):
		return reason.New(reason.BadArgument, "%s: it names a stream above the %d of job %q", what, streams, job.JobId)
	}
	return nil
}

// plannedStreams is how many streams an epoch of the job has from the start, the closing stream included.
func plannedStreams(job *pecanv1.StoredJob) uint32 {
	if job.Options.GetMode() == pecanv1.Mode_MODE_OFF {
		return 0
	}
	streams := uint32(job.Plan.GetNumStreams())
	if job.Plan.HasClosing() {
		streams++
	}
	return streams
}

func (c *Core) openNewEpoch(job *pecanv1.StoredJob, number uint64, position *pecanv1.Position, order []string) {
	streams := plannedStreams(job)
	// An epoch that everybody left half read has had its time when the second one after it begins.
	for _, old := range slices.Clone(job.Epochs) {
		if len(old.Passes) == 0 && old.Epoch+1 < number {
			c.endEpoch(job, old)
		}
	}
	ordered := c.beginPilot(job, number, position, order)
	c.emit(&pecanv1.Record{Kind: &pecanv1.Record_EpochOpened{EpochOpened: &pecanv1.EpochOpened{
		JobId: job.JobId, Epoch: number, Streams: streams, Position: position, Order: slices.Clone(order), OrderStreams: ordered,
	}}})
	c.event("epoch opened", "job", job.JobId, "epoch", number, "streams", streams, "resumed", position != nil, "ordered", len(order) > 0)
}

// openStream finds the stream that a client speaks of. Nil without an error means that the epoch is over: whatever the
// client reports of it is late and right.
func (c *Core) openStream(what, clientID string, id *pecanv1.StreamId) (*pecanv1.StoredJob, *pecanv1.StoredEpoch, *pecanv1.StoredStream, error) {
	job, err := c.member(what, clientID, id.GetJobId())
	if err != nil {
		return nil, nil, nil, err
	}
	epoch := findEpoch(job, id.GetEpoch())
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

// checkLease refuses leases that were never given, and those of other streams.
func checkLease(what string, stream *pecanv1.StoredStream, lease uint64) error {
	if lease == 0 || lease > stream.Lease {
		return reason.New(reason.StaleLease, "%s: stream %d was never leased under lease %d; its newest is %d", what, stream.Stream, lease, stream.Lease)
	}
	return nil
}

// late tells whether a client speaks of an earlier time that a stream was given to it: the call was under way, or repeated,
// while the stream went to others and came back, or was begun anew. An assignment that was never made is refused.
func late(what string, job *pecanv1.StoredJob, stream *pecanv1.StoredStream, lease, assignment uint64) (bool, error) {
	if assignment == 0 || assignment > stream.Assignment {
		return false, reason.New(reason.BadArgument, "%s: stream %d was never given under assignment %d; its newest is %d", what, stream.Stream, assignment, stream.Assignment)
	}
	return assignment < stream.Assignment || lease < stream.Lease && graph.BeginsAnew(job.Plan, job.Options), nil
}

func (c *Core) finishStream(req *pecanv1.FinishStreamRequest) error {
	const what = "finish stream"
	job, epoch, stream, err := c.openStream(what, req.ClientId, req.Id)
	if err != nil || stream == nil {
		return err
	}
	if stream.Delivered && stream.Consumer == req.ClientId && stream.Count == req.Count {
		// Told once more; or the pass began behind its end, and it was never leased.
		return nil
	}
	if err := checkLease(what, stream, req.Lease); err != nil {
		return err
	}
	if late, err := late(what, job, stream, req.Lease, req.Assignment); late || err != nil {
		return err
	}
	if stream.Consumer != req.ClientId {
		return reason.New(reason.StaleLease, "%s: stream %d is not read by client %q", what, stream.Stream, req.ClientId)
	}
	if stream.Delivered {
		return nil
	}
	if req.Abandoned && graph.MayMove(job.Plan, job.Options) {
		return reason.New(reason.BadArgument, "%s: client %q gave up the rest of stream %d of job %q, in whose mode nothing is given up", what, req.ClientId, stream.Stream, job.JobId)
	}
	// An older run that is not this one, since an index says nothing, may have had another number of elements.
	older := req.Lease < stream.Lease && !graph.Repeats(job.Plan)
	if req.Count < stream.StartIndex || stream.Produced && req.Count != stream.Count && !req.Abandoned && !older {
		return reason.New(reason.BadArgument, "%s: client %q counts %d elements in stream %d, which began at %d for it and has %d", what, req.ClientId, req.Count, stream.Stream, stream.StartIndex, stream.Count)
	}
	told := &pecanv1.StreamDelivered{Id: req.Id, Count: req.Count, Truncated: req.Abandoned || older && job.Plan.HasClosing()}
	if told.Truncated {
		told.Produced = c.made(keyOf(req.Id), stream)
		c.warn("a client gave up the rest of a stream", "job", job.JobId, "epoch", epoch.Epoch, "stream", stream.Stream, "lease", req.Lease, "elements", req.Count)
	}
	c.deliver(job, epoch, told)
	return nil
}

// deliver ends a stream at what its consumer has of it. One that was asked back is so too late: nobody waits for the rest any more.
func (c *Core) deliver(job *pecanv1.StoredJob, epoch *pecanv1.StoredEpoch, told *pecanv1.StreamDelivered) {
	c.emit(&pecanv1.Record{Kind: &pecanv1.Record_StreamDelivered{StreamDelivered: told}})
	c.soft(keyOf(told.Id)).moving = false
	if delivered(epoch) {
		c.event("epoch delivered", "job", job.JobId, "epoch", epoch.Epoch, "elements", elements(epoch))
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
	if late, err := late(what, job, stream, req.Lease, req.Assignment); late || err != nil {
		return err
	}
	if stream.Consumer != req.ClientId {
		if stream.Consumer == "" && stream.StartIndex == req.NextIndex {
			// Told once more.
			return nil
		}
		return reason.New(reason.StaleLease, "%s: stream %d is not read by client %q", what, stream.Stream, req.ClientId)
	}
	if stream.Delivered {
		return nil
	}
	if req.NextIndex < stream.StartIndex || stream.Produced && req.NextIndex > stream.Count {
		return reason.New(reason.BadArgument, "%s: next index %d of stream %d is outside of what client %q was given (%d on, %d in all)", what, req.NextIndex, stream.Stream, req.ClientId, stream.StartIndex, stream.Count)
	}
	if private(job) {
		return reason.New(reason.BadArgument, "%s: job %q is private; nobody else could go on with stream %d. Close the epoch instead", what, job.JobId, stream.Stream)
	}
	if req.NextIndex > stream.StartIndex && handsOn(job, stream, req.Lease) {
		c.giveUpRest(job, epoch, stream, req.NextIndex)
		return nil
	}
	c.emit(&pecanv1.Record{Kind: &pecanv1.Record_ConsumerReleased{ConsumerReleased: &pecanv1.ConsumerReleased{
		Id: req.Id, ClientId: req.ClientId, NextIndex: req.NextIndex,
	}}})
	soft := c.soft(keyOf(req.Id))
	if soft.moving && findPass(epoch, soft.moveTo) != nil {
		c.assign(req.Id, stream, soft.moveTo)
	}
	soft.moving = false
	return nil
}

func (c *Core) closeEpoch(req *pecanv1.CloseEpochRequest) error {
	job, err := c.member("close epoch", req.ClientId, req.JobId)
	if err != nil {
		return err
	}
	epoch := findEpoch(job, req.Epoch)
	if epoch == nil && req.Epoch >= job.NextEpoch {
		return reason.New(reason.EpochUnknown, "close epoch: job %q has no epoch %d; its next one is %d", job.JobId, req.Epoch, job.NextEpoch)
	}
	if epoch != nil && findPass(epoch, req.ClientId) != nil && !c.begunAgain(req) {
		c.leaveEpoch(job, epoch, req.ClientId, true)
	}
	return nil
}

// begunAgain tells whether the pass that is open is another one than the one to be closed: the call was repeated, or held up on its way.
func (c *Core) begunAgain(req *pecanv1.CloseEpochRequest) bool {
	for _, known := range slices.Backward(c.state.clients[req.ClientId].Requests) {
		if known.Opened && known.JobId == req.JobId && known.Epoch == req.Epoch {
			return req.RequestId != "" && req.RequestId != known.RequestId
		}
	}
	return false
}

// leaveEpoch takes a client out of an epoch: the streams it read are free for others, and the epoch is over when nobody
// is left who could want the rest. One that closed the epoch itself has released before all that it had something of: a stream that it
// still reads was on its way to it, often the very one that it released, and it had nothing of it.
func (c *Core) leaveEpoch(job *pecanv1.StoredJob, epoch *pecanv1.StoredEpoch, clientID string, closed bool) {
	if !private(job) {
		for _, stream := range epoch.Streams {
			if stream.Consumer == clientID && !stream.Delivered {
				key := streamKey{job.JobId, epoch.Epoch, stream.Stream}
				next := stream.StartIndex
				if !closed {
					// It does not say what it had.
					if handsOn(job, stream, c.soft(key).consumedUnder) {
						c.giveUpRest(job, epoch, stream, stream.StartIndex)
						continue
					}
					next = c.knownIndex(job, key, stream)
				}
				c.emit(&pecanv1.Record{Kind: &pecanv1.Record_ConsumerReleased{ConsumerReleased: &pecanv1.ConsumerReleased{
					Id: key.id(), ClientId: clientID, NextIndex: next,
				}}})
				c.soft(key).moving = false
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
	if len(epoch.Passes) == 0 && (private(job) || delivered(epoch) || epoch.Error != nil) {
		c.endEpoch(job, epoch)
	}
}

// knownIndex is where the next consumer starts after one that left without saying how far it came; see the package's doc.
func (c *Core) knownIndex(job *pecanv1.StoredJob, key streamKey, stream *pecanv1.StoredStream) uint64 {
	soft := c.soft(key)
	index := stream.StartIndex
	if soft.lease == stream.Lease && stream.Worker != nil {
		switch job.Options.GetMode() {
		case pecanv1.Mode_MODE_AT_LEAST_ONCE:
		case pecanv1.Mode_MODE_AT_MOST_ONCE:
			index = max(index, soft.acked, soft.produced)
		default:
			index = max(index, soft.acked)
		}
	}
	if stream.Produced {
		index = min(index, stream.Count)
	}
	return index
}

// endEpoch stops the streams of an epoch and forgets it.
func (c *Core) endEpoch(job *pecanv1.StoredJob, epoch *pecanv1.StoredEpoch) {
	for _, stream := range epoch.Streams {
		if stream.Worker != nil {
			c.takeBack(job, stream.Worker.WorkerId, streamKey{job.JobId, epoch.Epoch, stream.Stream}, 0)
		}
	}
	done := delivered(epoch)
	c.forgetEpoch(job.JobId, epoch)
	c.endWatches(func(w *watchState) bool { return w.job == job.JobId && w.epoch == epoch.Epoch },
		reason.New(reason.EpochUnknown, "watch epoch: epoch %d of job %q is over", epoch.Epoch, job.JobId))
	c.emit(&pecanv1.Record{Kind: &pecanv1.Record_EpochClosed{EpochClosed: &pecanv1.EpochClosed{
		JobId: job.JobId, Epoch: epoch.Epoch, Delivered: done, Elements: elements(epoch), Error: epoch.Error,
		StreamsTruncated: streamsCutOff(epoch), Lost: lostFrom(job, epoch),
	}}})
	c.event("epoch closed", "job", job.JobId, "epoch", epoch.Epoch, "delivered", done, "elements", elements(epoch))
}

// failStream ends the epoch of a stream that has failed for good, with an error that every client of it gets.
func (c *Core) failStream(job *pecanv1.StoredJob, epoch *pecanv1.StoredEpoch, key streamKey, detail *pecanv1.ErrorDetail) {
	if epoch.Error != nil {
		return
	}
	c.failedIn(job, key, detail.GetMessage())
	c.emit(&pecanv1.Record{Kind: &pecanv1.Record_EpochFailed{EpochFailed: &pecanv1.EpochFailed{JobId: job.JobId, Epoch: epoch.Epoch, Error: detail}}})
	c.warn("epoch failed", "job", job.JobId, "epoch", epoch.Epoch, "reason", detail.GetReason(), "error", detail.GetMessage())
}

// failJob ends a job: nothing of it can go on.
func (c *Core) failJob(job *pecanv1.StoredJob, detail *pecanv1.ErrorDetail) {
	if job.Error != nil {
		return
	}
	c.emit(&pecanv1.Record{Kind: &pecanv1.Record_JobFailed{JobFailed: &pecanv1.JobFailed{JobId: job.JobId, Error: detail}}})
	c.warn("job failed", "job", job.JobId, "reason", detail.GetReason(), "error", detail.GetMessage())
}

// allAhead tells whether every pass of an epoch was opened ahead of need and is not adopted: perhaps nobody will ever read it.
func allAhead(epoch *pecanv1.StoredEpoch) bool {
	return len(epoch.Passes) > 0 && !slices.ContainsFunc(epoch.Passes, func(p *pecanv1.StoredPass) bool { return !p.Prefetch })
}

func describe(key streamKey) string {
	return fmt.Sprintf("stream %d of epoch %d of job %s", key.stream, key.epoch, key.job)
}
