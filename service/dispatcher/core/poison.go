package core

import (
	"fmt"
	"strings"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/graph"
)

// A worker that dies may have been killed by an element, or by anything else. So a stream that was run when a worker died is under
// suspicion, and whoever runs it next marks what it makes before it does. A second death shows by the mark where it was; within those
// elements the third worker marks one at a time, and has no suspicious element of another stream made beside it. A third death there is
// the element's doing, if native code ended all three: a worker whose code aborts says so with its last words, one that is
// killed from outside cannot. A stream that waits, or that was further on each time, is not blamed. Steps that work ahead make elements
// beyond what is marked, also while the run waits; so after two crashes the stream is run with steps that do not. Design note 0009 has the
// argument.

// workedAhead is how many elements behind a mark may be under way in steps that work ahead.
const workedAhead = 1024

// markElements notes what a worker is about to make.
func (c *Core) markElements(r *pecanv1.MarkElementsRequest) {
	job, _, stream := c.leased(r.WorkerId, r.Id, r.Lease)
	worker := c.workers[r.WorkerId]
	if stream == nil || worker == nil {
		return
	}
	key := keyOf(r.Id)
	soft := c.softNow(key, stream)
	if r.Number != 0 && r.Number <= soft.marked {
		return
	}
	soft.marked = r.Number
	if r.Opening {
		c.standsAlone(worker, key)
		soft.mark = nil
		return
	}
	c.hasOpened(key, stream)
	soft.produced, soft.mark = max(soft.produced, r.First), r
	if r.Below <= r.First && !r.ReadAhead {
		soft.mark = nil
	}
	if r.Alone {
		c.standsAlone(worker, key)
	}
	if stream.Serial && !r.ReadAhead && r.First >= stream.SuspectBelow+stream.InFlight && opensAgain(job) {
		c.takeBack(job, r.WorkerId, key, stream.Lease)
		c.emit(&pecanv1.Record{Kind: &pecanv1.Record_LeaseLost{LeaseLost: &pecanv1.LeaseLost{
			Id: key.id(), Lease: stream.Lease, Cause: pecanv1.LeaseLost_MOVED, Progress: r.First, Why: "what was suspected did no harm",
		}}})
	}
}

// opensAgain tells whether a run may be ended for another one of the same stream just to be faster.
func opensAgain(job *pecanv1.StoredJob) bool {
	return graph.MayMove(job.Plan, job.Options) && !graph.BeginsAnew(job.Plan, job.Options) && !job.Plan.GetWritesFiles()
}

// standsAlone notes that the suspicious of one stream is next on a worker: what the one before had marked is behind it.
func (c *Core) standsAlone(worker *workerState, key streamKey) {
	if worker.alone != nil && *worker.alone != key {
		behind := c.soft(*worker.alone)
		if mark := behind.mark; mark != nil && mark.ReadAhead {
			behind.mark = &pecanv1.MarkElementsRequest{First: mark.Below, Below: mark.Below, ReadAhead: true, Files: mark.Files}
		} else {
			behind.mark = nil
		}
	}
	worker.alone = &key
}

// workerCrashes notes a worker's last words. Its streams go when its session does.
func (c *Core) workerCrashes(r *pecanv1.ReportCrashRequest) {
	worker := c.workers[r.WorkerId]
	if worker == nil {
		return
	}
	worker.crash = r.Cause
	for _, load := range r.Running {
		if _, _, stream := c.leased(r.WorkerId, load.GetId(), load.GetLease()); stream != nil {
			c.progressed(keyOf(load.Id), stream, load)
		}
	}
	for _, one := range r.Opening {
		_, _, stream := c.leased(r.WorkerId, one.GetId(), one.GetLease())
		if stream == nil {
			continue
		}
		soft := c.softNow(keyOf(one.Id), stream)
		soft.crashed = true
	}
	c.warn("worker crashes", "worker", r.WorkerId, "cause", r.Cause, "opening", len(r.Opening))
}

// A stream may end workers before it has an element: native code crashes while its graph is imported or its iterator made. Workers say with
// their last words what they were opening. One of these streams is then leased before the others of its epoch, and its worker opens it
// alone; the third crash is its doing. A stream that was opened begins a new count, and a death without last words changes none.

// openingCrashes is how many workers in a row crashed while they opened a stream, now that its lease ends.
func (c *Core) openingCrashes(key streamKey, stream *pecanv1.StoredStream) uint32 {
	switch {
	case c.crashedOpening(key, stream):
		return stream.OpeningCrashes + 1
	case c.opened(key, stream):
		return 0
	}
	return stream.OpeningCrashes
}

// crashedOpening tells whether the worker that holds a stream said that it dies while it opens it.
func (c *Core) crashedOpening(key streamKey, stream *pecanv1.StoredStream) bool {
	soft := c.soft(key)
	return soft.lease == stream.Lease && soft.crashed
}

// opened tells whether the worker that holds a stream has opened it, as far as is known.
func (c *Core) opened(key streamKey, stream *pecanv1.StoredStream) bool {
	soft := c.soft(key)
	return stream.Worker != nil && (stream.Produced || soft.lease == stream.Lease && soft.started)
}

// hasOpened notes that a worker has opened the stream that it holds.
func (c *Core) hasOpened(key streamKey, stream *pecanv1.StoredStream) {
	soft := c.soft(key)
	if !soft.started && stream.OpeningCrashes > 0 {
		// Others may have waited for it.
		c.dirty = true
	}
	soft.started = true
}

