package durable

import (
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

func Private(job *pecanv1.StoredJob) bool { return job.Name == "" }

// IsClosing reports whether a stream is the closing stream of its epoch.
func IsClosing(job *pecanv1.StoredJob, stream *pecanv1.StoredStream) bool {
	return job.Plan.HasClosing() && stream.Stream == uint32(job.Plan.GetNumStreams())
}

// AllPrefetched reports whether every pass of an epoch is prefetched and not adopted. Perhaps nobody will ever
// read such an epoch.
func AllPrefetched(epoch *pecanv1.StoredEpoch) bool {
	return len(epoch.Passes) > 0 && !slices.ContainsFunc(epoch.Passes, func(p *pecanv1.StoredPass) bool { return !p.Prefetch })
}

// Delivered reports whether all streams of an epoch are delivered.
func Delivered(epoch *pecanv1.StoredEpoch) bool {
	for _, stream := range epoch.Streams {
		if !stream.Delivered {
			return false
		}
	}
	return len(epoch.Streams) > 0
}

func Elements(epoch *pecanv1.StoredEpoch) uint64 {
	sum := uint64(0)
	for _, stream := range epoch.Streams {
		if stream.Delivered {
			sum += stream.Count
		}
	}
	return sum
}

// lostOf counts the elements of a stream that were produced and did not arrive, as far as is known.
func lostOf(stream *pecanv1.StoredStream) uint64 {
	if !stream.Truncated || !stream.Delivered || stream.Progress <= stream.Count {
		return 0
	}
	return stream.Progress - stream.Count
}

func StreamsTruncated(epoch *pecanv1.StoredEpoch) uint32 {
	n := uint32(0)
	for _, stream := range epoch.Streams {
		if stream.Truncated {
			n++
		}
	}
	return n
}

// Lost counts the lost elements of an epoch. If the number of all elements is known, it counts all missing ones.
func Lost(job *pecanv1.StoredJob, epoch *pecanv1.StoredEpoch) uint64 {
	if known := job.Plan.GetCardinality(); known >= 0 && Delivered(epoch) && job.Options.GetMode() == pecanv1.Mode_MODE_AT_MOST_ONCE {
		// A client also truncates streams by itself, if it had begun to read before the dispatcher knew.
		return uint64(max(0, known-int64(Elements(epoch))))
	}
	lost := uint64(0)
	for _, stream := range epoch.Streams {
		lost += lostOf(stream)
	}
	return lost
}

// HasOrder reports whether a stream runs in the order of its epoch.
func HasOrder(epoch *pecanv1.StoredEpoch, stream uint32) bool {
	return len(epoch.Order) > 0 && (len(epoch.OrderStreams) == 0 || slices.Contains(epoch.OrderStreams, stream))
}

// NamesOrder reports whether a position in an epoch of a job names this order.
func NamesOrder(job *pecanv1.StoredJob, position *pecanv1.Position, order []string) bool {
	return len(order) > 0 && job.Options.GetMode() == pecanv1.Mode_MODE_DETERMINISTIC && CheckSteps(order) == nil &&
		position.GetOrder().GetHash() == pecanv1.OrderHash(job.Plan, order)
}
