package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pecan-ml/pecan/native/tf"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/graph/rewrite"
)

// runState is how far a run has come.
type runState struct {
	started bool
	ended   bool
	failed  *reason.Error
	count   uint64
	// keptRows are held back for the closing stream.
	keptRows uint64
}

// run is one execution of a stream, from its beginning or from an index on.
type run struct {
	stream *stream
	order  *pecanv1.StartStream
	window *window
	ctx    context.Context
	cancel context.CancelFunc
	// resting is closed when the run makes nothing more, because its worker leaves.
	resting chan struct{}
	// done is closed when nothing of the run is open any more.
	done chan struct{}
	// behind, if not nil, is closed when an earlier run over the same files has ended. TensorFlow refuses to write a cache that another
	// iterator writes, and one that is closed half way deletes all files of that name, whosever they are.
	behind <-chan struct{}

	mu       sync.Mutex
	status   runState
	iterator *tf.Iterator
	// opened is when the iterator was there, opening how long that took.
	opened   time.Time
	opening  time.Duration
	profiles []profiled
	// kept is what was held back for the closing stream.
	kept tally

	// failed counts elements that could not be made.
	failed atomic.Uint64

	// inside is what the iterators' own buffers hold, as it is in the worker's sum; gone when they are closed.
	insideMu sync.Mutex
	inside   int64
	gone     bool

	// What follows belongs to the goroutine of main.
	closers []func()
	// start is the index at which the graph begins.
	start uint64
	saver saver
	// keeping is the source above a cached step, nil without one.
	keeping *keeping
	// shared are the tables and variables that the graphs share with those of other streams.
	shared []rewrite.Shared
	// batchRows > 0: an element with fewer rows is held back.
	batchRows int64
	shapes    shapes
	fill      filling
	// wary is set when the last worker that ran the stream died; limit bounds the step that is under way.
	wary  *wary
	limit int
	// serial: every element is made when it is asked for, and none beside or before it.
	serial bool
}

// lastMeters numbers the names under which the graphs of this process count.
var lastMeters atomic.Uint64

// minRAMBudget is the least that tf.data's autotuning may use for the buffers inside one stream's graph.
const minRAMBudget = 64 << 20

// newRun is called with the stream's lock held.
func newRun(s *stream, at beginning) *run {
	r := &run{stream: s, order: s.order, start: at.start, resting: make(chan struct{}), done: make(chan struct{})}
	r.ctx, r.cancel = context.WithCancel(s.worker.lifetime)
	if s.order.GetPlan().GetWritesFiles() {
		r.behind = s.worker.follow(r)
	}
	r.window = newWindow(&s.worker.windowBytes, r.hurry)
	r.serial = s.order.GetCrashGuard().GetSerial()
	r.window.ahead, r.window.acked = s.order.GetPrefetch(), max(at.wanted, s.order.GetDeliveredBelow())
	r.window.from, r.window.next = at.start, at.start
	r.saver.tell(s.order.GetAckedBelow())
	r.saver.tell(s.order.GetAckedBelow())
	return r
}

