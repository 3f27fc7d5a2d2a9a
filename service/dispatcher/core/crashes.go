package core

import (
	"cmp"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/crashguard"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/dispatcher/core/schedule"
	"github.com/pecan-ml/pecan/service/graph/split"
)

// markElements keeps a worker's crash mark: the elements that it is about to compute.
func (c *Core) markElements(r *pecanv1.MarkElementsRequest) {
	job, _, stream := c.leased(r.WorkerId, r.Id, r.Lease)
	worker := c.workers[r.WorkerId]
	if stream == nil || worker == nil {
		return
	}
	key := r.Id.Key()
	volatileStream := c.volatileStreamNow(key, stream)
	if r.Number != 0 && r.Number <= volatileStream.markNumber {
		return
	}
	volatileStream.markNumber = r.Number
	if r.Opening {
		c.setAlone(worker, key)
		volatileStream.mark = nil
		return
	}
	c.noteOpened(key, stream, volatileStream)
	volatileStream.produced, volatileStream.mark = max(volatileStream.produced, r.First), r
	if r.Below <= r.First && !r.ReadAhead {
		volatileStream.mark = nil
	}
	if r.Exclusive {
		c.setAlone(worker, key)
	}
	if stream.Serial && !r.ReadAhead && r.First >= stream.SuspectBelow+stream.InFlight && mayRestart(job) {
		c.stopRun(job, r.WorkerId, key, stream.Lease)
		c.emit(&pecanv1.Record{Kind: &pecanv1.Record_LeaseLost{LeaseLost: &pecanv1.LeaseLost{
			Id: key.ID(), Lease: stream.Lease, Cause: pecanv1.LeaseLost_MOVED, Progress: r.First, Why: "the suspected elements did no harm",
		}}})
	}
}

// mayRestart reports whether a run may be ended for the sole reason that another run of the stream would be faster.
func mayRestart(job *durable.Job) bool {
	return split.MayMove(job.Plan, job.Options) && !split.RestartsFromStart(job.Plan, job.Options) && !job.Plan.GetWritesFiles()
}

// setAlone notes that a worker now computes suspicious elements of one stream alone. The worker has passed the marked
// elements of the stream that had the lock earlier.
func (c *Core) setAlone(worker *workerState, key pecanv1.StreamKey) {
	if worker.exclusive != nil && *worker.exclusive != key {
		previous := c.volatileStream(*worker.exclusive)
		if mark := previous.mark; mark != nil && mark.ReadAhead {
			previous.mark = &pecanv1.MarkElementsRequest{First: mark.Below, Below: mark.Below, ReadAhead: true, Files: mark.Files}
		} else {
			previous.mark = nil
		}
	}
	worker.exclusive = &key
}

// reportCrash keeps a worker's report of its own crash. Its streams move when its session ends.
func (c *Core) reportCrash(r *pecanv1.ReportCrashRequest) {
	worker := c.workers[r.WorkerId]
	if worker == nil {
		return
	}
	worker.crash = r.Cause
	for _, load := range r.Running {
		if _, _, stream := c.leased(r.WorkerId, load.GetId(), load.GetLease()); stream != nil {
			c.noteProgress(load.Id.Key(), stream, progress{produced: load.Produced, acked: load.Acked, cleanBelow: load.CleanBelow, opened: load.Opened})
		}
	}
	for _, one := range r.Opening {
		_, _, stream := c.leased(r.WorkerId, one.GetId(), one.GetLease())
		if stream == nil {
			continue
		}
		volatileStream := c.volatileStreamNow(one.Id.Key(), stream)
		volatileStream.crashed = true
	}
	c.warn("worker crashed", "worker", r.WorkerId, "cause", r.Cause, "opening", len(r.Opening))
}

// A stream may kill workers before it has an element: native code crashes while the worker imports the graph or
// creates the iterator. Workers report what they were opening. One such stream is then leased before the others
// of its epoch, and its worker opens it alone. The third crash fails the job. Opening a stream resets its count;
// a death without a report does not change it.

// openingCrashes counts the workers in a row that crashed while they opened a stream, when its lease ends.
func (c *Core) openingCrashes(key pecanv1.StreamKey, stream *pecanv1.StoredStream) uint32 {
	switch {
	case c.diedOpening(key, stream):
		return stream.OpeningCrashes + 1
	case c.opened(key, stream):
		return 0
	}
	return stream.OpeningCrashes
}

// diedOpening reports whether the worker of a stream reported a crash while it opened the stream.
func (c *Core) diedOpening(key pecanv1.StreamKey, stream *pecanv1.StoredStream) bool {
	volatileStream := c.volatileStream(key)
	return volatileStream.lease == stream.Lease && volatileStream.crashed
}

// opened reports whether the worker of a stream is known to have opened it.
func (c *Core) opened(key pecanv1.StreamKey, stream *pecanv1.StoredStream) bool {
	volatileStream := c.volatileStream(key)
	return stream.Worker != nil && (stream.Produced || volatileStream.lease == stream.Lease && volatileStream.started)
}

// openingTrial returns the one stream of an epoch that is opened now, among those that crashed workers while they
// opened them; nil without one. The others wait, or each worker would die of another stream.
func (c *Core) openingTrial(epoch *durable.Epoch) (first *pecanv1.StoredStream) {
	if epoch.OpeningCrashed() == 0 {
		return nil
	}
	for _, stream := range epoch.Active() {
		switch {
		case stream.OpeningCrashes == 0 || !schedule.Needed(epoch, stream) || c.opened(keyOf(epoch.Job, epoch, stream), stream):
		case stream.Worker != nil:
			return stream
		case first == nil || stream.OpeningCrashes > first.OpeningCrashes:
			first = stream
		}
	}
	return first
}

// crashLimits returns the limits of the configuration.
func (c *Core) crashLimits() crashguard.Limits {
	return crashguard.Limits{Crashes: c.cfg.MaxCrashes, Deaths: c.cfg.MaxDeaths}
}

// suspects returns the elements of a stream that may have killed its worker.
func (c *Core) suspects(key pecanv1.StreamKey, stream *pecanv1.StoredStream, crashed bool) (crashguard.Suspects, bool) {
	volatileStream := c.volatileStream(key)
	return c.crashLimits().Suspect(stream, crashguard.Run{
		Open:     volatileStream.started && volatileStream.lease == stream.Lease && !stream.Produced,
		Produced: volatileStream.produced, Mark: volatileStream.mark, Crashed: crashed,
	})
}

// blameOpening fails the job of a stream that reached the limit of crashes while it was opened.
func (c *Core) blameOpening(key pecanv1.StreamKey, job *durable.Job, stream *pecanv1.StoredStream, worker *workerState) {
	c.orders.StreamFailed(job, key.Epoch, key.Stream, cmp.Or(key.String()+" ended workers while they opened it", key.String()))
	c.failJob(job, crashguard.BlameOpening(key.String(), stream, crashguard.Worker{Address: worker.address, Crash: worker.crash}).Detail())
}

// blame fails the job of a stream that reached the limit of crashes or deaths.
func (c *Core) blame(key pecanv1.StreamKey, job *durable.Job, stream *pecanv1.StoredStream, mark *pecanv1.MarkElementsRequest, worker *workerState) {
	elements, err := c.crashLimits().Blame(key.String(), stream, mark, crashguard.Worker{Address: worker.address, Crash: worker.crash})
	c.orders.StreamFailed(job, key.Epoch, key.Stream, cmp.Or(key.String()+" ended workers while they computed its "+elements, key.String()))
	c.failJob(job, err.Detail())
}
