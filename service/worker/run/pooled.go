package run

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/pecan-ml/pecan/native/tf"
	"github.com/pecan-ml/pecan/service/graph/pooled"
	"github.com/pecan-ml/pecan/service/graph/rewrite"
	"github.com/pecan-ml/pecan/service/worker/dataset"
	"github.com/pecan-ml/pecan/service/worker/profile"
)

// errOwnIterator ends a run in a pooled iterator before its first element. The run is opened again in an iterator of its
// own.
var errOwnIterator = errors.New("the stream needs an iterator of its own")

// mayPool reports whether the stream may run in a pooled iterator. A stream that workers may have died of gets an iterator
// of its own, unless it continues from the checkpoint of a pooled one. A plan with one stream opens one iterator per
// epoch.
func (r *run) mayPool(restored bool) bool {
	plan := r.command.GetPlan()
	suspected := r.command.GetCrashGuard() != nil || r.command.GetOpenExclusive()
	return plan.GetNumStreams() > 1 && !r.ownIterator && !r.serial && (restored || !suspected) && !plan.GetWritesFiles()
}

// openPooled opens the stream's graphs in pooled iterators, which the end of the run returns to the pool. It returns nil if
// the stream needs iterators of its own. The first graph runs in a context and reads from a source, which is nil if it
// reads nothing. relay is the source of the second graph; nil without one. state is the state of a checkpoint; nil without
// one.
func (r *run) openPooled(graphs *rewrite.StreamGraphs, base *tf.Context, source tf.Source, relay *relay, state []byte) *tf.Iterator {
	if !r.mayPool(state != nil) {
		return nil
	}
	w, closers := r.stream.streams, len(r.closers)
	upstream, profiles := r.pooled, r.profiles
	it, first := r.iteratePooled(base, graphs.A, graphs.Nodes, source, state)
	if first != nil && r.batchRows > 0 {
		first.KeepsRemainder()
	}
	if first != nil && r.cached != nil {
		first.Relay = true
	}
	if it != nil && relay != nil {
		relay.from = it
		var second *profile.Profiler
		if it, second = r.iteratePooled(w.Pulling, graphs.B, graphs.Nodes, relay, nil); second != nil {
			second.Relay = true
		}
	}
	if it == nil {
		r.release(closers)
		r.mu.Lock()
		r.pooled, r.profiles = upstream, profiles
		r.mu.Unlock()
		r.noteInline()
		return nil
	}
	if relay != nil {
		// The relay keeps short batches back. Every element after it counts.
		relay.batchRows, r.batchRows = r.batchRows, 0
	}
	r.pooledFrom = r.start
	if state != nil {
		// The dataset of the stream was built when the state was restored.
		r.pooledFrom = math.MaxUint64
	}
	return it
}

// pooledUse is a pooled iterator during a run. leave detaches it from the run's context.
type pooledUse struct {
	*pooledIterator
	leave func()
}

// iteratePooled begins the stream's part in one graph, in a pooled iterator. It returns nil if that is not possible.
func (r *run) iteratePooled(runtime *tf.Context, serialised []byte, nodes rewrite.Nodes, source tf.Source, state []byte) (*tf.Iterator, *profile.Profiler) {
	p, tree, err := r.beginPooled(runtime, serialised, source, state)
	if err != nil {
		r.stream.log.Debug("the stream gets an iterator of its own", "why", err)
		return nil, nil
	}
	profiler := tree.Profiler(p.meters, nodes)
	if profiler != nil {
		profiler.Continue(&p.history)
		r.mu.Lock()
		r.profiles = append(r.profiles, profiled{p.Iterator, profiler})
		r.mu.Unlock()
	}
	leave, ended := context.AfterFunc(r.ctx, p.Cancel), false
	r.pooled = append(r.pooled, pooledUse{p, func() { ended = leave() }})
	r.noteInline()
	r.closers = append(r.closers, func() {
		if !ended || !p.Idle() {
			leave()
			p.Close()
			return
		}
		if profiler != nil {
			profiler.Conclude(&p.history)
		}
		if elements, _ := p.Given(); p.streams > 1 {
			p.pace.measured(p.inline, elements, r.computing)
		}
		p.feed.set(nil)
		r.stream.streams.pool.put(p, idlePerSlot*r.stream.streams.Options.MaxStreams)
	})
	return p.Iterator, profiler
}

// noteInline notes whether steps run inline.
func (r *run) noteInline() {
	r.inline.Store(slices.ContainsFunc(r.pooled, func(p pooledUse) bool { return p.pooledIterator.inline }))
}

