package schedule

import (
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
)

// Read reports whether somebody reads an epoch, or a later epoch its remainders, so that its streams may need workers.
func Read(epoch *durable.Epoch) bool {
	return epoch.Job.Error == nil && epoch.Error == nil && (len(epoch.Passes) > 0 || epoch.Job.Plan.GetCarry() && epoch.Delivered() && epoch.Kept())
}

// Needed reports whether a worker must hold a stream.
func Needed(epoch *durable.Epoch, stream *pecanv1.StoredStream) bool {
	return Read(epoch) && !stream.Truncated && !epoch.Settles(stream)
}

// RemaindersReady reports whether every stream that a closing stream joins is produced.
func RemaindersReady(epoch *durable.Epoch, closing uint32) bool {
	first, below := epoch.Sources(closing)
	for source := first; source < below; source++ {
		if stream := epoch.Find(source); stream == nil && !epoch.Settled(source) || stream != nil && !stream.Produced && !stream.Truncated {
			return false
		}
	}
	return true
}

// Running reports whether a stream takes a slot of its worker. A waiting closing stream does not: it may wait for
// a stream that has no slot yet.
func Running(epoch *durable.Epoch, stream *pecanv1.StoredStream) bool {
	return stream.Worker != nil && !stream.Produced && (!epoch.Job.Plan.IsClosing(stream.Stream) || RemaindersReady(epoch, stream.Stream))
}

// RunningStreams counts the streams of an epoch that take slots of their workers.
func RunningStreams(epoch *durable.Epoch) int {
	n := epoch.Running()
	for _, closing := range epoch.Closings() {
		if Running(epoch, closing) {
			n++
		}
	}
	return n
}

// mustBeOpen returns the streams that must be open at the same time: the numbers in [0, below). In a plan with groups,
// these are the streams of the group that is read. Mode deterministic reads them in turn, and a shuffle mixes them. A
// stream of an earlier group waits only if a closing stream needs its remainder rows again. The trainer may wait for that
// closing stream while later streams hold all slots. withinQuota is true if a quota bounds the streams, because a shuffle
// can also mix fewer.
func mustBeOpen(epoch *durable.Epoch) (below uint32, withinQuota bool) {
	mode, plan := epoch.Job.Options.GetMode(), epoch.Job.Plan
	deterministic := mode == pecanv1.Mode_MODE_DETERMINISTIC
	withinQuota = plan.GetShuffled() && !deterministic
	switch {
	case plan.Groups() > 1 && (deterministic || plan.GetShuffled()):
		group := uint32(plan.GetGroup())
		return min(epoch.FirstUndelivered()/group*group+group, epoch.Regular()), withinQuota
	case deterministic || plan.GetAllOpen() || mode == pecanv1.Mode_MODE_OFF:
		return epoch.Total(), false
	case plan.GetShuffled():
		return epoch.Regular(), true
	}
	return 0, withinQuota
}

// OpensTogether reports whether an epoch needs streams open at the same time.
func OpensTogether(epoch *durable.Epoch) bool {
	below, _ := mustBeOpen(epoch)
	return below > 0
}

// static reports whether the shards of a job belong to the configured workers, if there is a list of them.
func static(job *durable.Job) bool {
	switch job.Options.GetSharding() {
	case pecanv1.Sharding_SHARDING_FILE, pecanv1.Sharding_SHARDING_DATA, pecanv1.Sharding_SHARDING_FILE_OR_DATA, pecanv1.Sharding_SHARDING_HINT:
		return true
	}
	return false
}

// Final reports whether an epoch gets no more streams.
func Final(epoch *durable.Epoch) bool {
	return epoch.Job.Options.GetMode() != pecanv1.Mode_MODE_OFF || epoch.AnyEnded()
}
