package run

import (
	"sync/atomic"

	"github.com/pecan-ml/pecan/service/worker/window"
)

// counts are what a worker has done since it started.
type counts struct {
	made, failedElements, failedStreams atomic.Uint64
}

// give puts what was made into the window of the run.
func (r *run) give(e *window.Entry) bool {
	counts := &r.stream.streams.counts
	if e.Failure != nil {
		counts.failedElements.Add(1)
	} else {
		counts.made.Add(uint64(e.Count))
	}
	return r.window.Append(e)
}

// Load is what the streams of a worker hold, and what they have made since it started.
type Load struct {
	// Held are all streams, Running those that run.
	Held, Running int64
	// WindowBytes are ready, InsideBytes in the buffers of tf.data inside the graphs that run.
	WindowBytes, InsideBytes int64
	// Made elements, those among them that are made again; FailedElements in whose place an error was given; FailedStreams as a whole.
	Made, FailedElements, FailedStreams uint64
}

// Load gives what the streams hold now.
func (w *Streams) Load() Load {
	return Load{
		Held: int64(len(w.held())), Running: w.runs.Load(), WindowBytes: w.windowBytes.Load(), InsideBytes: w.insideBytes.Load(),
		Made: w.counts.made.Load(), FailedElements: w.counts.failedElements.Load(), FailedStreams: w.counts.failedStreams.Load(),
	}
}
