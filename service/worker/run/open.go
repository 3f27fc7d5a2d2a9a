package run

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/pecan-ml/pecan/service/graph/rewrite"

	"github.com/pecan-ml/pecan/native/tf"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/worker/cachefill"
	"github.com/pecan-ml/pecan/service/worker/dataset"
	"github.com/pecan-ml/pecan/service/worker/profile"
)

// lastMeters numbers the names under which the graphs of this process count.
var lastMeters atomic.Uint64

// minRAMBudget is the least memory that tf.data's autotuning may use for the buffers of one stream's graph.
const minRAMBudget = 64 << 20

// open builds the stream's graphs and their iterators; r.closers release them. With restored > 0 the iterators
// are for the state of a checkpoint at that index.
func (r *run) open(restored uint64) (*tf.Iterator, error) {
	w, plan := r.stream.streams, r.command.GetPlan()
	if keepsRemainder(r.command) {
		r.batchRows = plan.GetBatchRows()
	}
	var source tf.Source
	var kept *cachefill.Source
	var relay *relay
	switch {
	case r.command.GetClosing():
		joiner := &joiner{run: r}
		r.closers = append(r.closers, joiner.drop)
		source = joiner
	case plan.GetBatchStrategy() == pecanv1.BatchStrategy_BATCH_STRATEGY_CLOSING:
		relay = newRelay(r)
		source = relay
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
	if action := r.command.GetCache(); action != nil && w.Caches != nil {
		kept = r.cacheSource(action)
		at.SplitAtCache, at.CacheSource = true, tf.RegisterSource(kept)
		r.closers = append(r.closers, func() { tf.RemoveSource(at.CacheSource) })
	}
	graphs, err := w.Graphs.Instantiate(r.ctx, r.command.GetFingerprint(), plan, at)
	if at.Serial && reason.Is(err, reason.Unsupported) {
		r.stream.log.Info("a guarded stream runs with steps that read ahead", "why", err)
		at.Serial, r.serial = false, false
		graphs, err = w.Graphs.Instantiate(r.ctx, r.command.GetFingerprint(), plan, at)
	}
	if err != nil {
		return nil, err
	}
	r.shared = graphs.Shared
	first := profile.New(graphs.A, at.Meters, graphs.Ops)
	if first != nil && r.batchRows > 0 {
		first.KeepsRemainder()
	}
	base := w.Plain
	if graphs.UpstreamOfCache != nil {
		r.cached = kept
		if base, err = kept.Runtime(); err != nil {
			return nil, err
		}
		r.closers = append(r.closers, kept.Close)
		upstream := func() (*tf.Iterator, func(), error) {
			return r.newIterator(w.Plain, graphs.UpstreamOfCache, profile.New(graphs.UpstreamOfCache, at.Meters, graphs.Ops))
		}
		if err := kept.Begin(graphs, upstream); err != nil {
			return nil, err
		}
		if first != nil {
			first.Relay = true
		}
	}
	if relay == nil {
		runtime := base
		if source != nil {
			runtime = w.Pulling
		}
		return r.iterate(runtime, graphs.A, first)
	}
	if relay.from, err = r.iterate(base, graphs.A, first); err != nil {
		return nil, err
	}
	// The relay holds short batches back. Every element after it counts.
	relay.batchRows, r.batchRows = r.batchRows, 0
	second := profile.New(graphs.B, at.Meters, graphs.Ops)
	if second != nil {
		second.Relay = true
	}
	return r.iterate(w.Pulling, graphs.B, second)
}

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

// cacheSource makes the source of the graph downstream of a cached step.
func (r *run) cacheSource(action *pecanv1.CacheAction) *cachefill.Source {
	return &cachefill.Source{
		Directory: r.stream.streams.Caches, Action: action, ID: r.command.GetId(), Streams: uint32(r.command.GetPlan().GetNumStreams()), Lease: r.command.GetLease(),
		Worker: r.stream.streams.Identity.ID(), Packed: r.command.GetPlan().GetCache().GetPacked(), Context: r.ctx, Log: r.stream.log,
	}
}
