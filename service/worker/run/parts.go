package run

import (
	"context"
	"fmt"
	"sync"

	"github.com/pecan-ml/pecan/native/tf"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/graph/pooled"
	"github.com/pecan-ml/pecan/service/graph/rewrite"
	"github.com/pecan-ml/pecan/service/graph/split"
	"github.com/pecan-ml/pecan/service/worker/cachefill"
	"github.com/pecan-ml/pecan/service/worker/payload"
	"github.com/pecan-ml/pecan/service/worker/profile"
)

// cacheSource makes the source of the graph downstream of a cached step.
func (r *run) cacheSource(action *pecanv1.CacheAction) *cachefill.Source {
	ctx, stop := context.WithCancel(r.ctx)
	return &cachefill.Source{
		Directory: r.stream.streams.Caches, Action: action, AllParts: split.AllParts(r.command.GetPlan(), action.GetStep()), ID: r.command.GetId(), Lease: r.command.GetLease(),
		Context: ctx, Stop: stop, Log: r.stream.log, KeepRemainder: r.keepRemainder,
	}
}

// beginCached begins the source of the graph downstream of a cached step.
func (r *run) beginCached(kept *cachefill.Source, u *upstreamParts) error {
	kept.Stream = u.whole
	if err := u.reserve(kept); err != nil {
		return err
	}
	return kept.Begin(u)
}

// upstreamParts runs the steps upstream of a cached step. Its parts share one pooled iterator if that is possible.
type upstreamParts struct {
	run *run
	// whole has the graphs of the stream. It includes the graph upstream of the cached step if all parts of the stream
	// share that graph. at says for which stream and index the graphs were written.
	whole *rewrite.StreamGraphs
	at    rewrite.At
	// relay is the source of the graph upstream if that reads batches, and pulling its context; nil without batches. kept are the
	// short batches that it has kept back.
	relay   *relay
	pulling *tf.Context
	mu      sync.Mutex
	kept    [][]*tf.Tensor
	// keptCounts counts what the open part has kept back.
	keptCounts profile.Counts
	// shared is the pooled iterator. key is the key of its template; nil without one. It has begun with the part begun, which
	// is negative afterwards.
	shared *tf.Iterator
	key    pooled.Key
	begun  int64
	// meters is the name under which the graphs count that Graphs returned last.
	meters string
}

// Graphs implements cachefill.Upstream.
func (u *upstreamParts) Graphs(part uint32) (*rewrite.StreamGraphs, error) {
	if u.whole.UpstreamOfCache != nil {
		u.meters = u.at.Meters
		return u.whole, nil
	}
	at, r := u.at, u.run
	u.meters = fmt.Sprintf("pecan_meters_%d", lastMeters.Add(1))
	at.Part, at.Start, at.Restored, at.Meters = &part, 0, 0, u.meters
	return r.stream.streams.Graphs.Instantiate(r.ctx, r.command.GetFingerprint(), r.command.GetPlan(), at)
}

// reserve begins the first part that is not recorded in a pooled iterator. Later parts are opened by TensorFlow's threads,
// which must not use the pool.
func (u *upstreamParts) reserve(kept *cachefill.Source) error {
	r := u.run
	part, missing := kept.FirstMissing()
	if !missing || u.relay != nil || !r.mayPool(false) {
		return nil
	}
	graphs, err := u.Graphs(part)
	if err != nil {
		return err
	}
	if u.key, _, err = pooled.Separate(graphs.UpstreamOfCache); err != nil {
		return nil
	}
	if u.shared, _ = r.iteratePooled(r.stream.streams.Plain, graphs.UpstreamOfCache, graphs.Nodes, nil, nil); u.shared != nil {
		u.begun, r.pooledFrom = int64(part), r.start
	}
	return nil
}

// Open implements cachefill.Upstream.
func (u *upstreamParts) Open(part uint32, graphs *rewrite.StreamGraphs, alone bool) (*tf.Iterator, func(), error) {
	if u.shared != nil && !alone && u.continues(part, graphs) {
		u.begun = -1
		return u.shared, func() {}, nil
	}
	if u.relay == nil {
		return u.iterate(u.run.stream.streams.Plain, graphs.UpstreamOfCache, profile.New(graphs.UpstreamOfCache, u.meters, graphs.Nodes))
	}
	p := profile.New(graphs.Batches, u.meters, graphs.Nodes)
	if p != nil {
		p.KeepsRemainder()
	}
	batches, stopBatches, err := u.iterate(u.run.stream.streams.Plain, graphs.Batches, p)
	if err != nil {
		return nil, nil, err
	}
	u.relay.from = batches
	u.mu.Lock()
	u.keptCounts = profile.Counts{}
	u.mu.Unlock()
	if p = profile.New(graphs.UpstreamOfCache, u.meters, graphs.Nodes); p != nil {
		p.Relay = true
	}
	it, stopIt, err := u.iterate(u.pulling, graphs.UpstreamOfCache, p)
	stop := func() {
		if it != nil {
			stopIt()
		}
		stopBatches()
		for _, batch := range u.KeptBack() {
			tf.ReleaseAll(batch)
		}
	}
	if err != nil {
		stop()
	}
	return it, stop, err
}

// iterate makes the iterator of a graph, and the function that closes it.
func (u *upstreamParts) iterate(runtime *tf.Context, serialised []byte, p *profile.Profiler) (*tf.Iterator, func(), error) {
	it, stop, err := u.run.newIterator(runtime, serialised, p)
	return it, func() {
		if p != nil {
			// The counts since the last sample would be lost.
			u.mu.Lock()
			kept := u.keptCounts
			u.mu.Unlock()
			p.Read(it, kept)
		}
		stop()
	}, err
}

// keepBack keeps a short batch back until the end of the part.
func (u *upstreamParts) keepBack(batch []*tf.Tensor) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.kept = append(u.kept, batch)
	u.keptCounts.Add(profile.Counts{Elements: 1, Out: payload.NewSingle(batch).Parts.Raw})
}

// KeptBack implements cachefill.Upstream.
func (u *upstreamParts) KeptBack() (batches [][]*tf.Tensor) {
	u.mu.Lock()
	defer u.mu.Unlock()
	batches, u.kept = u.kept, nil
	return batches
}

// continues makes the shared iterator begin a part, unless the iterator has begun with that part. It reports whether
// the iterator runs the part.
func (u *upstreamParts) continues(part uint32, graphs *rewrite.StreamGraphs) bool {
	if u.begun == int64(part) {
		return true
	}
	key, arguments, err := pooled.Separate(graphs.UpstreamOfCache)
	if err != nil || key != u.key || !u.shared.Idle() {
		return false
	}
	tensors, err := streamArguments(arguments)
	return err == nil && u.shared.Continue(tensors) == nil
}
