package durable

import (
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

func Private(job *Job) bool { return job.Name == "" }

// PlannedStreams counts the streams that an epoch of the job has from the start, with closing streams.
func PlannedStreams(job *Job) uint32 {
	if job.Options.GetMode() == pecanv1.Mode_MODE_OFF {
		return 0
	}
	return job.Plan.TotalStreams()
}

// AllPrefetched reports whether every pass of an epoch is prefetched and not adopted. Perhaps nobody will ever
// read such an epoch.
func AllPrefetched(epoch *Epoch) bool {
	return len(epoch.Passes) > 0 && !slices.ContainsFunc(epoch.Passes, func(p *pecanv1.StoredPass) bool { return !p.Prefetch })
}

// Lost counts the lost elements of an epoch. If the number of all elements is known, it counts all missing ones.
func Lost(job *Job, epoch *Epoch) uint64 {
	if known := job.Plan.GetCardinality(); known >= 0 && epoch.Delivered() && job.Options.GetMode() == pecanv1.Mode_MODE_AT_MOST_ONCE {
		// A client truncates a stream by itself if the dispatcher did not know that the client had begun to read it.
		return uint64(max(0, known-int64(epoch.Elements())))
	}
	return epoch.sums.lost
}

// HasOrder reports whether a stream runs in the order of its epoch.
func HasOrder(epoch *Epoch, stream uint32) bool {
	if _, listed := slices.BinarySearch(epoch.OrderStreams, stream); listed || epoch.WhollyOrdered() {
		return true
	}
	return epoch.OrderFrom <= stream && stream < epoch.OrderBelow
}

// NamesOrder reports whether a position in an epoch of a job names this order.
func NamesOrder(job *Job, position *pecanv1.Position, order []string) bool {
	return len(order) > 0 && job.Options.GetMode() == pecanv1.Mode_MODE_DETERMINISTIC && CheckSteps(order) == nil &&
		position.GetOrder().GetHash() == pecanv1.OrderHash(job.Plan, order)
}
