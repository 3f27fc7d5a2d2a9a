package run

import (
	"sync/atomic"

	"github.com/pecan-ml/pecan/service/worker/window"
)

// counts are the totals of a worker since it started.
type counts struct {
	produced, failedElements, failedStreams, pooledIterators, inlineStreams atomic.Uint64
}

// deliver puts an entry into the run's window and counts it.
func (r *run) deliver(e *window.Entry) bool {
	counts := &r.stream.streams.counts
	if e.Failure != nil {
		counts.failedElements.Add(1)
	} else {
		counts.produced.Add(uint64(e.Count))
	}
	return r.window.Append(e)
}

// Load is what the streams of a worker hold, and what they have produced since it started.
type Load struct {
	// Held are all streams. Running are the runs that compute, or that have not yet released what they used.
	Held, Running int64
	// WindowBytes are ready. BufferedBytes are in the buffers of tf.data inside the graphs that run.
	WindowBytes, BufferedBytes int64
	// Produced counts elements, including recomputed ones. FailedElements were replaced by an error.
	// FailedStreams failed as a whole.
	Produced, FailedElements, FailedStreams uint64
	// PooledIterators counts the pooled iterators that were made. Each instantiates its functions.
	PooledIterators uint64
	// InlineStreams counts the runs of streams whose steps ran inline.
	InlineStreams uint64
}

// Load returns what the streams hold now.
func (ss *Streams) Load() Load {
	return Load{
		Held: int64(len(ss.held())), Running: ss.runs.Load(), WindowBytes: ss.windowBytes.Load(), BufferedBytes: ss.bufferedBytes.Load(),
		Produced: ss.counts.produced.Load(), FailedElements: ss.counts.failedElements.Load(), FailedStreams: ss.counts.failedStreams.Load(),
		PooledIterators: ss.counts.pooledIterators.Load(), InlineStreams: ss.counts.inlineStreams.Load(),
	}
}
