package core

import (
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/dispatcher/core/fleet"
	"github.com/pecan-ml/pecan/service/graph/split"
	"maps"
	"slices"
)

// stepFleet asks the provider for the workers that jobs want. A worker is asked to leave before the provider removes it.
func (c *Core) stepFleet() {
	if !c.fleet.Provided() {
		return
	}
	wanted, keep := c.placements.WantedRemote()
	request := c.fleet.Decide(c.now, wanted, keep, c.remoteWorkers)
	if c.fleet.AnyLeaves() {
		for _, id := range slices.Sorted(maps.Keys(c.workers)) {
			c.askToLeave(id)
		}
	}
	if request != nil {
		c.effect(*request)
		c.event("workers requested", "desired", request.Desired, "leaving", len(request.Leaving), "wanted", wanted)
	}
}

// remoteWorkers returns the remote workers with what they would have to hand over.
func (c *Core) remoteWorkers() (list []fleet.Worker) {
	for _, id := range slices.Sorted(maps.Keys(c.workers)) {
		worker := c.workers[id]
		if worker.kind == "local" {
			continue
		}
		w := fleet.Worker{ID: id, Address: worker.address.GetTcp(), Order: worker.order}
		c.state.EachLease(id, func(job *durable.Job, _ *durable.Epoch, stream *pecanv1.StoredStream) {
			if stream.Delivered {
				return
			}
			w.Streams++
			if !split.MovesAtOnce(job.Plan, job.Options) {
				w.Fixed++
			}
		})
		list = append(list, w)
	}
	return list
}

// askToLeave asks a worker to leave if the fleet has chosen it.
func (c *Core) askToLeave(id string) {
	worker := c.workers[id]
	if worker.departure != nil || worker.session == 0 || worker.kind == "local" || !c.fleet.Leaves(worker.address.GetTcp()) {
		return
	}
	c.beginDeparture(id, worker, true)
	c.command(id, &pecanv1.WorkerCommand{Kind: &pecanv1.WorkerCommand_Leave{Leave: &pecanv1.Leave{
		Why: "fewer workers are wanted", DrainTimeoutS: c.cfg.Fleet.Drain.Seconds(),
	}}})
	c.event("worker asked to leave", "worker", id, "tcp", worker.address.GetTcp())
}

// RemoteWorkers counts the registered remote workers that may get streams.
func (c *Core) RemoteWorkers() (n int) {
	for _, worker := range c.workers {
		if worker.kind != "local" && c.usable(worker) {
			n++
		}
	}
	return n
}
