package core

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/crashguard"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/dispatcher/core/schedule"
	"github.com/pecan-ml/pecan/service/graph/split"
)

// addStreamsOfOffMode gives each worker its own stream in MODE_OFF, until one stream has ended.
func (c *Core) addStreamsOfOffMode() {
	connected := 0
	for _, worker := range c.workers {
		if !worker.away {
			connected++
		}
	}
	for _, job := range c.state.Jobs() {
		if job.Options.GetMode() != pecanv1.Mode_MODE_OFF || job.Error != nil {
			continue
		}
		for _, epoch := range job.Epochs {
			if epoch.Error != nil || len(epoch.Passes) == 0 || schedule.Final(job, epoch) {
				continue
			}
			for len(epoch.Streams) < connected {
				key := streamKey{job.JobId, epoch.Epoch, uint32(len(epoch.Streams))}
				c.emit(&pecanv1.Record{Kind: &pecanv1.Record_StreamAdded{StreamAdded: &pecanv1.StreamAdded{Id: key.id()}}})
			}
		}
	}
}

// assignLeases leases waiting streams to workers. Package schedule decides which.
func (c *Core) assignLeases() {
	round := schedule.Round{
		Jobs: c.state.Jobs(), Positions: len(c.cfg.WorkerAddresses), Starting: c.now < c.cfg.DeadAfter,
		Ready: c.readyStreams, Grant: c.grantLease,
		Avoid: func(job *pecanv1.StoredJob, epoch *pecanv1.StoredEpoch, stream *pecanv1.StoredStream) []string {
			if volatileStream := c.streams[streamKey{job.JobId, epoch.Epoch, stream.Stream}]; volatileStream != nil {
				return volatileStream.avoid
			}
			return nil
		},
	}
	for _, id := range slices.Sorted(maps.Keys(c.workers)) {
		worker := c.workers[id]
		round.Workers = append(round.Workers, &schedule.Worker{
			ID: id, Usable: c.usable(worker), MaxStreams: int(worker.maxStreams), Order: worker.order, Position: c.listPosition(worker.address.GetTcp()),
		})
	}
	round.Run()
}

// readyStreams returns the waiting streams of an epoch that may be leased now.
func (c *Core) readyStreams(job *pecanv1.StoredJob, epoch *pecanv1.StoredEpoch) func(*pecanv1.StoredStream) bool {
	first := c.openingTrial(job, epoch)
	return func(stream *pecanv1.StoredStream) bool {
		return (first == nil || first == stream || stream.OpeningCrashes == 0) && len(c.closingRunsOf(job, stream)) == 0
	}
}

// grantLease leases a waiting stream to a worker under a new number.
func (c *Core) grantLease(job *pecanv1.StoredJob, epoch *pecanv1.StoredEpoch, stream *pecanv1.StoredStream, id string) {
	key := streamKey{job.JobId, epoch.Epoch, stream.Stream}
	c.emit(&pecanv1.Record{Kind: &pecanv1.Record_LeaseGranted{LeaseGranted: &pecanv1.LeaseGranted{
		Id: key.id(), Lease: c.nextLease(), Worker: c.workers[id].address, Restart: stream.Lease > 0 && split.RestartsFromStart(job.Plan, job.Options),
	}}})
	volatileStream := c.volatileStream(key)
	volatileStream.newLease(stream.Lease, c.now)
	if !split.IsRepeatable(job.Plan) {
		// Readers received elements of another run.
		volatileStream.ackedBelow, volatileStream.cleanBelow = 0, 0
	}
	if !stream.Delivered && stream.Consumer != "" && durable.FindPass(epoch, stream.Consumer) == nil {
		// The client that read the stream to its end has left. The stream is sent again.
		c.emit(&pecanv1.Record{Kind: &pecanv1.Record_ConsumerReleased{ConsumerReleased: &pecanv1.ConsumerReleased{Id: key.id(), ClientId: stream.Consumer}}})
	}
	c.command(id, c.startCommand(job, epoch, stream))
	c.event("lease granted", "job", key.job, "epoch", key.epoch, "stream", key.stream, "lease", stream.Lease, "worker", id)
}

// nextLease returns a number that no lease had, not even one that the store has lost.
func (c *Core) nextLease() uint64 { return max(c.state.LastLease(), c.leaseFloor) + 1 }

func (c *Core) startCommand(job *pecanv1.StoredJob, epoch *pecanv1.StoredEpoch, stream *pecanv1.StoredStream) *pecanv1.WorkerCommand {
	key := streamKey{job.JobId, epoch.Epoch, stream.Stream}
	dataset := c.state.Dataset(job.DatasetId)
	start := &pecanv1.StartStream{
		Id: key.id(), Lease: stream.Lease, Fingerprint: dataset.GetFingerprint(), Plan: c.planOf(job, epoch, stream.Stream), Options: job.Options,
		Components: dataset.GetSpec().GetComponents(), Prefetch: durable.AllPrefetched(epoch),
		DeliveredBelow: stream.StartIndex, RemainderOnly: stream.Delivered, CleanBelow: c.volatileStream(key).cleanBelow, AckedBelow: c.volatileStream(key).ackedBelow,
		Cache: c.cacheAction(job, stream), CrashGuard: crashguard.Of(stream), OpenExclusive: stream.OpeningCrashes > 0,
	}
	if stream.Delivered {
		start.DeliveredBelow = stream.Count
	}
	if durable.IsClosing(job, stream) {
		start.Closing = true
		for _, source := range epoch.Streams[:len(epoch.Streams)-1] {
			start.Remainders = append(start.Remainders, &pecanv1.RemainderSource{
				Stream: source.Stream, Lease: source.Lease, Worker: source.Worker, Ready: source.Produced || source.Truncated, Rows: source.RemainderRows,
			})
		}
		c.volatileStream(key).remainders = start
	}
	return &pecanv1.WorkerCommand{Kind: &pecanv1.WorkerCommand_Start{Start: start}}
}

// planOf returns the plan of a stream for all its runs: the job's plan, in the order of its epoch if the stream has
// that order.
func (c *Core) planOf(job *pecanv1.StoredJob, epoch *pecanv1.StoredEpoch, stream uint32) *pecanv1.Plan {
	if !durable.HasOrder(epoch, stream) {
		return job.Plan
	}
	key := passKey{job.JobId, epoch.Epoch}
	if c.orderedPlans[key] == nil {
		plan := proto.Clone(job.Plan).(*pecanv1.Plan)
		plan.Order = epoch.Order
		c.orderedPlans[key] = plan
	}
	return c.orderedPlans[key]
}

// pushRemainders tells the workers of closing streams what changed about the streams that they wait for.
func (c *Core) pushRemainders() {
	for _, job := range c.state.Jobs() {
		if !job.Plan.HasClosing() {
			continue
		}
		for _, epoch := range job.Epochs {
			if len(epoch.Streams) == 0 {
				continue
			}
			stream := epoch.Streams[len(epoch.Streams)-1]
			if stream.Worker == nil || stream.Produced {
				continue
			}
			volatileStream := c.volatileStream(streamKey{job.JobId, epoch.Epoch, stream.Stream})
			sent := volatileStream.remainders
			command := c.startCommand(job, epoch, stream)
			if sent == nil || !sameRemainders(sent.Remainders, command.GetStart().Remainders) {
				c.command(stream.Worker.WorkerId, command)
			}
		}
	}
}

func sameRemainders(a, b []*pecanv1.RemainderSource) bool {
	return slices.EqualFunc(a, b, func(x, y *pecanv1.RemainderSource) bool { return proto.Equal(x, y) })
}
