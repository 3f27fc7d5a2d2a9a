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
	for _, epoch := range c.offEpochs() {
		if epoch.Job.Error != nil || epoch.Error != nil || len(epoch.Passes) == 0 || schedule.Final(epoch) {
			continue
		}
		connected := 0
		locals, only := c.placements.Locals(epoch.Job)
		for id, worker := range c.workers {
			if !worker.away && (locals[id] || !only && worker.kind != "local") {
				connected++
			}
		}
		for int(epoch.Total()) < connected {
			key := pecanv1.StreamKey{Job: epoch.Job.JobId, Epoch: epoch.Epoch, Stream: epoch.Total()}
			c.emit(&pecanv1.Record{Kind: &pecanv1.Record_StreamAdded{StreamAdded: &pecanv1.StreamAdded{Id: key.ID()}}})
		}
	}
}

// offEpochs returns the epochs in MODE_OFF that may need more streams.
func (c *Core) offEpochs() (list []*durable.Epoch) {
	off := func(job *durable.Job) bool { return job.Options.GetMode() == pecanv1.Mode_MODE_OFF }
	if c.touched.workers {
		for _, job := range c.state.Jobs() {
			if off(job) {
				list = append(list, job.Epochs...)
			}
		}
		return list
	}
	for _, epoch := range c.touchedEpochs() {
		if off(epoch.Job) {
			list = append(list, epoch)
		}
	}
	return list
}

// Grant implements schedule.Host.
func (h scheduleHost) Grant(epoch *durable.Epoch, stream uint32, workerID string) {
	h.c.grantLease(epoch, stream, workerID)
}

// grantLease leases a waiting stream to a worker under a new number.
func (c *Core) grantLease(epoch *durable.Epoch, number uint32, id string) {
	job := epoch.Job
	restart := epoch.Stream(number).Lease > 0 && split.RestartsFromStart(job.Plan, job.Options)
	c.emitGrant(epoch, number, c.nextLease(), c.workers[id].number, restart)
	stream := epoch.Find(number)
	key := keyOf(job, epoch, stream)
	volatileStream := c.volatileStream(key)
	volatileStream.newLease(stream.Lease, c.now)
	if !split.IsRepeatable(job.Plan) {
		// Readers received elements of another run.
		volatileStream.ackedBelow, volatileStream.cleanBelow = 0, 0
	}
	if !stream.Delivered && stream.Consumer != "" && durable.FindPass(epoch, stream.Consumer) == nil {
		// The client that read the stream to its end has left. The stream is sent again.
		c.emit(&pecanv1.Record{Kind: &pecanv1.Record_ConsumerReleased{ConsumerReleased: &pecanv1.ConsumerReleased{Id: key.ID(), ClientId: stream.Consumer}}})
	}
	start := c.startOf(job, epoch, stream)
	if state := c.volatileEpoch(passKey{job.JobId, epoch.Epoch}); len(start.Cache.GetSegments()) > 0 {
		state.gets++
	} else if start.Cache != nil {
		state.puts++
	}
	if step, _ := storedStep(epoch, number); step != nil && !job.Plan.IsClosing(number) && len(start.Cache.GetSegments()) < len(partsOf(epoch, step, number)) {
		c.volatileEpoch(passKey{job.JobId, epoch.Epoch}).computes++
	}
	c.noteComputed(epoch, number)
	c.sendStart(id, start)
	if !epoch.KeepsAll() {
		return
	}
	c.event("lease granted", "job", key.Job, "epoch", key.Epoch, "stream", key.Stream, "lease", stream.Lease, "worker", id)
}

// nextLease returns a number that no lease had, not even one that the store has lost.
func (c *Core) nextLease() uint64 { return max(c.state.LastLease(), c.leaseFloor) + 1 }

