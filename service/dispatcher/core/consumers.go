package core

import (
	"cmp"
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
)

// assignConsumers divides the streams of shared epochs among their clients. A running stream goes to the client
// with the fewest. If two clients differ by two or more, the one with the most is asked to release a stream. A
// starving client without a stream gets the only stream of another one for a while.
func (c *Core) assignConsumers() {
	for _, job := range c.state.Jobs() {
		if durable.Private(job) {
			continue
		}
		for _, epoch := range job.Epochs {
			if epoch.Error == nil && job.Error == nil && len(epoch.Passes) > 0 {
				c.balanceEpoch(job, epoch)
			}
		}
	}
}

// consumerLoad counts the streams that a client has in an epoch. Streams on their way to the client count,
// streams that it was asked to release do not.
type consumerLoad struct {
	client string
	count  int
	// ready: the client adopted the epoch, or no client did.
	ready bool
}

func byCount(a, b *consumerLoad) int { return cmp.Compare(a.count, b.count) }

func (c *Core) balanceEpoch(job *pecanv1.StoredJob, epoch *pecanv1.StoredEpoch) {
	shares := c.consumerLoads(job, epoch)
	ready := slices.DeleteFunc(slices.Clone(shares), func(s *consumerLoad) bool { return !s.ready })
	key := streamKey{job: job.JobId, epoch: epoch.Epoch}
	for _, stream := range epoch.Streams {
		key.stream = stream.Stream
		if stream.Consumer == "" && stream.Worker != nil && !stream.Delivered {
			least := slices.MinFunc(ready, byCount)
			least.count++
			c.assign(key.id(), stream, least.client)
		}
	}
	for _, s := range shares {
		// A client that does not read yet loses nothing.
		for !s.ready && s.count > 0 && c.requestRelease(job, epoch, s, slices.MinFunc(ready, byCount), false) {
		}
	}
	for {
		least, most := slices.MinFunc(ready, byCount), slices.MaxFunc(ready, byCount)
		needy := least.count == 0 && c.starving(job, epoch, least.client)
		if most.count-least.count < 2 && !(needy && most.count == 1) {
			return
		}
		if !c.requestRelease(job, epoch, most, least, most.count == 1) {
			return
		}
	}
}

// consumerLoads lists the clients of an epoch in the order in which they opened it. Clients that prefetched the
// epoch are not ready before they adopt it, unless all did.
func (c *Core) consumerLoads(job *pecanv1.StoredJob, epoch *pecanv1.StoredEpoch) []*consumerLoad {
	onlyAhead := durable.AllPrefetched(epoch)
	var shares []*consumerLoad
	for _, pass := range epoch.Passes {
		s := &consumerLoad{client: pass.ClientId, ready: onlyAhead || !pass.Prefetch}
		for _, stream := range epoch.Streams {
			volatileStream := c.volatileStream(streamKey{job.JobId, epoch.Epoch, stream.Stream})
			reader := stream.Consumer
			if volatileStream.releasing {
				reader = volatileStream.nextConsumer
			}
			if reader == s.client && !stream.Delivered {
				s.count++
			}
		}
		shares = append(shares, s)
	}
	return shares
}

func (c *Core) starving(job *pecanv1.StoredJob, epoch *pecanv1.StoredEpoch, clientID string) bool {
	client := c.clients[clientID]
	if client == nil {
		return false
	}
	pass := client.passes[passKey{job.JobId, epoch.Epoch}]
	return pass != nil && pass.starved
}

// requestRelease asks a client to release the last of its streams. If it is the only one, the client first keeps
// it for ConsumerSlice, so that two clients of one stream take turns.
func (c *Core) requestRelease(job *pecanv1.StoredJob, epoch *pecanv1.StoredEpoch, from, to *consumerLoad, only bool) bool {
	for _, stream := range slices.Backward(epoch.Streams) {
		volatileStream := c.volatileStream(streamKey{job.JobId, epoch.Epoch, stream.Stream})
		if stream.Consumer != from.client || stream.Delivered || volatileStream.releasing {
			continue
		}
		if only && c.now-volatileStream.assignedAt < c.cfg.ConsumerSlice {
			return false
		}
		volatileStream.releasing, volatileStream.nextConsumer = true, to.client
		from.count--
		to.count++
		c.event("requesting the release of a stream", "job", job.JobId, "epoch", epoch.Epoch, "stream", stream.Stream, "client", from.client, "for", to.client)
		return true
	}
	return false
}

// assign assigns a stream without a consumer to a client, from the index where the last consumer stopped.
func (c *Core) assign(id *pecanv1.StreamId, stream *pecanv1.StoredStream, clientID string) {
	c.emit(&pecanv1.Record{Kind: &pecanv1.Record_ConsumerAssigned{ConsumerAssigned: &pecanv1.ConsumerAssigned{
		Id: id, ClientId: clientID, StartIndex: stream.StartIndex, Assignment: stream.Assignment + 1,
	}}})
	volatileStream := c.volatileStream(keyOf(id))
	volatileStream.releasing, volatileStream.nextConsumer, volatileStream.assignedAt, volatileStream.assignedLease = false, "", c.now, stream.Lease
}
