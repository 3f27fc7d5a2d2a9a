package core

import (
	"cmp"
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
)

// assignConsumers divides the streams of shared epochs among their clients: a stream that a worker has begun goes to the client
// with the fewest, and when clients differ by two or more the richest is asked to give one up. A client that waits with nothing to
// read, while another reads the only stream left, gets it for a while.
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

// consumerLoad is what a client has of an epoch, counting what it is about to get and not what it is about to give up.
type consumerLoad struct {
	client string
	count  int
	// ready: not opened ahead of need, or nobody is ready.
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
		// Who is not reading yet has nothing to lose.
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

// consumerLoads lists the clients of an epoch in the order in which they came. Those that opened it ahead of need are not ready
// before they adopt it, unless there are no others.
func (c *Core) consumerLoads(job *pecanv1.StoredJob, epoch *pecanv1.StoredEpoch) []*consumerLoad {
	onlyAhead := durable.AllPrefetched(epoch)
	var shares []*consumerLoad
	for _, pass := range epoch.Passes {
		s := &consumerLoad{client: pass.ClientId, ready: onlyAhead || !pass.Prefetch}
		for _, stream := range epoch.Streams {
			volatile := c.volatile(streamKey{job.JobId, epoch.Epoch, stream.Stream})
			reader := stream.Consumer
			if volatile.releasing {
				reader = volatile.nextConsumer
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

// requestRelease asks the richer client for the last of its streams. Taking its only one waits until it has had it for a while, so
// that two clients that share one stream take turns.
func (c *Core) requestRelease(job *pecanv1.StoredJob, epoch *pecanv1.StoredEpoch, from, to *consumerLoad, only bool) bool {
	for _, stream := range slices.Backward(epoch.Streams) {
		volatile := c.volatile(streamKey{job.JobId, epoch.Epoch, stream.Stream})
		if stream.Consumer != from.client || stream.Delivered || volatile.releasing {
			continue
		}
		if only && c.now-volatile.assignedAt < c.cfg.ConsumerSlice {
			return false
		}
		volatile.releasing, volatile.nextConsumer = true, to.client
		from.count--
		to.count++
		c.event("asking for a stream back", "job", job.JobId, "epoch", epoch.Epoch, "stream", stream.Stream, "client", from.client, "for", to.client)
		return true
	}
	return false
}

// assign gives a stream that nobody reads to a client, from where the last one left it.
func (c *Core) assign(id *pecanv1.StreamId, stream *pecanv1.StoredStream, clientID string) {
	c.emit(&pecanv1.Record{Kind: &pecanv1.Record_ConsumerAssigned{ConsumerAssigned: &pecanv1.ConsumerAssigned{
		Id: id, ClientId: clientID, StartIndex: stream.StartIndex, Assignment: stream.Assignment + 1,
	}}})
	volatile := c.volatile(keyOf(id))
	volatile.releasing, volatile.nextConsumer, volatile.assignedAt, volatile.assignedLease = false, "", c.now, stream.Lease
}