// startOf returns the whole command for a stream.
func (c *Core) startOf(job *durable.Job, epoch *durable.Epoch, stream *pecanv1.StoredStream) *pecanv1.StartStream {
	key := keyOf(job, epoch, stream)
	dataset := c.state.Dataset(job.DatasetId)
	start := &pecanv1.StartStream{
		Id: key.ID(), Lease: stream.Lease, Fingerprint: dataset.GetFingerprint(), Plan: c.planOf(job, epoch, stream.Stream), Options: job.Options,
		Components: dataset.GetSpec().GetComponents(), Prefetch: durable.AllPrefetched(epoch), MayRunInline: c.orders.MayRunInline(job),
		DeliveredBelow: stream.StartIndex, RemainderOnly: stream.Delivered, CleanBelow: c.volatileStream(key).cleanBelow, AckedBelow: c.volatileStream(key).ackedBelow,
		Cache: c.cacheAction(epoch, stream), CrashGuard: crashguard.Of(stream), OpenExclusive: stream.OpeningCrashes > 0,
	}
	if stream.Delivered {
		start.DeliveredBelow = stream.Count
	}
	if job.Plan.IsClosing(stream.Stream) {
		start.Closing, start.Remainders = true, remaindersOf(epoch, stream.Stream)
		c.volatileStream(key).remainders = start
	}
	return start
}

// planOf returns the plan of a stream for all its runs. It is the job's plan, in the order of the epoch if the stream has
// that order.
func (c *Core) planOf(job *durable.Job, epoch *durable.Epoch, stream uint32) *pecanv1.Plan {
	if !durable.HasOrder(epoch, stream) {
		return job.Plan
	}
	state := c.volatileEpoch(passKey{job.JobId, epoch.Epoch})
	if state.orderedPlan == nil {
		state.orderedPlan = proto.Clone(job.Plan).(*pecanv1.Plan)
		state.orderedPlan.Order = epoch.Order
	}
	return state.orderedPlan
}

// pushRemainders tells the workers of closing streams what changed about the streams that they wait for.
func (c *Core) pushRemainders() {
	closings := map[*durable.Epoch]map[uint32]bool{}
	for _, epoch := range c.touchedEpochs() {
		closings[epoch] = c.closingsOf(epoch)
	}
	for _, epoch := range c.touchedEpochs() {
		for _, later := range joining(epoch) {
			if closings[later] == nil {
				closings[later] = map[uint32]bool{}
			}
			last, _ := later.Job.Plan.LastClosing()
			closings[later][last] = true
		}
	}
	for _, epoch := range slices.SortedFunc(maps.Keys(closings), compareEpochs) {
		for _, number := range slices.Sorted(maps.Keys(closings[epoch])) {
			stream := epoch.Find(number)
			if stream == nil || stream.Worker == nil || stream.Produced {
				continue
			}
			volatileStream := c.volatileStream(keyOf(epoch.Job, epoch, stream))
			sent := volatileStream.remainders
			start := c.startOf(epoch.Job, epoch, stream)
			if sent == nil {
				c.sendStart(stream.Worker.WorkerId, start)
				continue
			}
			var changed []*pecanv1.RemainderSource
			for i, source := range start.Remainders {
				if !sameSource(source, sent.Remainders[i]) {
					changed = append(changed, source)
				}
			}
			if changed != nil {
				update := start.Without(nil).With(start.Id, start)
				update.Remainders, update.RemaindersChanged = changed, true
				c.sendStart(stream.Worker.WorkerId, update)
			}
		}
	}
}

func sameSource(a, b *pecanv1.RemainderSource) bool {
	return a.Lease == b.Lease && a.Ready == b.Ready && a.Rows == b.Rows && (a.Worker == b.Worker || proto.Equal(a.Worker, b.Worker))
}

// closingsOf returns the closing streams of an epoch to which a change in it may matter.
func (c *Core) closingsOf(epoch *durable.Epoch) map[uint32]bool {
	t, closings := c.touched.epochs[epoch], map[uint32]bool{}
	if !epoch.Job.Plan.HasClosing() {
		return nil
	}
	for stream := range t.streams {
		if epoch.Job.Plan.IsClosing(stream) {
			closings[stream] = true
		}
		if closing, exists := epoch.Job.Plan.ClosingOf(stream); exists {
			closings[closing] = true
		}
	}
	return closings
}
