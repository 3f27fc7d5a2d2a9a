package run

import (
	"context"
	"time"

	"github.com/pecan-ml/pecan/native/tf"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/internal/clock"
	"github.com/pecan-ml/pecan/service/worker/profile"
)

// samplePeriod is the time between two samples of running iterators.
const samplePeriod = time.Second

// firstSample is the age of a run at its first sample. Each next sample comes after half as much time again, up
// to samplePeriod. Without early samples, the times of a short run would be lost.
const firstSample = 2 * time.Millisecond

// profiled is a running iterator and the profiler of its steps.
type profiled struct {
	it       *tf.Iterator
	profiler *profile.Profiler
}

// sample reads the metrics of the run's iterators.
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

// stopSampling keeps sample from the iterators before they are closed: a sample during the close would wait for
// it.
func (r *run) stopSampling() {
	r.bufferedMu.Lock()
	defer r.bufferedMu.Unlock()
	r.closed = true
}

// releaseBuffered subtracts the run's buffers from the worker's sum, after the iterators are closed.
func (r *run) releaseBuffered() {
	r.bufferedMu.Lock()
	defer r.bufferedMu.Unlock()
	r.stream.streams.bufferedBytes.Add(-r.bufferedBytes)
	r.bufferedBytes = 0
}

// Nodes returns the metrics of the run's steps.
func (r *run) Nodes() []*pecanv1.NodeMetrics {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []*pecanv1.NodeMetrics
	for _, each := range r.profiles {
		out = append(out, each.profiler.Metrics()...)
	}
	return out
}

// SampleLoop samples all streams periodically. It is not part of the heartbeat, which must not wait for
// TensorFlow.
func (ss *Streams) SampleLoop(ctx context.Context) {
	for clock.Sleep(ctx, samplePeriod) {
		ss.Sample()
		ss.pool.expire()
	}
}

// Sample reads the metrics of all streams.
func (ss *Streams) Sample() {
	for _, s := range ss.held() {
		s.mu.Lock()
		r := s.run
		s.mu.Unlock()
		if r != nil {
			r.sample()
		}
	}
}

// WindowLimit is what all windows may hold now. The buffers of tf.data inside the graphs count against the same
// bound, up to half of it. A graph whose own buffers exceed that still gets its elements out.
func (ss *Streams) WindowLimit() int64 {
	return ss.Options.WindowBytes - min(ss.bufferedBytes.Load(), ss.Options.WindowBytes/2)
}

// Job returns the name of the run's job.
func (r *run) Job() string { return r.stream.key.Job }

// Failed counts elements that could not be produced, without those whose file was missing or whose error is transient.
func (r *run) Failed() uint64 { return r.failures.Load() }

// Reordered reports whether the steps run in another order than the registered one.
func (r *run) Reordered() bool { return len(r.command.GetPlan().GetOrder()) > 0 }

// Inline reports whether steps of the run's pooled iterators run inline.
func (r *run) Inline() bool { return r.inline.Load() }

// ReadsCache reports whether the run was to read a segment of a cache.
func (r *run) ReadsCache() bool { return len(r.command.GetCache().GetSegments()) > 0 }
