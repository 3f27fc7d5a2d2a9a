package core

import (
	"maps"
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
)

// Starts and stops of streams of one epoch that follow each other in a decision are one command to their worker.

// command sends a command to a connected worker. An absent worker lists its streams when it returns, and
// gets the commands then.
func (c *Core) command(workerID string, message *pecanv1.WorkerCommand) {
	if worker := c.workers[workerID]; worker != nil && worker.session != 0 {
		delete(c.starts, worker.session)
		delete(c.stops, worker.session)
		c.effect(Command{worker.session, message})
	}
}

// sendStart starts a stream on a worker, or updates it. A session gets once what the streams of an epoch have in common.
func (c *Core) sendStart(workerID string, start *pecanv1.StartStream) {
	worker := c.workers[workerID]
	if worker == nil || worker.session == 0 {
		return
	}
	c.sendLateStops(workerID)
	key := passKey{start.Id.JobId, start.Id.Epoch}
	list := c.starts[worker.session]
	if list == nil || list.JobId != key.job || list.Epoch != key.epoch || len(list.Streams) >= durable.MaxListed {
		list = &pecanv1.StartStreams{JobId: key.job, Epoch: key.epoch}
		c.command(workerID, &pecanv1.WorkerCommand{Kind: &pecanv1.WorkerCommand_StartStreams{StartStreams: list}})
		c.starts[worker.session] = list
	}
	common := worker.commons[key]
	if common == nil || common.Prefetch != start.Prefetch || common.MayRunInline != start.MayRunInline {
		common = &pecanv1.StartStream{Fingerprint: start.Fingerprint, Plan: start.Plan, Options: start.Options, Components: start.Components, Prefetch: start.Prefetch, MayRunInline: start.MayRunInline}
		worker.commons[key] = common
		if len(list.Streams) > 0 {
			list = &pecanv1.StartStreams{JobId: key.job, Epoch: key.epoch}
			c.command(workerID, &pecanv1.WorkerCommand{Kind: &pecanv1.WorkerCommand_StartStreams{StartStreams: list}})
			c.starts[worker.session] = list
		}
		list.Common = common
	}
	list.Streams = append(list.Streams, start.Without(common))
}

// lateStop is a stop of a stream that has ended. It is not urgent: the worker only forgets the stream.
type lateStop struct {
	key   pecanv1.StreamKey
	lease uint64
}

// sendAllLateStops sends the stops that no start has taken along.
func (c *Core) sendAllLateStops() {
	var late []string
	for id, worker := range c.workers {
		if len(worker.stops) > 0 {
			late = append(late, id)
		}
	}
	slices.Sort(late)
	for _, id := range late {
		c.sendLateStops(id)
	}
}

func (c *Core) sendLateStops(workerID string) {
	worker := c.workers[workerID]
	stops := worker.stops
	worker.stops = nil
	for _, late := range stops {
		c.sendStop(workerID, late.key, late.lease)
	}
}

// openStops is a list of stops to which further ones of the same epoch can be added.
type openStops struct {
	list          *pecanv1.StopStreams
	stream, lease uint64
}

// sendStop stops a stream on a worker.
func (c *Core) sendStop(workerID string, key pecanv1.StreamKey, lease uint64) {
	worker := c.workers[workerID]
	if worker == nil || worker.session == 0 {
		return
	}
	open := c.stops[worker.session]
	if open == nil || open.list.JobId != key.Job || open.list.Epoch != key.Epoch || len(open.list.Streams) >= durable.MaxListed {
		open = &openStops{list: &pecanv1.StopStreams{JobId: key.Job, Epoch: key.Epoch}}
		c.command(workerID, &pecanv1.WorkerCommand{Kind: &pecanv1.WorkerCommand_StopStreams{StopStreams: open.list}})
		c.stops[worker.session] = open
	}
	open.list.Streams = append(open.list.Streams, int64(uint64(key.Stream)-open.stream))
	open.list.Leases = append(open.list.Leases, int64(lease-open.lease))
	open.stream, open.lease = uint64(key.Stream), lease
}

// sendOver stops all streams of an epoch on the workers that know it.
func (c *Core) sendOver(epoch *durable.Epoch) {
	key := passKey{epoch.Job.JobId, epoch.Epoch}
	receivers := map[string]bool{}
	for _, stream := range epoch.Active() {
		if stream.Worker != nil {
			receivers[stream.Worker.WorkerId] = true
		}
	}
	for id, worker := range c.workers {
		if worker.commons[key] != nil {
			receivers[id] = true
			delete(worker.commons, key)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(receivers)) {
		c.command(id, &pecanv1.WorkerCommand{Kind: &pecanv1.WorkerCommand_StopStreams{StopStreams: &pecanv1.StopStreams{JobId: key.job, Epoch: key.epoch, Over: true}}})
	}
}
