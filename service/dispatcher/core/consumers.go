package core

import (
	"cmp"
	"slices"
	"sync"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
)

// A stream of a shared job has one consumer at a time. After ReleaseStreams the next consumer starts where the
// last one stopped. After a consumer's death the core knows only the last index that the consumer acknowledged to the
// worker. The worker reports that index with a delay. In the modes exactly-once and deterministic, the next consumer
// starts there. That consumer receives the dead trainer's elements in flight again. In at-least-once, it starts where the
// dead consumer started. In at-most-once, it starts after everything that may have been sent.

// assignConsumers divides the streams of shared epochs among their clients. bestReader chooses the client of a running stream.
// If two clients differ by two or more streams, the one with the most is asked to release one. A starving client without a
// stream gets the only stream of another one for a while. A client that has stopped reading gets no streams, and as soon as
// another one starves, it is asked to release all that it has.
func (c *Core) assignConsumers() {
	for _, epoch := range c.touchedEpochs() {
		if job := epoch.Job; !durable.Private(job) && epoch.Error == nil && job.Error == nil && len(epoch.Passes) > 0 {
			c.balanceEpoch(job, epoch)
		}
	}
}

// consumerLoad counts the streams that a client has in an epoch. Streams on their way to the client count,
// streams that it was asked to release do not.
type consumerLoad struct {
	client string
	count  int
	// ready is set if the client adopted the epoch, or no client did. idle is set if the client has stopped reading, and
	// starving if it waits for elements.
	ready, idle, starving bool
	// active returns the active streams of the epoch. last has how many of them may still be released, for each kind.
	active func() []*pecanv1.StoredStream
	last   map[kindOfRelease]int
}

// kindOfRelease names the streams that may be released for a next client: those that are near to it, or any that it reaches.
type kindOfRelease struct {
	to       string
	anywhere bool
}

// needy is set for a client that starves and has no stream.
func (s *consumerLoad) needy() bool { return s.starving && s.count == 0 }

func byCount(a, b *consumerLoad) int { return cmp.Compare(a.count, b.count) }

// isNear reports whether a stream runs on a remote worker, or on a local one of the client's host.
func (c *Core) isNear(stream *pecanv1.StoredStream, clientID string) bool {
	return c.placements.Near(stream.Worker.GetWorkerId(), clientID)
}

// balanceEpoch divides the streams of an epoch among its consumers. Streams without a consumer go to the client with the
// fewest. After that, clients with more streams release some, one at a time.
func (c *Core) balanceEpoch(job *durable.Job, epoch *durable.Epoch) {
	loads := c.consumerLoads(job, epoch)
	adopted := slices.DeleteFunc(slices.Clone(loads), func(s *consumerLoad) bool { return !s.ready })
	ready := adopted
	if active := slices.DeleteFunc(slices.Clone(ready), func(s *consumerLoad) bool { return s.idle }); len(active) > 0 {
		ready = active
	}
	for _, stream := range c.touchedStreams(epoch) {
		if stream.Consumer == "" && stream.Worker != nil && !stream.Delivered {
			reader := c.bestReader(epoch, stream, adopted)
			reader.count++
			c.assign(epoch, stream, reader.client)
		}
	}
	for _, s := range loads {
		// A client that does not read yet loses nothing.
		for !s.ready && s.count > 0 && c.requestRelease(job, epoch, s, slices.MinFunc(ready, byCount), false) {
		}
	}
	starving := slices.DeleteFunc(slices.Clone(ready), func(s *consumerLoad) bool { return !s.starving })
	for _, s := range loads {
		for s.idle && len(starving) > 0 && !slices.Contains(ready, s) && s.count > 0 && c.requestRelease(job, epoch, s, slices.MinFunc(starving, byCount), false) {
		}
	}
	for c.balanceOnce(job, epoch, ready) {
	}
}

// bestReader returns the client that should read a stream: one that reaches the stream's worker, then one that reads, then one
// that starves and has no stream, then a near one, then the one with the fewest streams.
func (c *Core) bestReader(epoch *durable.Epoch, stream *pecanv1.StoredStream, among []*consumerLoad) (best *consumerLoad) {
	var bestRank [5]int
	for _, s := range among {
		rank := [5]int{4: s.count}
		for i, worse := range []bool{!c.reaches(epoch, stream.Worker.GetWorkerId(), s.client), s.idle, !s.needy(), !c.isNear(stream, s.client)} {
			if worse {
				rank[i] = 1
			}
		}
		if best == nil || slices.Compare(rank[:], bestRank[:]) < 0 {
			best, bestRank = s, rank
		}
	}
	return best
}

// balanceOnce asks for one stream for the client with the fewest, from the client with the most that has one for it. It returns
// false if there is none for any client.
func (c *Core) balanceOnce(job *durable.Job, epoch *durable.Epoch, ready []*consumerLoad) bool {
	fewest := slices.SortedStableFunc(slices.Values(ready), byCount)
	most := slices.SortedStableFunc(slices.Values(ready), func(a, b *consumerLoad) int { return byCount(b, a) })
	for _, to := range fewest {
		for _, from := range most {
			if from.count-to.count < 2 && !(to.needy() && from.count == 1) {
				break
			}
			if c.requestRelease(job, epoch, from, to, from.count == 1) {
				return true
			}
		}
	}
	return false
}

