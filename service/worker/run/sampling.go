package run

import (
	"context"
	"time"

	"github.com/pecan-ml/pecan/native/tf"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/internal/clock"
	"github.com/pecan-ml/pecan/service/worker/profile"
)

// samplePeriod is how often the figures of running iterators are read.
const samplePeriod = time.Second

// firstSample is when a run is looked at first, and then whenever half as much time again has passed, up to samplePeriod:
// the times of a short one would go unseen.
const firstSample = 2 * time.Millisecond

// profiled is a running iterator and the figures of its steps.
type profiled struct {
	it       *tf.Iterator
	profiler *profile.Profiler
}

// sample reads the figures of the run's iterators.
func (r *run) sample() {
	r.mu.Lock()
	all, kept := append([]profiled(nil), r.profiles...), r.remainderCounts
	r.mu.Unlock()
	r.bufferedMu.Lock()
	defer r.bufferedMu.Unlock()
	if r.closed {
		return
	}
	inside := int64(0)
	for _, each := range all {
		inside += each.profiler.Read(each.it, kept)
	}
	r.stream.streams.Totals.Changed(r)
	r.stream.streams.bufferedBytes.Add(inside - r.bufferedBytes)
	r.bufferedBytes = inside
}

// stopSampling keeps sample from the run's iterators from before they are closed: whoever asks one meanwhile waits for as long as that takes.
func (r *run) stopSampling() {
	r.bufferedMu.Lock()
	defer r.bufferedMu.Unlock()
	r.closed = true
}

// releaseBuffered takes what the run's iterators held out of the worker's account: they are closed.
func (r *run) releaseBuffered() {
	r.bufferedMu.Lock()
	defer r.bufferedMu.Unlock()
	r.stream.streams.bufferedBytes.Add(-r.bufferedBytes)
	r.bufferedBytes = 0
}

// nodes are the figures of the run's steps.
func (r *run) Nodes() []*pecanv1.NodeMetrics {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []*pecanv1.NodeMetrics
	for _, each := range r.profiles {
		out = append(out, each.profiler.Metrics()...)
	}
	return out
}

// SampleLoop reads the figures of all streams. It is not part of the heartbeat, which must not wait for TensorFlow.
func (w *Streams) SampleLoop(ctx context.Context) {
	for clock.Sleep(ctx, samplePeriod) {
		w.Sample()
	}
}

// Sample reads the figures of all streams.
func (w *Streams) Sample() {
	for _, s := range w.held() {
		s.mu.Lock()
		r := s.run
		s.mu.Unlock()
		if r != nil {
			r.sample()
		}
	}
}

// WindowLimit is what all windows may hold now. The buffers that tf.data keeps inside the graphs count against the same
// bound, up to half of it: a graph whose own steps want more than that still gets its elements out.
func (w *Streams) WindowLimit() int64 {
	return w.Options.WindowBytes - min(w.bufferedBytes.Load(), w.Options.WindowBytes/2)
}

// Job is the name of the run's job.
func (r *run) Job() string { return r.stream.key.job }

// Failed elements could not be made.
func (r *run) Failed() uint64 { return r.failures.Load() }

// Reordered tells whether the steps run in another order than the registered one.
func (r *run) Reordered() bool { return len(r.order.GetPlan().GetOrder()) > 0 }
