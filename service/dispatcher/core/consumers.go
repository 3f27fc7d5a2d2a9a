package core

import (
	"cmp"
	"slices"
	"sync"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/dispatcher/core/schedule"
	"github.com/pecan-ml/pecan/service/graph/split"
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
			c.balanceEpoch(epoch)
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

// kindOfRelease names the streams that may be released for a next client: those that are near to it, or any. It reaches their
// workers; if elsewhere is set, they move to other workers for it.
type kindOfRelease struct {
	to                  string
	anywhere, elsewhere bool
}

// needy is set for a client that starves and has no stream.
func (s *consumerLoad) needy() bool { return s.starving && s.count == 0 }

func byCount(a, b *consumerLoad) int { return cmp.Compare(a.count, b.count) }

// isNear reports whether a stream runs on a remote worker, or on a local one of the client's host.
func (c *Core) isNear(stream *pecanv1.StoredStream, clientID string) bool {
	return c.placements.Near(stream.Worker.GetWorkerId(), clientID)
}

// balanceEpoch divides the streams of an epoch among its consumers. It chooses a reader for each stream without one. After
// that, clients that do not read release all streams, and clients with more streams release some, one at a time.
func (c *Core) balanceEpoch(epoch *durable.Epoch) {
	loads := c.consumerLoads(epoch)
	ready := slices.DeleteFunc(slices.Clone(loads), func(s *consumerLoad) bool { return !s.ready })
	reading := slices.DeleteFunc(slices.Clone(ready), func(s *consumerLoad) bool { return s.idle })
	starving := slices.DeleteFunc(slices.Clone(reading), func(s *consumerLoad) bool { return !s.starving })
	for _, stream := range c.touchedStreams(epoch) {
		if stream.Consumer == "" && stream.Worker != nil && !stream.Delivered {
			reader := c.bestReader(epoch, stream, ready)
			reader.count++
			c.assign(epoch, stream, reader.client)
		}
	}
	for _, s := range loads {
		if !s.ready {
			// A client that does not read yet loses nothing.
			c.releaseAll(epoch, s, ready)
		} else if s.idle {
			c.releaseAll(epoch, s, starving)
		}
	}
	for c.balanceOnce(epoch, reading) {
	}
}

// bestReader returns the client that should read a stream. Clients that can read it come first, then those that reach its worker,
// and then those that read. After that, those that starve and have no stream come first, then near ones, then the one with the
// fewest streams.
func (c *Core) bestReader(epoch *durable.Epoch, stream *pecanv1.StoredStream, among []*consumerLoad) (best *consumerLoad) {
	var bestRank [6]int
	for _, s := range among {
		rank := [6]int{1: int(c.reach(stream.Worker.GetWorkerId(), s.client)), 5: s.count}
		if !c.canRead(epoch, stream, s.client) {
			rank[0] = 1
		}
		for i, worse := range []bool{s.idle, !s.needy(), !c.isNear(stream, s.client)} {
			if worse {
				rank[i+2] = 1
			}
		}
		if best == nil || slices.Compare(rank[:], bestRank[:]) < 0 {
			best, bestRank = s, rank
		}
	}
	return best
}

// releaseAll asks a client to release all its streams, the last one first, each for the client that should read it. A stream
// stays if no client can read it from its worker or from another one.
func (c *Core) releaseAll(epoch *durable.Epoch, from *consumerLoad, among []*consumerLoad) {
	if from.count == 0 || len(among) == 0 {
		return
	}
	for _, stream := range slices.Backward(from.active()) {
		if !c.holds(epoch, from, stream) {
			continue
		}
		if to := c.bestReader(epoch, stream, among); c.canRead(epoch, stream, to.client) {
			c.requestRelease(epoch, stream, from, to)
		}
	}
}

// balanceOnce asks for one stream for the client with the fewest, from the client with the most that has one for it. It returns
// false if there is none for any client. A stream that must move to another worker is for a starving client without a stream, if
// there is no other one for that client. A client first keeps its only stream for ConsumerSlice, so that two clients of one stream
// take turns.
func (c *Core) balanceOnce(epoch *durable.Epoch, reading []*consumerLoad) bool {
	fewest := slices.SortedStableFunc(slices.Values(reading), byCount)
	most := slices.SortedStableFunc(slices.Values(reading), func(a, b *consumerLoad) int { return byCount(b, a) })
	for _, to := range fewest {
		if c.balanceFor(epoch, to, most, false) || to.needy() && c.balanceFor(epoch, to, most, true) {
			return true
		}
	}
	return false
}

// balanceFor asks one client for one stream for another client.
func (c *Core) balanceFor(epoch *durable.Epoch, to *consumerLoad, most []*consumerLoad, elsewhere bool) bool {
	for _, from := range most {
		only := from.count == 1
		if from.count-to.count < 2 && !(to.needy() && only) {
			break
		}
		stream := c.releasable(epoch, from, to, elsewhere)
		if stream != nil && !(only && c.now-c.volatileStream(keyOf(epoch.Job, epoch, stream)).assignedAt < c.cfg.ConsumerSlice) {
			c.requestRelease(epoch, stream, from, to)
			return true
		}
	}
	return false
}

// consumerLoads lists the clients of an epoch in the order in which they opened it. Clients that prefetched the
// epoch are not ready before they adopt it, unless all did.
func (c *Core) consumerLoads(epoch *durable.Epoch) []*consumerLoad {
	onlyAhead, active := durable.AllPrefetched(epoch), sync.OnceValue(epoch.Active)
	var loads []*consumerLoad
	for _, pass := range epoch.Passes {
		s := &consumerLoad{client: pass.ClientId, ready: onlyAhead || !pass.Prefetch, active: active, last: map[kindOfRelease]int{}}
		s.idle, s.starving, s.count = c.stoppedReading(epoch, s.client), c.starving(epoch, s.client), epoch.Undelivered(s.client)
		loads = append(loads, s)
	}
	state := c.volatileEpoch(passKey{epoch.Job.JobId, epoch.Epoch})
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

// passOf returns the state of a client's pass; nil before its first report.
func (c *Core) passOf(epoch *durable.Epoch, clientID string) *passState {
	if client := c.clients[clientID]; client != nil {
		return client.passes[passKey{epoch.Job.JobId, epoch.Epoch}]
	}
	return nil
}

// stoppedReading reports whether a client has taken nothing for a while although elements were ready, as its heartbeats say.
// A client with long steps has more time.
func (c *Core) stoppedReading(epoch *durable.Epoch, clientID string) bool {
	pass := c.passOf(epoch, clientID)
	return pass != nil && pass.seen-pass.took > max(c.cfg.ConsumerSlice, c.placements.InactiveSteps(clientID))
}

// starving reports whether a client waits for elements of an epoch.
func (c *Core) starving(epoch *durable.Epoch, clientID string) bool {
	pass := c.passOf(epoch, clientID)
	return pass != nil && pass.starved
}

// requestRelease asks a client to release a stream for the next client.
func (c *Core) requestRelease(epoch *durable.Epoch, stream *pecanv1.StoredStream, from, to *consumerLoad) {
	key := keyOf(epoch.Job, epoch, stream)
	volatileStream := c.volatileStream(key)
	volatileStream.releasing, volatileStream.nextConsumer = true, to.client
	c.volatileEpoch(passKey{key.Job, key.Epoch}).releasing[stream.Stream] = true
	c.touchStream(epoch, stream.Stream)
	from.count--
	to.count++
	c.event("release of a stream requested", "job", key.Job, "epoch", key.Epoch, "stream", stream.Stream, "client", from.client, "for", to.client)
}

// releasable returns the last stream of a client that suits the next client; nil without one. The next client reaches the stream's
// worker, or another one if elsewhere is set. A stream of a local worker on another host suits only a next client that starves.
// In addition, that client has no stream, or the present one does not starve. The calls for one next client pass over each stream
// once.
func (c *Core) releasable(epoch *durable.Epoch, from, to *consumerLoad, elsewhere bool) *pecanv1.StoredStream {
	kind := kindOfRelease{to: to.client, anywhere: to.starving && (to.count == 0 || !from.starving), elsewhere: elsewhere}
	active := from.active()
	last, looked := from.last[kind]
	if !looked {
		last = len(active)
	}
	for ; last > 0; last-- {
		stream := active[last-1]
		if !c.holds(epoch, from, stream) || !kind.anywhere && !c.isNear(stream, to.client) {
			continue
		}
		if c.reaches(stream.Worker.GetWorkerId(), to.client) != elsewhere && c.canRead(epoch, stream, to.client) {
			break
		}
	}
	from.last[kind] = last
	if last == 0 {
		return nil
	}
	return active[last-1]
}

// holds reports whether a client reads a stream, and was not asked to release it.
func (c *Core) holds(epoch *durable.Epoch, s *consumerLoad, stream *pecanv1.StoredStream) bool {
	return stream.Consumer == s.client && !stream.Delivered && !c.volatileStream(keyOf(epoch.Job, epoch, stream)).releasing
}

// canRead reports whether a client reaches the worker of a stream, or another one that can continue the stream without a loss.
func (c *Core) canRead(epoch *durable.Epoch, stream *pecanv1.StoredStream, clientID string) bool {
	id := stream.Worker.GetWorkerId()
	return c.reaches(id, clientID) || split.MayMove(epoch.Job.Plan, epoch.Job.Options) && c.otherWorker(epoch.Job, clientID, id)
}

// assign assigns a stream without a consumer to a client, from the index where the last consumer stopped. The stream leaves a
// worker that the client does not reach.
func (c *Core) assign(epoch *durable.Epoch, stream *pecanv1.StoredStream, clientID string) {
	c.emitAssigned(epoch, stream.Stream, clientID, stream.StartIndex, stream.Assignment+1)
	key := keyOf(epoch.Job, epoch, stream)
	c.endRelease(key)
	volatileStream := c.volatileStream(key)
	volatileStream.nextConsumer, volatileStream.assignedAt, volatileStream.assignedLease = "", c.now, stream.Lease
	if stream.Worker == nil {
		return
	}
	id := stream.Worker.WorkerId
	switch reach := c.reach(id, clientID); {
	case reach == schedule.Reachable:
	case reach == schedule.Unreachable, c.otherWorker(epoch.Job, clientID, id) && !c.truncates(key, stream):
		c.move(epoch, stream, "client "+clientID+" cannot read it from worker "+id)
	}
}
