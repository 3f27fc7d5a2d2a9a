package core

import (
	"fmt"
	"maps"
	"slices"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/dispatcher/core/jobmetrics"
	"github.com/pecan-ml/pecan/service/dispatcher/core/measure"
)

// fromWorker handles a message of a worker's session.
func (c *Core) fromWorker(in FromWorker) error {
	id, ok := c.sessions[in.Session]
	if !ok {
		return nil
	}
	worker := c.workers[id]
	worker.lastMessage = c.now
	switch kind := in.Message.GetKind().(type) {
	case *pecanv1.WorkerMessage_Heartbeat:
		return c.heartbeat(id, worker, kind.Heartbeat)
	case *pecanv1.WorkerMessage_Started:
		if _, _, stream := c.leased(id, kind.Started.GetId(), kind.Started.GetLease()); stream != nil {
			c.noteOpened(kind.Started.Id.Key(), stream, c.volatileStream(kind.Started.Id.Key()))
		}
	case *pecanv1.WorkerMessage_Ended:
		r := kind.Ended
		job, epoch, stream := c.leased(id, r.GetId(), r.GetLease())
		if stream == nil {
			c.sendStop(id, r.GetId().Key(), r.GetLease())
			return nil
		}
		c.streamProduced(job, epoch, stream, r.Count, r.RemainderRows)
	case *pecanv1.WorkerMessage_StreamsStarted:
		return c.streamsStarted(id, kind.StreamsStarted)
	case *pecanv1.WorkerMessage_StreamsEnded:
		return c.streamsEnded(id, kind.StreamsEnded)
	case *pecanv1.WorkerMessage_Failed:
		c.streamFailed(id, kind.Failed)
	case *pecanv1.WorkerMessage_Stopped:
		c.runStopped(id, kind.Stopped.GetId().Key())
	case *pecanv1.WorkerMessage_CacheSegmentWritten:
		c.segmentWritten(id, kind.CacheSegmentWritten.GetSegment())
	case *pecanv1.WorkerMessage_AskCachePart:
		c.askPart(id, kind.AskCachePart)
	case *pecanv1.WorkerMessage_CacheSegmentInvalid:
		c.segmentInvalid(id, kind.CacheSegmentInvalid)
	case *pecanv1.WorkerMessage_CacheFiles:
		c.findCacheOrphans(id, kind.CacheFiles)
	case *pecanv1.WorkerMessage_Metrics:
		c.reportMetrics(id, kind.Metrics)
	case *pecanv1.WorkerMessage_OrderTried:
		worker.trying = false
		c.orders.Tried(uint64(in.Session), kind.OrderTried, worker.leaving)
	case *pecanv1.WorkerMessage_Goodbye:
		c.loseWorker(id, false, "worker "+id+" said goodbye")
		c.endSession(in.Session, nil)
	case *pecanv1.WorkerMessage_Hello:
		return reason.New(reason.BadArgument, "worker %s: send hello once, as the first message", id)
	}
	return nil
}

// heartbeat notes what a worker reports about itself and its streams.
func (c *Core) heartbeat(id string, worker *workerState, heartbeat *pecanv1.WorkerHeartbeat) error {
	worker.cpuSeconds, worker.residentBytes, worker.cacheMetrics = heartbeat.CpuS, heartbeat.ResidentBytes, heartbeat.Cache
	if heartbeat.Host != nil {
		worker.host = heartbeat.Host
	}
	if heartbeat.Store != nil {
		c.reads.Add(c.now, id, worker.store.GetReads(), heartbeat.Store.Reads)
		c.writes.Add(c.now, id, worker.store.GetWrites(), heartbeat.Store.Writes)
		worker.store = heartbeat.Store
	}
	if worker.leaving = heartbeat.Leaving; worker.leaving {
		c.beginDeparture(id, worker, false)
	}
	c.refreshWorker(id)
	for _, list := range heartbeat.Streams {
		if err := c.streamLoads(id, list); err != nil {
			return err
		}
	}
	worker.totals.Add(c.now, heartbeat)
	c.noteDeparture(id, worker)
	return nil
}

