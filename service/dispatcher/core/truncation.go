package core

import (
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/dispatcher/core/schedule"
	"github.com/pecan-ml/pecan/service/graph/split"
)

// Mode at-most-once computes no element again. If a stream loses the worker that started it, its consumer keeps
// what it has, and the rest is truncated. The exception is a plan under which the stream can start at its
// consumer's index without computing anything again.

// truncates reports whether a stream that loses its lease is truncated. A stream that was only leased, or that
// no trainer has read, is not truncated, because no trainer has its elements. A client that read it before its report arrives
// truncates by itself, until it releases the stream. After a restart the dispatcher does not know how far leases
// came, and counts all as started.
func (c *Core) truncates(key pecanv1.StreamKey, stream *pecanv1.StoredStream) bool {
	job := c.state.Job(key.Job)
	epoch := durable.FindEpoch(job, key.Epoch)
	if epoch == nil || !schedule.Needed(epoch, stream) {
		return false
	}
	read := c.wasStarted(key, stream) && !c.volatileStream(key).unread || (stream.StartIndex > 0 || stream.Delivered) && !split.IsRepeatable(job.Plan)
	return read && !durable.AllPrefetched(epoch) && !split.MayMove(job.Plan, job.Options)
}

// producedCount returns how many elements of a stream were produced under its newest lease, as far as is known.
func (c *Core) producedCount(key pecanv1.StreamKey, stream *pecanv1.StoredStream) uint64 {
	switch volatileStream := c.volatileStream(key); {
	case stream.Produced:
		return stream.Count
	case volatileStream.lease == stream.Lease:
		return volatileStream.produced
	}
	return 0
}

// wasStarted reports whether a worker has started its stream. Unknown counts as started.
func (c *Core) wasStarted(key pecanv1.StreamKey, stream *pecanv1.StoredStream) bool {
	volatileStream := c.volatileStream(key)
	return volatileStream.lease != stream.Lease || volatileStream.started || stream.Produced
}

// wouldRepeat reports whether the next consumer may receive elements again. The client has elements of an older
// lease, and in the run under the newest lease an index says nothing about those.
func wouldRepeat(job *durable.Job, stream *pecanv1.StoredStream, lease uint64) bool {
	return (lease < stream.Lease || stream.Worker == nil) && !split.MayMove(job.Plan, job.Options) && !split.IsRepeatable(job.Plan)
}

// truncateAt ends a stream with what its client has of it.
func (c *Core) truncateAt(job *durable.Job, epoch *durable.Epoch, stream *pecanv1.StoredStream, count uint64) {
	key := keyOf(job, epoch, stream)
	c.warn("stream truncated, because its reader has elements of another run", "job", key.Job, "epoch", key.Epoch, "stream", key.Stream, "elements", count)
	c.deliver(job, epoch, &pecanv1.StreamDelivered{Id: key.ID(), Count: count, Truncated: true, Produced: c.producedCount(key, stream)})
}

// endTruncated ends a truncated stream without a consumer: its last consumer had everything.
func (c *Core) endTruncated(epoch *durable.Epoch, stream *pecanv1.StoredStream) {
	if stream.Truncated && !stream.Delivered && stream.Consumer == "" {
		c.emitDelivered(epoch, stream.Stream, stream.StartIndex)
	}
}
