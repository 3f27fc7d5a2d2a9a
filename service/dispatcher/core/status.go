package core

import (
	"maps"
	"slices"
	"sync"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
)

// Status returns what an operator sees at the time now. The caller adds its version, work directory and uptime.
func (c *Core) Status(now time.Duration) *pecanv1.StatusResponse {
	c.advance(now)
	status := &pecanv1.StatusResponse{ClusterId: c.state.ClusterID(), Clients: int32(c.state.Clients())}
	status.Provider = c.fleet.Status()
	for _, id := range slices.Sorted(maps.Keys(c.workers)) {
		status.Workers = append(status.Workers, c.workerStatus(id))
	}
	busy := sync.OnceValue(c.runningStreams)
	for _, job := range c.state.Jobs() {
		status.Jobs = append(status.Jobs, c.jobStatus(job, busy))
	}
	status.Tenants = c.tenantsStatus(status.Jobs)
	for _, id := range c.state.DatasetIDs() {
		dataset := c.state.Dataset(id)
		status.Datasets = append(status.Datasets, &pecanv1.DatasetStatus{DatasetId: id, Fingerprint: dataset.Fingerprint, GraphBytes: dataset.GraphBytes})
	}
	return status
}

func (c *Core) workerStatus(id string) *pecanv1.WorkerStatus {
	worker := c.workers[id]
	status := &pecanv1.WorkerStatus{
		Address: worker.address, State: c.workerStateName(worker), MaxStreams: worker.maxStreams, Cores: worker.cores,
		TensorflowVersion: worker.tensorflow, Kind: worker.kind, CpuS: worker.cpuSeconds, ResidentBytes: worker.residentBytes,
		LastHeartbeatS: (c.now - worker.lastMessage).Seconds(), Caches: worker.caches, Cache: worker.cacheMetrics, Store: worker.store, Host: worker.host,
	}
	if rates, known := worker.totals.Rates("", c.now-c.recentReports()); known {
		status.Busy, status.Cpu, status.SentBytesS = rates.Busy, rates.CPU, rates.Bytes
	}
	c.state.EachLease(id, func(job *durable.Job, epoch *durable.Epoch, stream *pecanv1.StoredStream) {
		status.Streams = append(status.Streams, &pecanv1.HeldStream{
			Id:    keyOf(job, epoch, stream).ID(),
			Lease: stream.Lease, Ended: stream.Produced, Count: stream.Count, RemainderRows: stream.RemainderRows,
		})
	})
	return status
}

func (c *Core) workerStateName(worker *workerState) string {
	switch {
	case worker.away:
		return "away"
	case worker.departure != nil:
		return "leaving"
	case !c.usable(worker):
		return "suspect"
	}
	return "connected"
}

func (c *Core) jobStatus(job *durable.Job, busy func() int) *pecanv1.JobStatus {
	status := &pecanv1.JobStatus{
		JobId: job.JobId, Name: job.Name, DatasetId: job.DatasetId, Options: job.Options, Plan: job.Plan, Clients: job.ClientIds,
	}
	for _, closed := range job.Closed {
		word := "given up"
		if closed.Delivered {
			word = "delivered"
		} else if closed.Error != nil {
			word = "failed: " + closed.Error.Message
		}
		status.Epochs = append(status.Epochs, &pecanv1.EpochStatus{
			Epoch: closed.Epoch, State: word, Elements: closed.Elements, StreamsTruncated: closed.StreamsTruncated, Lost: closed.Lost,
			Ordered: closed.Ordered, OrderedStreams: closed.OrderedStreams, OrderedFrom: closed.OrderedFrom, OrderedBelow: closed.OrderedBelow, CachedStep: closed.CachedStep,
		})
	}
	for _, epoch := range job.Epochs {
		status.Epochs = append(status.Epochs, c.epochStatus(job, epoch, busy))
	}
	sum := c.profiles[job.JobId].Totals()
	status.Nodes, status.Recovery = sum.Nodes.List(), sum.Recovery
	status.Cache, status.Order = c.cacheStatus(job), c.orders.Status(job)
	usage := c.schedule.OfJob(job)
	status.Running, status.Bounded = uint32(usage.Running), usage.Bounded
	c.placements.Show(job, status)
	return status
}

func (c *Core) epochStatus(job *durable.Job, epoch *durable.Epoch, busy func() int) *pecanv1.EpochStatus {
	status := &pecanv1.EpochStatus{
		Epoch: epoch.Epoch, StreamsTruncated: epoch.StreamsTruncated(), Lost: durable.Lost(job, epoch),
		Ordered: len(epoch.Order) > 0, OrderedStreams: epoch.OrderStreams, OrderedFrom: epoch.OrderFrom, OrderedBelow: epoch.OrderBelow, CachedStep: epoch.CachedStep,
	}
	if state := c.epochs[passKey{job.JobId, epoch.Epoch}]; state != nil {
		status.StreamsPut, status.StreamsGet = state.puts, state.gets
	}
	status.Waiting, _ = c.waitingReason(job, epoch, "", busy)
	status.StreamsDone, status.StreamsRunning, status.Elements = epoch.DeliveredStreams(), uint32(epoch.Held()), c.elementsArrived(epoch)
	status.StreamsWaiting = epoch.Total() - status.StreamsDone - status.StreamsRunning
	for _, pass := range epoch.Passes {
		if known := c.passOf(epoch, pass.ClientId); known != nil {
			report := known.report
			status.Passes = append(status.Passes, &pecanv1.PassStatus{
				ClientId: pass.ClientId, Starved: report.GetStarved(), Elements: report.GetElements(), Bytes: report.GetBytes(),
				WaitedS: report.GetWaitedS(), DuplicatesDropped: report.GetDuplicatesDropped(),
			})
		}
	}
	switch {
	case job.Error != nil:
		status.State = "failed: " + job.Error.Message
	case epoch.Error != nil:
		status.State = "failed: " + epoch.Error.Message
	case epoch.Delivered():
		status.State = "delivered"
	case len(epoch.Passes) == 0:
		status.State = "left"
	case durable.AllPrefetched(epoch):
		status.State = "ahead"
	default:
		status.State = "open"
	}
	return status
}

// elementsArrived counts the elements of an epoch that trainers have received, as far as workers that run its streams know.
func (c *Core) elementsArrived(epoch *durable.Epoch) uint64 {
	elements := epoch.Elements()
	for _, stream := range epoch.Active() {
		volatileStream := c.findVolatile(keyOf(epoch.Job, epoch, stream))
		if !stream.Delivered && stream.Worker != nil && volatileStream != nil && volatileStream.lease == stream.Lease {
			elements += max(volatileStream.acked, stream.StartIndex)
		}
	}
	return elements
}
