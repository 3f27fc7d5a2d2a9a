package run

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/pecan-ml/pecan/native/tf"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/graph/rewrite"
	"github.com/pecan-ml/pecan/service/worker/cachefill"
	"github.com/pecan-ml/pecan/service/worker/dataset"
	"github.com/pecan-ml/pecan/service/worker/profile"
)

// lastMeters numbers the names under which the graphs of this process count.
var lastMeters atomic.Uint64

// minRAMBudget is the least memory that tf.data's autotuning may use for the buffers of one stream's graph.
const minRAMBudget = 64 << 20

// restorable is the state of a checkpoint.
type restorable struct {
	// index is the index of the next element. pooled is set if the state comes from a pooled iterator.
	index  uint64
	pooled bool
	state  []byte
}

// openLocked opens the run's graphs under the opening lock. After workers died while they opened this stream, openLocked opens
// it alone: no other graph is opened and no suspicious element is produced meanwhile. So the cause of another death is known.
func (r *run) openLocked() (*tf.Iterator, error) {
	w := r.stream.streams
	if !r.command.GetOpenExclusive() {
		if err := w.openings.acquire(r.ctx); err != nil {
			return nil, err
		}
		defer w.openings.release()
		leave := w.openings.awaitLimit(r.ctx)
		defer leave()
	} else {
		if !w.openExclusively(r.ctx) {
			return nil, r.ctx.Err()
		}
		defer w.exclusive.Release(1)
		defer w.openings.lock.Release(exclusively)
		if r.ctx.Err() != nil {
			return nil, r.ctx.Err()
		}
		r.markOpening()
	}
	w.openings.add(r)
	defer w.openings.remove(r)
	return r.openOrRestore()
}

// openOrRestore opens the stream's graph at the newest valid checkpoint that is not after the index that the
// reader wants. Without one it opens the graph at the index r.start, which stream.go chose.
func (r *run) openOrRestore() (*tf.Iterator, error) {
	if r.saves() {
		all, err := r.stream.streams.Checkpoints.List(r.checkpointDir())
		if err != nil {
			r.stream.log.Warn("searching for checkpoints failed", "error", err)
		}
		r.saver.setFiles(all)
		wanted := r.window.Wanted()
		for _, each := range all {
			if each.Index == 0 || each.Index > wanted {
				continue
			}
			it, err := r.restore(each)
			if it != nil || r.ctx.Err() != nil {
				return it, err
			}
			if errors.Is(err, errOwnIterator) {
				continue
			}
			r.saver.damaged.Add(1)
			r.stream.log.Warn("a checkpoint cannot be used", "file", each.Name, "error", err)
		}
	}
	return r.open(nil)
}

