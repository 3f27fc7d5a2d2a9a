package worker

import (
	"context"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pecan-ml/pecan/native/tf"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// samplePeriod is how often the figures of running iterators are read.
const samplePeriod = time.Second

// firstSample is when a run is looked at first, and then whenever half as much time again has passed, up to samplePeriod:
// the times of a short one would go unseen.
const firstSample = 2 * time.Millisecond

// sampleLoop reads the figures of all streams. It is not part of the heartbeat, which must not wait for TensorFlow.
func (w *Worker) sampleLoop(ctx context.Context) {
	for pause(ctx, samplePeriod) {
		for _, s := range w.held() {
			s.mu.Lock()
			r := s.run
			s.mu.Unlock()
			if r != nil {
				r.sample()
			}
		}
	}
}

// profiled is a running iterator and the figures of its steps.
type profiled struct {
	it       *tf.Iterator
	profiler *profiler
}

// sample reads the figures of the run's iterators.
func (r *run) sample() {
	r.mu.Lock()
	all, kept := append([]profiled(nil), r.profiles...), r.kept
	r.mu.Unlock()
	r.insideMu.Lock()
	defer r.insideMu.Unlock()
	if r.gone {
		return
	}
	inside := int64(0)
	for _, each := range all {
		inside += each.profiler.read(each.it, kept)
	}
	r.stream.worker.ledger.changed(r)
	r.stream.worker.insideBytes.Add(inside - r.inside)
	r.inside = inside
}

// hide keeps sample from the run's iterators from before they are closed: whoever asks one meanwhile waits for as long as that takes.
func (r *run) hide() {
	r.insideMu.Lock()
	defer r.insideMu.Unlock()
	r.gone = true
}

// leave takes what the run's iterators held out of the worker's account: they are closed.
func (r *run) leave() {
	r.insideMu.Lock()
	defer r.insideMu.Unlock()
	r.stream.worker.insideBytes.Add(-r.inside)
	r.inside = 0
}

// windowLimit is what all windows may hold now. The buffers that tf.data keeps inside the graphs count against the same
// bound, up to half of it: a graph whose own steps want more than that still gets its elements out.
func (w *Worker) windowLimit() int64 {
	return w.config.WindowBytes - min(w.insideBytes.Load(), w.config.WindowBytes/2)
}

// nodes are the figures of the run's steps.
func (r *run) nodes() []*pecanv1.NodeMetrics {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []*pecanv1.NodeMetrics
	for _, each := range r.profiles {
		out = append(out, each.profiler.metrics()...)
	}
	return out
}

// heartbeat is the load of the worker.
func (w *Worker) heartbeat() *pecanv1.WorkerHeartbeat {
	return &pecanv1.WorkerHeartbeat{
		CpuS: cpuSeconds(), ResidentBytes: residentBytes(), Leaving: w.leaving.Load(), Cache: w.caches.figures(), Streams: w.loads(),
	}
}

// loads are the streams that the worker runs.
func (w *Worker) loads() (loads []*pecanv1.WorkerHeartbeat_StreamLoad) {
	for _, s := range w.held() {
		if load := s.load(); load != nil {
			loads = append(loads, load)
		}
	}
	return loads
}

func cpuSeconds() float64 {
	var usage unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &usage) != nil {
		return 0
	}
	return float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e9
}

func residentBytes() int64 {
	raw, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(raw))
	if len(fields) < 2 {
		return 0
	}
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		return 0
	}
	return pages * int64(os.Getpagesize())
}
