package run

import (
	"context"
	"errors"
	"io"
	"math"
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

// runState is the progress of a run.
type runState struct {
	started bool
	ended   bool
	failed  *reason.Error
	count   uint64
	// remainderRows are the rows kept back for the closing stream.
	remainderRows uint64
}

// run is one execution of a stream, from its beginning or from an index.
type run struct {
	stream  *Stream
	command *pecanv1.StartStream
	window  *window.Window
	ctx     context.Context
	cancel  context.CancelFunc
	// productionEnded is closed when the run produces no more elements because its worker drains.
	productionEnded chan struct{}
	// done is closed when the run has released everything.
	done chan struct{}
	// previous, if not nil, is closed when an earlier run over the same files has ended. TensorFlow refuses to
	// write a cache that another iterator writes. An iterator that is closed early deletes all files of that
	// name, even those of another iterator.
	previous <-chan struct{}

	mu       sync.Mutex
	status   runState
	iterator *tf.Iterator
	// opened is the time when the iterator was ready. opening is how long that took.
	opened   time.Time
	opening  time.Duration
	profiles []profiled
	// remainderCounts counts what was kept back for the closing stream.
	remainderCounts profile.Counts

	// holdsOpeningLock is set if the run holds the opening lock for its first element.
	holdsOpeningLock atomic.Bool

	// inline is set if steps of its pooled iterators run inline.
	inline atomic.Bool

	// failures counts elements that could not be produced, without those whose file was missing or whose error is transient.
	failures atomic.Uint64

	// bufferedBytes is what the iterators' own buffers hold, as it is included in the worker's sum. closed is
	// set before the iterators are closed.
	bufferedMu    sync.Mutex
	bufferedBytes int64
	closed        bool

	// The fields below belong to the goroutine of main.
	closers []func()
	// start is the index at which the graph begins.
	start uint64
	saver saver
	// cached is the source of the graph downstream of a cached step; nil without one.
	cached *cachefill.Source
	// pooled are the pooled iterators of the run, which begin at index pooledFrom. ownIterator is set if the run must not
	// use pooled iterators.
	pooled      []pooledUse
	pooledFrom  uint64
	ownIterator bool
	// shared are the tables and variables that the graphs share with those of other streams.
	shared []rewrite.Shared
	// If batchRows > 0, an element with fewer rows is kept back.
	batchRows int64
	shapes    shapes
	fill      handover
	// computing is how long the run waited for elements.
	computing time.Duration
	// guard is set if the last worker of the stream died. limit bounds the elements of the current fetch.
	guard *crashGuard
	limit int
	// serial is set if each element is produced when it is requested, and no other element in parallel or in advance.
	serial bool
}

// newRun makes a run. The caller holds the stream's lock.
func newRun(s *Stream, at beginning) *run {
	r := &run{stream: s, command: s.command, start: at.start, productionEnded: make(chan struct{}), done: make(chan struct{})}
	r.ctx, r.cancel = context.WithCancel(s.streams.Lifetime)
	if s.command.GetPlan().GetWritesFiles() {
		r.previous = s.streams.registerWriter(r)
	}
	acked := max(at.wanted, s.command.GetDeliveredBelow())
	if s.command.GetRemainderOnly() {
		// Nobody reads the elements.
		acked = math.MaxInt64
	}
	r.window = window.New(&s.streams.windowBytes, r.onReaderWaits, window.Start{From: at.start, Acked: acked, Prefetch: s.command.GetPrefetch()})
	r.serial = s.command.GetCrashGuard().GetSerial()
	r.saver.noteReported(s.command.GetAckedBelow())
	return r
}

// onReaderWaits is called with the window's lock held.
func (r *run) onReaderWaits(on bool) {
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

// stop ends the run without waiting for it. It returns the run's last reader.
func (r *run) stop() window.Reader {
	r.cancel()
	return r.window.Close()
}

// main runs the stream until it ends, fails or is stopped.
func (r *run) main() {
	defer close(r.done)
	if r.previous != nil {
		<-r.previous
	}
	if r.ctx.Err() != nil {
		return
	}
	r.stream.streams.runs.Add(1)
	// A run counts until it has released everything.
	defer r.stream.streams.runs.Add(-1)
	defer func() {
		r.cancel()
		if !r.status.ended && r.status.failed == nil {
			// The metrics of a stopped run count too. finish has read those of other runs.
			r.sample()
		}
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
	it, err := r.openLocked()
	if err != nil {
		r.finish(r.runFailure(err))
		return
	}
	if suspected := r.command.GetCrashGuard(); suspected != nil {
		r.guard = &crashGuard{run: r, suspected: suspected, files: r.files()}
	}
	r.mu.Lock()
	r.iterator, r.status.started = it, true
	r.opening, r.opened = time.Since(begun), time.Now()
	r.mu.Unlock()
	r.stream.streams.report(r.stream)
	err = r.produce(it)
	if errors.Is(err, errOwnIterator) {
		if it, err = r.openOwn(); err == nil {
			err = r.produce(it)
		}
	}
	switch {
	case errors.Is(err, io.EOF):
		r.leavePooled()
		if r.cached != nil {
			r.cached.AwaitAck()
		}
		r.finish(nil)
	case err != nil && r.ctx.Err() == nil:
		r.finish(r.runFailure(err))
	}
	r.mu.Lock()
	r.iterator = nil
	r.mu.Unlock()
}

// finish publishes the end of the run, or its failure, and reports it to the dispatcher.
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
		r.stream.log.Error("the stream failed", "lease", r.command.GetLease(), "reason", failure.Reason, "error", failure.Message)
	} else {
		r.stream.log.Info("the stream ended", "lease", r.command.GetLease(), "elements", status.count, "remainder_rows", status.remainderRows)
	}
	// The last metrics are sent before the reader learns of the end, because a reader at the end of an epoch may query
	// them.
	r.sample()
	if !r.stream.streams.moreOf(r.stream) {
		r.stream.streams.reportJob(r.stream.key.Job)
	}
	if kept := r.stream.remainderWindow(r); kept != nil {
		kept.Finish(failure)
	}
	r.stream.streams.report(r.stream)
	r.window.Finish(failure)
}
