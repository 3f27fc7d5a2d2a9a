package core

import (
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/dispatcher/core/schedule"
	"github.com/pecan-ml/pecan/service/graph/split"
)

// Mode at-most-once computes nothing again. Where a stream loses the worker that had begun it, its consumer keeps what it has and
// the rest is given up, unless the plan says that the stream can begin at its consumer's index with nothing run again.

// truncates tells whether a stream that loses its lease is given up. What was only leased is not, nor what nobody has read: nothing of it
// can be with anybody. A client that reads it before it says so looks after itself, until it hands the stream on. After a restart the dispatcher does not know of leases, and takes all as begun.
func (c *Core) truncates(key streamKey, stream *pecanv1.StoredStream) bool {
	job := c.state.Job(key.job)
	epoch := durable.FindEpoch(job, key.epoch)
	if epoch == nil || !schedule.Needed(job, epoch, stream) {
		return false
	}
	read := c.wasStarted(key, stream) && !c.volatile(key).unread || (stream.StartIndex > 0 || stream.Delivered) && !split.IsRepeatable(job.Plan)
	cutsOff := read && !durable.AllPrefetched(epoch) && !split.MayMove(job.Plan, job.Options)
	if cutsOff {
		c.warn("giving up the rest of a stream", "job", key.job, "epoch", key.epoch, "stream", key.stream, "lease", stream.Lease)
	}
	return cutsOff
}

// producedCount is how many elements of a stream are known to have been made under its newest lease.
func (c *Core) producedCount(key streamKey, stream *pecanv1.StoredStream) uint64 {
	switch volatile := c.volatile(key); {
	case stream.Produced:
		return stream.Count
	case volatile.lease == stream.Lease:
		return volatile.produced
	}
	return 0
}

// wasStarted tells whether a worker has begun a stream that is leased to it, as far as is known.
func (c *Core) wasStarted(key streamKey, stream *pecanv1.StoredStream) bool {
	volatile := c.volatile(key)
	return volatile.lease != stream.Lease || volatile.started || stream.Produced
}

// wouldRepeat tells whether what a client had of a stream may come again where another goes on with it: what it had came under an older lease,
// and in the run under the newest one an index says nothing about that.
func wouldRepeat(job *pecanv1.StoredJob, stream *pecanv1.StoredStream, lease uint64) bool {
	return (lease < stream.Lease || stream.Worker == nil) && !split.MayMove(job.Plan, job.Options) && !split.IsRepeatable(job.Plan)
}

// truncateAt ends a stream at what its client has of it.
func (c *Core) truncateAt(job *pecanv1.StoredJob, epoch *pecanv1.StoredEpoch, stream *pecanv1.StoredStream, count uint64) {
	key := streamKey{job.JobId, epoch.Epoch, stream.Stream}
	c.warn("the rest of a stream is given up: its reader had some of another run", "job", key.job, "epoch", key.epoch, "stream", key.stream, "elements", count)
	c.deliver(job, epoch, &pecanv1.StreamDelivered{Id: key.id(), Count: count, Truncated: true, Produced: c.producedCount(key, stream)})
}

// endTruncated ends a stream that was given up and that nobody reads: who read it last had all that there is.
func (c *Core) endTruncated(key streamKey, stream *pecanv1.StoredStream) {
	if stream.Truncated && !stream.Delivered && stream.Consumer == "" {
		c.emit(&pecanv1.Record{Kind: &pecanv1.Record_StreamDelivered{StreamDelivered: &pecanv1.StreamDelivered{Id: key.id(), Count: stream.StartIndex}}})
	}
}