// consumerLoads lists the clients of an epoch in the order in which they opened it. Clients that prefetched the
// epoch are not ready before they adopt it, unless all did.
func (c *Core) consumerLoads(job *durable.Job, epoch *durable.Epoch) []*consumerLoad {
	onlyAhead, active := durable.AllPrefetched(epoch), sync.OnceValue(epoch.Active)
	var loads []*consumerLoad
	for _, pass := range epoch.Passes {
		s := &consumerLoad{client: pass.ClientId, ready: onlyAhead || !pass.Prefetch, active: active, last: map[kindOfRelease]int{}}
		s.idle, s.starving, s.count = c.stoppedReading(job, epoch, s.client), c.starving(job, epoch, s.client), epoch.Undelivered(s.client)
		loads = append(loads, s)
	}
	state := c.volatileEpoch(passKey{job.JobId, epoch.Epoch})
	for number := range state.releasing {
		stream := epoch.Stream(number)
		for _, s := range loads {
			if s.client == stream.Consumer {
				s.count--
			}
			if s.client == state.streams[number].nextConsumer {
				s.count++
			}
		}
	}
	return loads
}

// stoppedReading reports whether a client has taken nothing for a while although elements were ready, as its heartbeats say.
// A client with long steps has more time.
func (c *Core) stoppedReading(job *durable.Job, epoch *durable.Epoch, clientID string) bool {
	client := c.clients[clientID]
	if client == nil {
		return false
	}
	pass := client.passes[passKey{job.JobId, epoch.Epoch}]
	return pass != nil && pass.seen-pass.took > max(c.cfg.ConsumerSlice, c.placements.InactiveSteps(clientID))
}

func (c *Core) starving(job *durable.Job, epoch *durable.Epoch, clientID string) bool {
	client := c.clients[clientID]
	if client == nil {
		return false
	}
	pass := client.passes[passKey{job.JobId, epoch.Epoch}]
	return pass != nil && pass.starved
}

// requestRelease asks a client to release the last of its streams that suits the next client. A stream of a local worker on
// another host suits only a next client that starves. In addition, that client has no stream, or the present one does not
// starve. A client that has stopped reading releases any stream to one that starves, and a client that does not read yet to
// any. A client first keeps its only stream for ConsumerSlice, so that two clients of one stream take turns.
func (c *Core) requestRelease(job *durable.Job, epoch *durable.Epoch, from, to *consumerLoad, only bool) bool {
	stream := c.releasable(job, epoch, from, to, to.starving && (to.count == 0 || !from.starving))
	if stream == nil && (from.idle && to.starving || !from.ready) {
		stream = c.releasable(job, epoch, from, to, true)
	}
	if stream == nil {
		return false
	}
	volatileStream := c.volatileStream(keyOf(job, epoch, stream))
	if only && c.now-volatileStream.assignedAt < c.cfg.ConsumerSlice {
		return false
	}
	volatileStream.releasing, volatileStream.nextConsumer = true, to.client
	c.volatileEpoch(passKey{job.JobId, epoch.Epoch}).releasing[stream.Stream] = true
	c.touchStream(epoch, stream.Stream)
	from.count--
	to.count++
	c.event("release of a stream requested", "job", job.JobId, "epoch", epoch.Epoch, "stream", stream.Stream, "client", from.client, "for", to.client)
	return true
}

// releasable returns the last stream of a client that it may release for the next client: any stream, or only one that is
// near to it. It must reach the worker, unless the present client does not read. It returns nil if there is none. The calls for one next client pass over each stream once.
func (c *Core) releasable(job *durable.Job, epoch *durable.Epoch, from, to *consumerLoad, anywhere bool) *pecanv1.StoredStream {
	kind := kindOfRelease{to.client, anywhere}
	active := from.active()
	last, looked := from.last[kind]
	if !looked {
		last = len(active)
	}
	for ; last > 0; last-- {
		stream := active[last-1]
		if stream.Consumer != from.client || stream.Delivered || c.volatileStream(keyOf(job, epoch, stream)).releasing {
			continue
		}
		reached := from.idle || !from.ready || c.reaches(epoch, stream.Worker.GetWorkerId(), to.client)
		if reached && (anywhere || c.isNear(stream, to.client)) {
			from.last[kind] = last
			return stream
		}
	}
	from.last[kind] = 0
	return nil
}

// assign assigns a stream without a consumer to a client, from the index where the last consumer stopped.
func (c *Core) assign(epoch *durable.Epoch, stream *pecanv1.StoredStream, clientID string) {
	c.emitAssigned(epoch, stream.Stream, clientID, stream.StartIndex, stream.Assignment+1)
	key := keyOf(epoch.Job, epoch, stream)
	c.endRelease(key)
	volatileStream := c.volatileStream(key)
	volatileStream.nextConsumer, volatileStream.assignedAt, volatileStream.assignedLease = "", c.now, stream.Lease
	id := stream.Worker.GetWorkerId()
	if stream.Worker != nil && !c.reaches(epoch, id, clientID) && c.otherWorker(epoch.Job, id, volatileStream.avoid) && !c.truncates(key, stream) {
		c.move(epoch, stream, "client "+clientID+" cannot read it from worker "+id)
	}
}