// hurry is called with the window's lock held.
func (r *run) hurry(on bool) {
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
func (r *run) stop() *channel {
	r.cancel()
	return r.window.close()
}

// main runs the stream to its end, its failure or its stop.
func (r *run) main() {
	defer close(r.done)
	if r.behind != nil {
		<-r.behind
	}
	if r.ctx.Err() != nil {
		return
	}
	r.stream.worker.runs.Add(1)
	defer func() {
		r.stream.worker.runs.Add(-1)
		r.cancel()
		// What a run that was stopped did counts too.
		r.sample()
		r.stream.worker.ledger.leave(r)
		r.saver.writing.Wait()
		r.hide()
		for i := len(r.closers) - 1; i >= 0; i-- {
			r.closers[i]()
		}
		r.leave()
	}()
	r.stream.worker.ledger.join(r)
	begun := time.Now()
	it, err := r.openAsTold()
	if err != nil {
		r.finish(r.openFailure(err))
		return
	}
	if suspicion := r.order.GetCrashGuard(); suspicion != nil {
		files := r.stream.worker.graphs.files(r.ctx, r.order.GetFingerprint(), r.order.GetPlan(), r.stream.key.stream)
		r.wary = &wary{run: r, suspicion: suspicion, files: files}
	}
	r.mu.Lock()
	r.iterator, r.status.started = it, true
	r.opening, r.opened = time.Since(begun), time.Now()
	r.mu.Unlock()
	r.stream.worker.report(r.stream)
	switch err := r.produce(it); {
	case errors.Is(err, io.EOF):
		if r.keeping != nil {
			r.keeping.settle()
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
	count, _, _ := r.window.load()
	r.mu.Lock()
	r.status.failed, r.status.ended, r.status.count = failure, failure == nil, count
	status := r.status
	r.mu.Unlock()
	if failure != nil {
		r.stream.worker.counts.failedStreams.Add(1)
		r.stream.log.Error("stream failed", "lease", r.order.GetLease(), "reason", failure.Reason, "error", failure.Message)
	} else {
		r.stream.log.Info("stream ended", "lease", r.order.GetLease(), "elements", status.count, "remainder_rows", status.keptRows)
	}
	// The last figures go before the reader hears of the end: who has read all of a stream may look at them.
	r.sample()
	r.stream.worker.tellFigures(r.stream.key.job)
	if kept := r.stream.keeper(r); kept != nil {
		kept.finish(failure)
	}
	r.stream.worker.report(r.stream)
	r.window.finish(failure)
}

// open builds the stream's graphs and their iterators; r.closers frees what it made. With restored > 0 they are for a checkpoint's
// state at that index.
func (r *run) open(restored uint64) (*tf.Iterator, error) {
	w, plan := r.stream.worker, r.order.GetPlan()
	if keepsBack(r.order) {
		r.batchRows = plan.GetBatchRows()
	}
	var source tf.Source
	var kept *keeping
	var relay *relay
	switch {
	case r.order.GetClosing():
		joiner := &joiner{run: r}
		r.closers = append(r.closers, joiner.drop)
		source = joiner
	case plan.GetBatchStrategy() == pecanv1.BatchStrategy_BATCH_STRATEGY_CLOSING:
		relay = newRelay(r)
		source = relay
	}
	at := rewrite.At{
		Stream: int(r.order.GetId().GetStream()), Start: r.start, Epoch: r.order.GetId().GetEpoch(), Seed: r.order.GetOptions().GetSeed(),
		Mode: r.order.GetOptions().GetMode(), Source: -1, Restored: restored, RAMBudget: max(minRAMBudget, w.config.WindowBytes/int64(w.config.MaxStreams)),
		Job: r.order.GetId().GetJobId(), Serial: r.serial,
		Meters: fmt.Sprintf("pecan_meters_%d", lastMeters.Add(1)),
	}
	if source != nil {
		at.Source = tf.RegisterSource(source)
		r.closers = append(r.closers, func() { tf.RemoveSource(at.Source) })
	}
	if order := r.order.GetCache(); order != nil && w.caches != nil {
		kept = &keeping{run: r, caches: w.caches, order: order, meters: at.Meters}
		at.SplitAtCache, at.CacheSource = true, tf.RegisterSource(kept)
		r.closers = append(r.closers, func() { tf.RemoveSource(at.CacheSource) })
	}
	graphs, err := w.graphs.instantiate(r.ctx, r.order.GetFingerprint(), plan, at)
	if at.Serial && reason.Is(err, reason.Unsupported) {
		r.stream.log.Info("a stream under suspicion is run with steps that work ahead", "why", err)
		at.Serial, r.serial = false, false
		graphs, err = w.graphs.instantiate(r.ctx, r.order.GetFingerprint(), plan, at)
	}
	if err != nil {
		return nil, err
	}
	r.shared = graphs.Shared
	first := newProfiler(graphs.A, at.Meters, graphs.Ops)
	if first != nil && r.batchRows > 0 {
		first.keepsBack()
	}
	base := w.contexts.plain
	if graphs.BelowCache != nil {
		kept.graphs, r.keeping = graphs, kept
		if base, err = kept.runtime(); err != nil {
			return nil, err
		}
		r.closers = append(r.closers, kept.close)
		if err := kept.begin(); err != nil {
			return nil, err
		}
		if first != nil {
			first.relay = true
		}
	}
	if relay == nil {
		runtime := base
		if source != nil {
			runtime = w.contexts.pulling
		}
		return r.iterate(runtime, graphs.A, first)
	}
	if relay.from, err = r.iterate(base, graphs.A, first); err != nil {
		return nil, err
	}
	// The relay holds back, behind it every element counts.
	relay.batchRows, r.batchRows = r.batchRows, 0
	second := newProfiler(graphs.B, at.Meters, graphs.Ops)
	if second != nil {
		second.relay = true
	}
	return r.iterate(w.contexts.pulling, graphs.B, second)
}

// iterate makes the iterator of a graph, which the end of the run closes; p reads its figures, nil does not.
func (r *run) iterate(runtime *tf.Context, serialised []byte, p *profiler) (*tf.Iterator, error) {
	it, stop, err := r.newIterator(runtime, serialised, p)
	if err == nil {
		r.closers = append(r.closers, stop)
	}
	return it, err
}

// newIterator makes the iterator of a graph, and what closes it.
func (r *run) newIterator(runtime *tf.Context, serialised []byte, p *profiler) (it *tf.Iterator, stop func(), err error) {
	types, err := outputTypes(serialised)
	if err != nil {
		return nil, nil, err
	}
	unused := r.stream.worker.tables.use(runtime, r.shared)
	if it, err = runtime.NewIterator(serialised, types); err != nil {
		unused()
		return nil, nil, err
	}
	if p != nil {
		r.mu.Lock()
		r.profiles = append(r.profiles, profiled{it, p})
		r.mu.Unlock()
	}
	leave := context.AfterFunc(r.ctx, it.Cancel)
	return it, func() {
		leave()
		it.Close()
		unused()
	}, nil
}

// keep holds one short batch back for the closing stream.
func (r *run) keep(batch []*tf.Tensor) {
	kept := r.stream.keeper(r)
	if kept == nil {
		tf.ReleaseAll(batch)
		return
	}
	body := newSingle(batch)
	r.mu.Lock()
	r.status.keptRows += uint64(rowsOf(batch))
	r.kept.add(tally{elements: 1, out: body.parts.raw})
	r.mu.Unlock()
	first, _, _ := kept.load()
	kept.append(newEntry(first, 1, int64(body.parts.raw), body))
}

// rowsOf is the size of the first dimension of an element's first component.
func rowsOf(element []*tf.Tensor) int64 {
	if len(element) == 0 || len(element[0].Dims()) == 0 {
		return 0
	}
	return element[0].Dims()[0]
}