// reportMetrics keeps the totals that a worker reports for a job.
func (c *Core) reportMetrics(workerID string, metrics *pecanv1.JobMetrics) {
	job := c.state.Job(metrics.JobId)
	if job == nil {
		return
	}
	reports := c.profiles[metrics.JobId]
	if reports == nil {
		reports = jobmetrics.NewReports()
		c.profiles[metrics.JobId] = reports
	}
	if worker := c.workers[workerID]; worker != nil {
		worker.totals.Worked(metrics.JobId, metrics.Nodes)
		if usesCaches(job) {
			source := c.sources[job.JobId]
			if source == nil {
				source = &measure.Source{}
				c.sources[job.JobId] = source
			}
			source.Add(c.now, workerID, worker.totals.Read(job.JobId, metrics.Nodes))
		}
	}
	reports.Add(workerID, metrics, func(id string) bool { return c.workers[id] != nil })
}

// usable reports whether a worker may get streams.
func (c *Core) usable(worker *workerState) bool {
	return worker.departure == nil && c.answers(worker)
}

// answers reports whether a worker is connected and was heard recently.
func (c *Core) answers(worker *workerState) bool {
	return !worker.away && c.now-worker.lastMessage <= c.suspectAfter()
}

// sessionEnded gives the worker time to reconnect.
func (c *Core) sessionEnded(session SessionID) {
	id, ok := c.sessions[session]
	if !ok {
		return
	}
	delete(c.sessions, session)
	worker := c.workers[id]
	worker.session, worker.away, worker.awayUntil = 0, true, c.now+c.cfg.ReturnGrace
	c.refreshWorker(id)
	c.touched.workers = true
	for _, held := range c.state.Leases(id) {
		c.touch(held.Epoch)
	}
	c.event("worker away", "worker", id)
	c.orders.LoseTrials(uint64(session), "the connection of worker "+id+" broke", true)
	c.dirty = true
}

// expireWorkers takes the streams of workers that are silent for too long or did not reconnect.
func (c *Core) expireWorkers() {
	why := map[string]string{}
	for id, worker := range c.workers {
		switch {
		case worker.away && c.now >= worker.awayUntil:
			why[id] = "worker " + id + " did not come back"
		case !worker.away && c.now-worker.lastMessage > c.cfg.DeadAfter:
			why[id] = fmt.Sprintf("worker %s was silent for %v", id, (c.now - worker.lastMessage).Round(time.Millisecond))
		}
	}
	for _, id := range slices.Sorted(maps.Keys(why)) {
		c.loseWorker(id, true, why[id])
	}
}

// loseWorker takes all streams from a worker and removes it.
func (c *Core) loseWorker(id string, died bool, why string) {
	worker := c.workers[id]
	if worker == nil {
		return
	}
	delete(c.workers, id)
	c.placements.RemoveWorker(id)
	c.schedule.RemoveWorker(id)
	c.touched.workers, c.touched.updates = true, true
	c.removeStoppingRuns(func(run stoppingRun) bool { return run.worker == id })
	if worker.session != 0 {
		delete(c.sessions, worker.session)
		c.orders.LoseTrials(uint64(worker.session), why, died)
		if died {
			c.endSession(worker.session, reason.New(reason.Unavailable, "worker %s counts as dead: %s; register again", id, why))
		}
	}
	c.event("worker lost", "worker", id, "tcp", worker.address.GetTcp(), "why", why)
	if !died {
		c.endDeparture(id, worker)
	}
	c.dirty = true
	c.state.EachLease(id, func(job *durable.Job, epoch *durable.Epoch, stream *pecanv1.StoredStream) {
		c.loseLeaseWithWorker(keyOf(job, epoch, stream), job, stream, worker, died, why)
	})
	if c.state.HasNumber(id) {
		c.forgetWorker(id)
	}
}

// forgetWorker frees the numbers of a worker that has no leases.
func (c *Core) forgetWorker(id string) {
	c.emit(&pecanv1.Record{Kind: &pecanv1.Record_WorkerForgotten{WorkerForgotten: &pecanv1.WorkerForgotten{WorkerId: id}}})
}

func (c *Core) endSession(session SessionID, err *reason.Error) {
	delete(c.sessions, session)
	c.effect(EndSession{session, err})
}