// open builds the stream's graphs and their iterators, and r.closers release them. The iterators continue from a state if
// there is one.
func (r *run) open(from *restorable) (*tf.Iterator, error) {
	w, plan := r.stream.streams, r.command.GetPlan()
	if keepsRemainder(r.command) {
		r.batchRows = plan.GetBatchRows()
	}
	var source tf.Source
	var kept *cachefill.Source
	var relay *relay
	restored := uint64(0)
	if from != nil && !from.pooled {
		restored = from.index
	}
	base := w.Plain
	if r.command.GetClosing() {
		joiner := newJoiner(r)
		r.closers = append(r.closers, joiner.drop)
		source, base = joiner, w.Pulling
	}
	if plan.GetBatchStrategy() == pecanv1.BatchStrategy_BATCH_STRATEGY_CLOSING && keepsRemainder(r.command) {
		relay = newRelay(r)
	}
	at := rewrite.At{
		Stream: int(r.command.GetId().GetStream()), Start: r.start, Epoch: r.command.GetId().GetEpoch(), Seed: r.command.GetOptions().GetSeed(),
		Mode: r.command.GetOptions().GetMode(), Source: -1, Restored: restored, RAMBudget: max(minRAMBudget, w.Options.WindowBytes/int64(w.Options.MaxStreams)),
		Job: r.command.GetId().GetJobId(), Serial: r.serial,
		Meters: fmt.Sprintf("pecan_meters_%d", lastMeters.Add(1)),
	}
	if source != nil {
		at.Source = tf.RegisterSource(source)
		r.closers = append(r.closers, func() { tf.RemoveSource(at.Source) })
	}
	if relay != nil {
		handle := tf.RegisterSource(relay)
		r.closers = append(r.closers, func() { tf.RemoveSource(handle) })
		if at.Relay = handle; source == nil {
			at.Source = handle
		}
	}
	if action := r.command.GetCache(); action.GetStep() != nil && w.Caches != nil {
		kept = r.cacheSource(action)
		at.Cached, at.CacheSource = action.Step, tf.RegisterSource(kept)
		r.closers = append(r.closers, func() { tf.RemoveSource(at.CacheSource) })
	}
	graphs, err := w.Graphs.Instantiate(r.ctx, r.command.GetFingerprint(), plan, at)
	if at.Serial && reason.Is(err, reason.Unsupported) {
		r.stream.log.Info("a stream cannot run serially: its steps read ahead", "why", err)
		at.Serial, r.serial = false, false
		graphs, err = w.Graphs.Instantiate(r.ctx, r.command.GetFingerprint(), plan, at)
	}
	if err != nil {
		return nil, err
	}
	r.shared = graphs.Shared
	if len(graphs.Parts) > 0 {
		r.cached = kept
		upstream := &upstreamParts{run: r, whole: graphs, at: at}
		if base, err = kept.Runtime(); err != nil {
			return nil, err
		}
		if graphs.Batches != nil {
			// The graph of the cached step waits for the batches, and the one after it waits for both.
			upstream.relay, upstream.pulling, relay, base = relay, base, nil, w.Pulling
			upstream.relay.keep, upstream.relay.batchRows, r.batchRows = upstream.keepBack, r.batchRows, 0
		}
		kept.Lends = !changesInputs(graphs.A) && !changesInputs(graphs.B)
		r.closers = append(r.closers, kept.Close)
		if err := r.beginCached(kept, upstream); err != nil {
			return nil, err
		}
		source = kept
	}
	switch {
	case from == nil:
		if it := r.openPooled(graphs, base, source, relay, nil); it != nil {
			return it, nil
		}
	case from.pooled:
		it := r.openPooled(graphs, base, source, relay, from.state)
		if it == nil {
			return nil, errors.New("no pooled iterator can have its state")
		}
		return it, nil
	}
	first := profile.New(graphs.A, at.Meters, graphs.Nodes)
	if first != nil && r.batchRows > 0 {
		first.KeepsRemainder()
	}
	if first != nil && r.cached != nil {
		first.Relay = true
	}
	if relay == nil {
		it, err := r.iterate(base, graphs.A, first)
		if err == nil && from != nil {
			err = it.Restore(from.state)
		}
		return it, err
	}
	if relay.from, err = r.iterate(base, graphs.A, first); err != nil {
		return nil, err
	}
	// The relay keeps short batches back. Every element after it counts.
	relay.batchRows, r.batchRows = r.batchRows, 0
	second := profile.New(graphs.B, at.Meters, graphs.Nodes)
	if second != nil {
		second.Relay = true
	}
	return r.iterate(w.Pulling, graphs.B, second)
}

// changesInputs reports whether a graph may have an op that changes its input even if others hold it: InplaceAdd and its like.
func changesInputs(graph []byte) bool { return bytes.Contains(graph, []byte("Inplace")) }

// iterate makes the iterator of a graph, which the end of the run closes. p reads its metrics; p may be nil.
func (r *run) iterate(runtime *tf.Context, serialised []byte, p *profile.Profiler) (*tf.Iterator, error) {
	it, stop, err := r.newIterator(runtime, serialised, p)
	if err == nil {
		r.closers = append(r.closers, stop)
	}
	return it, err
}

// newIterator makes the iterator of a graph, and the function that closes it.
func (r *run) newIterator(runtime *tf.Context, serialised []byte, p *profile.Profiler) (it *tf.Iterator, stop func(), err error) {
	types, err := dataset.OutputTypes(serialised)
	if err != nil {
		return nil, nil, err
	}
	unused := r.stream.streams.tables.Use(runtime, r.shared)
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
