package run

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pecan-ml/pecan/service/graph/rewrite"

	"github.com/pecan-ml/pecan/native/tf"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/worker/cachefill"
	"github.com/pecan-ml/pecan/service/worker/profile"
	"github.com/pecan-ml/pecan/service/worker/window"
)

// runState is how far a run has come.
type runState struct {
	started bool
	ended   bool
	failed  *reason.Error
	count   uint64
	// remainderRows are held back for the closing stream.
	remainderRows uint64
}

// run is one execution of a stream, from its beginning or from an index on.
type run struct {
	stream *Stream
	order  *pecanv1.StartStream
	window *window.Window
	ctx    context.Context
	cancel context.CancelFunc
	// departed is closed when the run makes nothing more, because its worker leaves.
	departed chan struct{}
	// done is closed when nothing of the run is open any more.
	done chan struct{}
	// previous, if not nil, is closed when an earlier run over the same files has ended. TensorFlow refuses to write a cache that another
	// iterator writes, and one that is closed half way deletes all files of that name, whosever they are.
	previous <-chan struct{}

	mu       sync.Mutex
	status   runState
	iterator *tf.Iterator
	// opened is when the iterator was there, opening how long that took.
	opened   time.Time
	opening  time.Duration
	profiles []profiled
	// remainderCounts is what was held back for the closing stream.
	remainderCounts profile.Counts

	// failed counts elements that could not be made.
	failures atomic.Uint64

	// inside is what the iterators' own buffers hold, as it is in the worker's sum; gone when they are closed.
	bufferedMu    sync.Mutex
	bufferedBytes int64
	closed        bool

	// What follows belongs to the goroutine of main.
	closers []func()
	// start is the index at which the graph begins.
	start uint64
	saver saver
	// cached is the source above a cached step, nil without one.
	cached *cachefill.Source
	// shared are the tables and variables that the graphs share with those of other streams.
	shared []rewrite.Shared
	// batchRows > 0: an element with fewer rows is held back.
	batchRows int64
	shapes    shapes
	fill      handover
	// guard is set when the last worker that ran the stream died; limit bounds the step that is under way.
	guard *crashGuard
	limit int
	// serial: every element is made when it is asked for, and none beside or before it.
	serial bool
}

// newRun is called with the stream's lock held.
func newRun(s *Stream, at beginning) *run {
	r := &run{stream: s, order: s.order, start: at.start, departed: make(chan struct{}), done: make(chan struct{})}
	r.ctx, r.cancel = context.WithCancel(s.streams.Lifetime)
	if s.order.GetPlan().GetWritesFiles() {
		r.previous = s.streams.registerWriter(r)
	}
	r.window = window.New(&s.streams.windowBytes, r.setHurry, window.Start{From: at.start, Acked: max(at.wanted, s.order.GetDeliveredBelow()), Prefetch: s.order.GetPrefetch()})
	r.serial = s.order.GetCrashGuard().GetSerial()
	r.saver.noteReported(s.order.GetAckedBelow())
	r.saver.noteReported(s.order.GetAckedBelow())
	return r
}

// setHurry is called with the window's lock held.
func (r *run) setHurry(on bool) {
	r.mu.Lock()
	it := r.iterator
	r.mu.Unlock()
	if it != nil {
		it.Hurry(on)
	}
}

func (r *run) state() runState {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.status
}

// stop ends the run without waiting for it and gives the reader it had.
func (r *run) stop() window.Reader {
	r.cancel()
	return r.window.Close()
}

// main runs the stream to its end, its failure or its stop.
func (r *run) main() {
	defer close(r.done)
	if r.previous != nil {
		<-r.previous
	}
	if r.ctx.Err() != nil {
		return
	}
	r.stream.streams.runs.Add(1)
	defer func() {
		r.stream.streams.runs.Add(-1)
		r.cancel()
		// What a run that was stopped did counts too.
		r.sample()
		r.stream.streams.Totals.Remove(r)
		r.saver.writing.Wait()
		r.stopSampling()
		for i := len(r.closers) - 1; i >= 0; i-- {
			r.closers[i]()
		}
		r.releaseBuffered()
	}()
	r.stream.streams.Totals.Add(r)
	begun := time.Now()
	it, err := r.openGuarded()
	if err != nil {
		r.finish(r.openFailure(err))
		return
	}
	if suspicion := r.order.GetCrashGuard(); suspicion != nil {
		files := r.stream.streams.Graphs.Files(r.ctx, r.order.GetFingerprint(), r.order.GetPlan(), r.stream.key.stream)
		r.guard = &crashGuard{run: r, suspected: suspicion, files: files}
	}
	r.mu.Lock()
	r.iterator, r.status.started = it, true
	r.opening, r.opened = time.Since(begun), time.Now()
	r.mu.Unlock()
	r.stream.streams.report(r.stream)
	switch err := r.produce(it); {
	case errors.Is(err, io.EOF):
		if r.cached != nil {
			r.cached.AwaitAck()
		}
		r.finish(nil)
	case err != nil && r.ctx.Err() == nil:
		r.finish(r.openFailure(err))
	}
	r.mu.Lock()
	r.iterator = nil
	r.mu.Unlock()
}

// finish publishes the end, or the failure when there is one, and tells the dispatcher.
func (r *run) finish(failure *reason.Error) {
	if r.ctx.Err() != nil {
		return
	}
	count, _, _ := r.window.Load()
	r.mu.Lock()
	r.status.failed, r.status.ended, r.status.count = failure, failure == nil, count
	status := r.status
	r.mu.Unlock()
	if failure != nil {
		r.stream.streams.counts.failedStreams.Add(1)
		r.stream.log.Error("stream failed", "lease", r.order.GetLease(), "reason", failure.Reason, "error", failure.Message)
	} else {
		r.stream.log.Info("stream ended", "lease", r.order.GetLease(), "elements", status.count, "remainder_rows", status.remainderRows)
	}
	// The last figures go before the reader hears of the end: who has read all of a stream may look at them.
	r.sample()
	r.stream.streams.reportJob(r.stream.key.job)
	if kept := r.stream.remainderWindow(r); kept != nil {
		kept.Finish(failure)
	}
	r.stream.streams.report(r.stream)
	r.window.Finish(failure)
}
