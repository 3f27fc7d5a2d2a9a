package schedule

import (
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
)

// Needed reports whether a worker must hold a stream.
func Needed(job *pecanv1.StoredJob, epoch *pecanv1.StoredEpoch, stream *pecanv1.StoredStream) bool {
	if job.Error != nil || epoch.Error != nil || len(epoch.Passes) == 0 || stream.Truncated {
		return false
	}
	if !stream.Delivered {
		return true
	}
	if !job.Plan.HasClosing() || durable.IsClosing(job, stream) || epoch.Streams[len(epoch.Streams)-1].Delivered {
		return false
	}
	// The remainder of a delivered stream is needed until the closing stream is delivered.
	return !stream.Produced || stream.RemainderRows > 0
}

// waiting reports whether a stream needs a worker and has none.
func waiting(job *pecanv1.StoredJob, epoch *pecanv1.StoredEpoch, stream *pecanv1.StoredStream) bool {
	return stream.Worker == nil && Needed(job, epoch, stream)
}

// remaindersReady reports whether every stream that the closing stream joins is produced.
func remaindersReady(job *pecanv1.StoredJob, epoch *pecanv1.StoredEpoch) bool {
	for _, stream := range epoch.Streams {
		if !durable.IsClosing(job, stream) && !stream.Produced && !stream.Truncated {
			return false
		}
	}
	return true
}

// Running reports whether a stream takes a slot of its worker. A waiting closing stream does not: it may wait for
// a stream that has no slot yet.
func Running(job *pecanv1.StoredJob, epoch *pecanv1.StoredEpoch, stream *pecanv1.StoredStream) bool {
	return stream.Worker != nil && !stream.Produced && (!durable.IsClosing(job, stream) || remaindersReady(job, epoch))
}

// needsAllOpen reports whether all streams of an epoch must be open at the same time.
func needsAllOpen(job *pecanv1.StoredJob) bool {
	mode := job.Options.GetMode()
	return job.Plan.GetAllOpen() || mode == pecanv1.Mode_MODE_DETERMINISTIC || mode == pecanv1.Mode_MODE_OFF
}

// Static reports whether the shards of a job belong to the configured workers, if there is a list of them.
func Static(job *pecanv1.StoredJob) bool {
	switch job.Options.GetSharding() {
	case pecanv1.Sharding_SHARDING_FILE, pecanv1.Sharding_SHARDING_DATA, pecanv1.Sharding_SHARDING_FILE_OR_DATA, pecanv1.Sharding_SHARDING_HINT:
		return true
	}
	return false
}

// Final reports whether an epoch gets no more streams.
func Final(job *pecanv1.StoredJob, epoch *pecanv1.StoredEpoch) bool {
	if job.Options.GetMode() != pecanv1.Mode_MODE_OFF {
		return true
	}
	return slices.ContainsFunc(epoch.Streams, func(s *pecanv1.StoredStream) bool { return s.Produced || s.Delivered })
}
