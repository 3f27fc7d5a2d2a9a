package core

import (
	"cmp"
	"maps"
	"slices"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
)

// Epochs whose streams must be open together cannot choose their parts: each lease has the streams that are read next. If two
// such epochs have the same cache, one follows the other. A worker asks before it computes and writes a part. If another worker
// writes the part, the worker waits for that segment, but not longer than it would compute. So a worker that is slow, hangs or
// cannot write costs another job the time of one part. Nothing here survives a restart of the dispatcher: workers that get no answer
// compute.

const (
	// sweepFrom is the number of parts from which those whose writer has gone are forgotten, whenever their number has doubled.
	sweepFrom = 1024
	// mostFollowed is the longest time for which a stream counts as waiting. It is longer than any worker waits.
	mostFollowed = 2 * time.Minute
)

// cachedPart is a part of a cache.
type cachedPart struct {
	key  string
	part uint32
}

func (p cachedPart) compare(other cachedPart) int {
	return cmp.Or(cmp.Compare(p.key, other.key), cmp.Compare(p.part, other.part))
}

// partRun is a stream of a worker that writes a part, or waits for it.
type partRun struct {
	worker string
	id     pecanv1.StreamKey
	lease  uint64
}

// writtenPart is a part that a worker writes now.
type writtenPart struct {
	by      partRun
	waiting []partRun
}

// waitingRun is what a stream waits for, and since when.
type waitingRun struct {
	at    cachedPart
	since time.Duration
}

// following has the parts that workers write now.
type following struct {
	parts map[cachedPart]*writtenPart
	// newest has the parts that a stream began last, the older one first. A part becomes durable while the next one is computed.
	newest map[partRun][]cachedPart
	// waits has the streams that wait. Each waits for one part.
	waits map[partRun]waitingRun
	// sweepAt is the number of parts at which those whose writer has gone are forgotten.
	sweepAt int
}

func newFollowing() following {
	return following{parts: map[cachedPart]*writtenPart{}, newest: map[partRun][]cachedPart{}, waits: map[partRun]waitingRun{}, sweepAt: sweepFrom}
}

// endWait forgets what a stream waits for.
func (f *following) endWait(run partRun) {
	if wait, waits := f.waits[run]; waits {
		delete(f.waits, run)
		if written := f.parts[wait.at]; written != nil {
			written.waiting = slices.DeleteFunc(written.waiting, func(other partRun) bool { return other == run })
		}
	}
}

// shareClient reports whether a client reads both epochs. It may need elements of both before it takes more of either.
func shareClient(a, b *durable.Epoch) bool {
	return slices.ContainsFunc(a.Passes, func(pass *pecanv1.StoredPass) bool {
		return slices.ContainsFunc(b.Passes, func(other *pecanv1.StoredPass) bool { return other.ClientId == pass.ClientId })
	})
}

// askPart answers which of the workers writes a part. A worker that has to wait for another one gets a second answer.
func (c *Core) askPart(workerID string, ask *pecanv1.AskCachePart) {
	run, at := partRun{workerID, ask.GetId().Key(), ask.GetLease()}, cachedPart{ask.GetKey(), ask.GetPart()}
	job, epoch, stream := c.leased(workerID, ask.GetId(), run.lease)
	answer := &pecanv1.CachePart{}
	// It has computed the part that it waited for before.
	c.following.endWait(run)
	if cache := c.state.Cache(at.key); stream != nil && c.stepOfCache(job, at.key) != nil {
		written := c.following.parts[at]
		if found, recorded := durable.FindSegment(cache, at.part); recorded {
			answer.Segment = cache.Segments[found]
			c.caches.read[at.key] = true
			c.useCache(at.key)
		} else if written == nil || !c.mayWrite(written.by) {
			c.writePart(at, run)
		} else if ask.NeverWaits {
			return
		} else if _, other, err := c.state.Epoch(written.by.id.Job, written.by.id.Epoch); err == nil && other.Job != job && !shareClient(other, epoch) {
			answer.Wait = true
			written.waiting = append(written.waiting, run)
			c.following.waits[run] = waitingRun{at, c.now}
		}
	}
	c.answerPart(run, at.part, answer)
}

// writePart notes the writer of a part. Of its earlier parts, only the newest one can still become durable.
func (c *Core) writePart(at cachedPart, run partRun) {
	if written := c.following.parts[at]; written != nil {
		written.by = run
	} else {
		c.following.parts[at] = &writtenPart{by: run}
	}
	newest := append(c.following.newest[run], at)
	if len(newest) > 2 {
		c.partEnded(newest[0], run)
		newest = newest[1:]
	}
	c.following.newest[run] = newest
}

// partEnded lets the first stream that waits for a part compute it: its writer has not stored it.
func (c *Core) partEnded(at cachedPart, by partRun) {
	written := c.following.parts[at]
	if written == nil || written.by != by {
		return
	}
	for len(written.waiting) > 0 {
		run := written.waiting[0]
		written.waiting = written.waiting[1:]
		delete(c.following.waits, run)
		if c.mayWrite(run) {
			c.answerPart(run, at.part, &pecanv1.CachePart{})
			c.writePart(at, run)
			return
		}
	}
	delete(c.following.parts, at)
}

// partStored gives a segment to the streams that wait for its part.
func (c *Core) partStored(segment *pecanv1.CacheSegment) {
	at := cachedPart{segment.Key, segment.Part}
	written := c.following.parts[at]
	if written == nil {
		return
	}
	for _, run := range written.waiting {
		delete(c.following.waits, run)
		c.answerPart(run, at.part, &pecanv1.CachePart{Segment: segment})
		c.caches.read[at.key] = true
	}
	delete(c.following.parts, at)
}

// mayWrite reports whether a stream may still write what it began: its worker answers, and has not ended it.
func (c *Core) mayWrite(run partRun) bool {
	_, _, stream := c.leased(run.worker, run.id.ID(), run.lease)
	worker := c.workers[run.worker]
	return stream != nil && !stream.Produced && worker != nil && c.answers(worker)
}

func (c *Core) answerPart(run partRun, part uint32, answer *pecanv1.CachePart) {
	answer.Id, answer.Lease, answer.Part = run.id.ID(), run.lease, part
	c.command(run.worker, &pecanv1.WorkerCommand{Kind: &pecanv1.WorkerCommand_CachePart{CachePart: answer}})
}

// stepFollowing ends the parts that streams wait for if their writer has gone. It keeps the windows of jobs whose streams wait from
// counting.
func (c *Core) stepFollowing() {
	f := &c.following
	gone := map[cachedPart]bool{}
	for run, wait := range f.waits {
		job := c.state.Job(run.id.Job)
		if job == nil || c.now-wait.since > mostFollowed {
			f.endWait(run)
			continue
		}
		c.placements.Disturb(job)
		if written := f.parts[wait.at]; written != nil && !c.mayWrite(written.by) {
			gone[wait.at] = true
		}
	}
	for _, at := range slices.SortedFunc(maps.Keys(gone), cachedPart.compare) {
		c.partEnded(at, f.parts[at].by)
	}
	if len(f.parts) > f.sweepAt || len(f.newest) > f.sweepAt {
		maps.DeleteFunc(f.parts, func(_ cachedPart, written *writtenPart) bool {
			return len(written.waiting) == 0 && !c.mayWrite(written.by)
		})
		maps.DeleteFunc(f.newest, func(run partRun, _ []cachedPart) bool { return !c.mayWrite(run) })
		f.sweepAt = max(sweepFrom, 2*len(f.parts), 2*len(f.newest))
	}
}
