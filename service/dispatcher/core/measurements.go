package core

import (
	"cmp"
	"slices"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/dispatcher/core/measure"
)

// recentTime is the time that status and metrics look back.
const recentTime = 5 * time.Second

// reportConsumer keeps what a client's newest heartbeat reports of its training loop and of its host.
func (c *Core) reportConsumer(req *pecanv1.ClientHeartbeatRequest, client *clientState) {
	// A client does not move. If one said so in each heartbeat, the workers of its jobs would be chosen again each time.
	if host, trainer := cmp.Or(client.hostID, req.HostId), cmp.Or(client.trainerID, req.TrainerId); client.hostID != host || client.trainerID != trainer {
		client.hostID, client.trainerID = host, trainer
		for _, id := range c.jobsOf(req.ClientId) {
			c.trainersChanged(c.state.Job(id))
		}
	}
	client.mayRun = req.LocalWorkers
	if req.Host != nil {
		client.host = req.Host
	}
	client.consumed.Add(c.now, req.SubWindows)
}

// reportTotals keeps the totals and the host of a worker's heartbeat, after the progress of its streams.
func (c *Core) reportTotals(worker *workerState, heartbeat *pecanv1.WorkerHeartbeat) {
	if heartbeat.Host != nil {
		worker.host = heartbeat.Host
	}
	worker.totals.Add(c.now, heartbeat)
}

// countProduced counts the elements of a stream that its worker has produced since its last report.
func (c *Core) countProduced(key pecanv1.StreamKey, stream *pecanv1.StoredStream, produced uint64) {
	worker := c.workers[stream.Worker.GetWorkerId()]
	if worker == nil {
		return
	}
	before := c.volatileStreamNow(key, stream)
	counted := before.produced
	if counted == 0 {
		// The run may have begun at an index that readers have reached.
		counted = max(before.ackedBelow, stream.StartIndex)
	}
	if produced > counted {
		worker.totals.Produced(key.Job, produced-counted)
	}
}

// forgetMeasurements drops what workers produced for a job.
func (c *Core) forgetMeasurements(jobID string) {
	for _, worker := range c.workers {
		worker.totals.Forget(jobID)
	}
}

// consumersStatus returns the trainers of a job that have read in the last seconds, and how fast.
func (c *Core) consumersStatus(job *durable.Job) (list []*pecanv1.ConsumerStatus) {
	for _, id := range slices.Sorted(slices.Values(job.ClientIds)) {
		client := c.clients[id]
		if client == nil {
			continue
		}
		subs := client.consumed.Since(c.now - recentTime)
		if len(subs) == 0 {
			continue
		}
		list = append(list, &pecanv1.ConsumerStatus{
			ClientId: id, HostId: client.hostID, ElementS: measure.Median(subs, measure.SubWindow.ElementTime), Wait: measure.Median(subs, measure.SubWindow.Wait),
			Queue: measure.Median(subs, func(s measure.SubWindow) float64 { return s.Queue }), SubWindows: uint32(len(subs)), Host: client.host,
		})
	}
	return list
}