// opensFirst is the one stream of an epoch that is opened of those of which workers died while they opened them; nil: there are none. The
// others wait for it, or each worker would die of another one.
func (c *Core) opensFirst(job *pecanv1.StoredJob, epoch *pecanv1.StoredEpoch) (first *pecanv1.StoredStream) {
	for _, stream := range epoch.Streams {
		switch {
		case stream.OpeningCrashes == 0 || !needed(job, epoch, stream) || c.opened(streamKey{job.JobId, epoch.Epoch, stream.Stream}, stream):
		case stream.Worker != nil:
			return stream
		case first == nil || stream.OpeningCrashes > first.OpeningCrashes:
			first = stream
		}
	}
	return first
}

// blameOpening fails the job of a stream that has killed as many workers as it may while they opened it.
func (c *Core) blameOpening(key streamKey, job *pecanv1.StoredJob, stream *pecanv1.StoredStream, worker *workerState) {
	c.failedIn(job, key, describe(key)+" ended workers while they opened it")
	c.failJob(job, reason.New(reason.ElementPoison, "%s: %d workers died one after the other while they opened it (the last: %s of %s at %s). "+
		"Mend the step that ends the process when its iterator is made; the workers' logs tell more",
		describe(key), stream.OpeningCrashes, worker.crash, worker.address.GetWorkerId(), worker.address.GetTcp()).Detail())
}

// suspicion is what the next worker has to know of a stream whose last one died; nil when there was none.
func suspicion(stream *pecanv1.StoredStream) *pecanv1.CrashGuard {
	if stream.Deaths == 0 {
		return nil
	}
	below := stream.SuspectBelow
	if below > 0 {
		below += stream.InFlight
	}
	return &pecanv1.CrashGuard{First: stream.Progress, Below: below, Serial: stream.Serial}
}

// diedAt tells whether the death of a stream's worker may be the stream's doing, and within which elements; below is 0 where that is
// not known. A worker that marks died of what it had marked or begun ahead of that, or of nothing in this stream.
func (c *Core) diedAt(key streamKey, stream *pecanv1.StoredStream, crashed bool) (first, below, ahead uint64, suspicious bool) {
	soft := c.soft(key)
	mark := soft.mark
	switch {
	case !soft.started || soft.lease != stream.Lease || stream.Produced:
		return 0, 0, 0, false
	case stream.Deaths == 0:
		return soft.produced, 0, stream.InFlight, true
	case mark == nil:
		return 0, 0, 0, false
	case mark.ReadAhead && crashed:
		// Twice as many as were not enough. Of who is killed nothing of the kind is said: however far steps work ahead, it may be killed before
		// it has come as far as the last time, and it comes further when it is killed further on.
		ahead = max(workedAhead, 2*stream.InFlight)
	}
	switch {
	case stream.SuspectBelow > 0 && mark.Below+ahead <= stream.Progress:
		return 0, 0, 0, false
	case mark.Below <= mark.First && (!crashed || c.blamesNext(stream)):
		// What goes on in a run that waits may be anything, so it is enough to look closer, and not to blame it.
		return 0, 0, 0, false
	}
	return mark.First, mark.Below, ahead, true
}

// blamesNext tells whether the next crash fails the job.
func (c *Core) blamesNext(stream *pecanv1.StoredStream) bool {
	return int(stream.Crashes)+1 >= c.cfg.MaxCrashes
}

// loseToDeath ends the lease of a stream of which the worker may have died. From the second crash on, or when a quarter is left of the
// deaths that the stream may have, it is run serially: then what is marked is what kills.
func (c *Core) loseToDeath(key streamKey, stream *pecanv1.StoredStream, lost *pecanv1.LeaseLost) {
	deaths, crashes := counted(stream, lost)
	lost.Serial = stream.Serial || crashes >= 2 || int(deaths) >= c.cfg.MaxDeaths-c.cfg.MaxDeaths/4
	c.emit(&pecanv1.Record{Kind: &pecanv1.Record_LeaseLost{LeaseLost: lost}})
}

// blame fails the job of a stream that has killed as many workers as it may.
func (c *Core) blame(key streamKey, job *pecanv1.StoredJob, stream *pecanv1.StoredStream, mark *pecanv1.MarkElementsRequest, worker *workerState) {
	element := fmt.Sprintf("element %d", stream.Progress)
	if stream.SuspectBelow > stream.Progress+1 {
		element = fmt.Sprintf("elements %d to %d", stream.Progress, stream.SuspectBelow-1)
	}
	if mark.GetReadAhead() {
		element += " or what its steps had begun behind"
	}
	files := ""
	if names := mark.GetFiles(); len(names) > 0 {
		files = ", which reads " + strings.Join(names, ", ")
	}
	deaths, last, advice := stream.Crashes, worker.crash+" of ", "Take that record out, or mend the step that ends the process; the workers' logs tell more"
	if int(stream.Crashes) < c.cfg.MaxCrashes {
		deaths, last, advice = stream.Deaths, "", "Not all of them said why: if nobody killed them, memory was short (the kernel's log tells), and that record or step takes too much of it"
	}
	c.failedIn(job, key, describe(key)+" ended workers while they made its "+element)
	c.failJob(job, reason.New(reason.ElementPoison, "%s%s: %d workers died one after the other while they made its %s (the last: %s%s at %s). %s",
		describe(key), files, deaths, element, last, worker.address.GetWorkerId(), worker.address.GetTcp(), advice).Detail())
}