// leavePooled detaches the pooled iterators from the run's context, because the end of the run must not cancel them.
func (r *run) leavePooled() {
	for _, each := range r.pooled {
		each.leave()
	}
}

// beginPooled begins the stream in an idle iterator of the pool, or in a new one. With a state it restores the stream in a
// new iterator. The state has the stream's arguments. The tree of its graph is nil if the graph has none.
func (r *run) beginPooled(runtime *tf.Context, serialised []byte, source tf.Source, state []byte) (*pooledIterator, *profile.Tree, error) {
	pool := &r.stream.streams.pool
	key, arguments, err := pooled.Separate(serialised)
	if err != nil {
		return nil, nil, err
	}
	t := pool.templateOf(key, serialised)
	if t.why != nil {
		return nil, nil, t.why
	}
	var p *pooledIterator
	inline := state == nil && r.mayRunInline(t)
	if state == nil {
		p = pool.take(key, runtime, inline)
	}
	if p == nil {
		if p, err = r.newPooledIterator(runtime, t.Template, serialised, inline); err != nil {
			return nil, nil, err
		}
		p.key, p.pace = key, t.pace
	}
	p.Hurry(false)
	p.feed.set(source)
	if state != nil {
		err = p.Restore(state)
	} else {
		var tensors []*tf.Tensor
		if tensors, err = streamArguments(arguments); err == nil {
			err = p.Begin(tensors)
		}
	}
	if err != nil {
		p.Close()
		return nil, nil, err
	}
	if p.streams++; inline {
		r.stream.streams.counts.inlineStreams.Add(1)
	}
	return p, t.tree, nil
}

func (r *run) newPooledIterator(runtime *tf.Context, t *pooled.Template, serialised []byte, inline bool) (*pooledIterator, error) {
	types, err := dataset.OutputTypes(serialised)
	if err != nil {
		return nil, err
	}
	p := &pooledIterator{runtime: runtime, inline: inline, bytes: int64(len(serialised)), meters: fmt.Sprintf("pecan_meters_%d", lastMeters.Add(1))}
	p.elements, p.leaveTables = tf.RegisterSource(&p.feed), r.stream.streams.tables.Use(runtime, r.shared)
	p.Iterator, err = runtime.NewPooled(func(arguments int64) ([]byte, error) {
		return t.Graph(pooled.Names{Arguments: arguments, Elements: p.elements, Meters: p.meters, Inline: inline})
	}, types)
	if err != nil {
		p.leaveTables()
		tf.RemoveSource(p.elements)
		return nil, err
	}
	if inline {
		p.KeepToThread()
	}
	r.stream.streams.counts.pooledIterators.Add(1)
	return p, nil
}

// streamArguments makes the tensors of a stream's arguments. The first tensor is an unused placeholder.
func streamArguments(arguments []pooled.Argument) ([]*tf.Tensor, error) {
	placeholder, err := tf.NewTensor(tf.Int64, nil, binary.LittleEndian.AppendUint64(nil, 0))
	if err != nil {
		return nil, err
	}
	tensors := []*tf.Tensor{placeholder}
	for _, a := range arguments {
		var tensor *tf.Tensor
		if tf.DataType(a.DType) == tf.String {
			tensor, err = tf.NewStrings(a.Dims, a.Data)
		} else {
			tensor, err = tf.NewTensor(tf.DataType(a.DType), a.Dims, a.Data)
		}
		if err != nil {
			tf.ReleaseAll(tensors)
			return nil, err
		}
		tensors = append(tensors, tensor)
	}
	return tensors, nil
}

// beginsPooled reports whether the next element is the first one of a pooled stream, which also opens the stream's
// dataset. If it fails, either may be the cause: only an iterator of its own tells these apart.
func (r *run) beginsPooled() bool { return len(r.pooled) > 0 && r.index() == r.pooledFrom }

// openOwn opens the run again in an iterator of its own.
func (r *run) openOwn() (*tf.Iterator, error) {
	r.stream.log.Debug("the first element of a pooled stream failed")
	if r.cached != nil {
		// The iterators are closed first, and may wait for it.
		r.cached.Stop()
	}
	r.release(0)
	r.noteInline()
	r.ownIterator = true
	r.dropRemainder()
	it, err := r.openLocked()
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	r.iterator = it
	r.mu.Unlock()
	return it, nil
}

// release runs the closers from the n-th on, which belong to the iterators that were opened since.
func (r *run) release(n int) {
	for i := len(r.closers) - 1; i >= n; i-- {
		r.closers[i]()
	}
	r.closers, r.pooled = r.closers[:n], nil
	r.mu.Lock()
	r.profiles, r.iterator = nil, nil
	r.mu.Unlock()
}
