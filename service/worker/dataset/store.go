package dataset

import (
	"context"
	"slices"
	"sync"

	graphorder "github.com/pecan-ml/pecan/service/graph/order"
	"github.com/pecan-ml/pecan/service/graph/rewrite"
	"github.com/pecan-ml/pecan/service/graph/split"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/graph"
)

// maxGraphs is how many parsed datasets are kept: jobs come back to them with every epoch. keepOrders is how many orders of the steps of
// each are: the one that streams run in, and one that is tried.
const (
	maxGraphs = 4
	maxOrders = 2
)

// Planner gives the graphs of streams.
type Planner interface {
	Instantiate(ctx context.Context, fingerprint string, plan *pecanv1.Plan, at rewrite.At) (*rewrite.StreamGraphs, error)
	// files are those that a stream reads, in order; nil where that is not known.
	Files(ctx context.Context, fingerprint string, plan *pecanv1.Plan, stream uint32) []string
}

// Store gives the graphs of streams. Datasets are fetched once and kept parsed, the least recently used one is dropped.
type Store struct {
	fetch func(ctx context.Context, fingerprint string) ([]byte, error)

	mu    sync.Mutex
	known []*knownGraph
}

type knownGraph struct {
	fingerprint string
	// loaded is closed when parsed or err is set.
	loaded chan struct{}
	parsed *graph.Graph
	err    error

	// ordering is held while the steps are put in another order: streams that begin together want the same one.
	ordering sync.Mutex
	// ordered are the orders that were asked for last, the newest first.
	ordered []orderedGraph
}

type orderedGraph struct {
	order []string
	graph *graph.Graph
}

func NewStore(fetch func(context.Context, string) ([]byte, error)) *Store {
	return &Store{fetch: fetch}
}

// Instantiate gives the graphs of one stream.
func (g *Store) Instantiate(ctx context.Context, fingerprint string, plan *pecanv1.Plan, at rewrite.At) (*rewrite.StreamGraphs, error) {
	parsed, err := g.inOrder(ctx, fingerprint, plan.GetOrder())
	if err != nil {
		return nil, err
	}
	at.Files = FileStates(rewrite.TableFiles(parsed))
	return rewrite.Instantiate(parsed, plan, at)
}

func (g *Store) Files(ctx context.Context, fingerprint string, plan *pecanv1.Plan, stream uint32) []string {
	parsed, err := g.inOrder(ctx, fingerprint, plan.GetOrder())
	if err != nil {
		return nil
	}
	return split.Files(parsed, plan, stream)
}

// Get gives a dataset as it was registered.
func (g *Store) Get(ctx context.Context, fingerprint string) (*graph.Graph, error) {
	return g.inOrder(ctx, fingerprint, nil)
}

// inOrder gives a dataset with its steps in an order; none is the registered one.
func (g *Store) inOrder(ctx context.Context, fingerprint string, order []string) (*graph.Graph, error) {
	known, err := g.find(ctx, fingerprint)
	if err != nil {
		return nil, err
	}
	return known.inOrder(order)
}

func (k *knownGraph) inOrder(order []string) (*graph.Graph, error) {
	if len(order) == 0 {
		return k.parsed, nil
	}
	k.ordering.Lock()
	defer k.ordering.Unlock()
	for i, each := range k.ordered {
		if slices.Equal(each.order, order) {
			copy(k.ordered[1:i+1], k.ordered[:i])
			k.ordered[0] = each
			return each.graph, nil
		}
	}
	ordered, err := graphorder.Reorder(k.parsed, order)
	if err != nil {
		return nil, reason.New(reason.Internal, "the order of the steps of dataset %s cannot be had here: %w", k.fingerprint, err)
	}
	k.ordered = append([]orderedGraph{{order, ordered}}, k.ordered[:min(len(k.ordered), maxOrders-1)]...)
	return ordered, nil
}

func (g *Store) find(ctx context.Context, fingerprint string) (*knownGraph, error) {
	for {
		known, mine := g.slot(fingerprint)
		if mine {
			g.load(ctx, known)
		}
		select {
		case <-known.loaded:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		// Another stream's fetch ended with that stream; this one tries itself.
		if known.err == nil || mine || ctx.Err() != nil {
			return known, known.err
		}
	}
}

// slot finds the dataset, or makes a place for it that the caller has to fill.
func (g *Store) slot(fingerprint string) (known *knownGraph, mine bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, known := range g.known {
		if known.fingerprint == fingerprint {
			copy(g.known[1:i+1], g.known[:i])
			g.known[0] = known
			return known, false
		}
	}
	known = &knownGraph{fingerprint: fingerprint, loaded: make(chan struct{})}
	g.known = append([]*knownGraph{known}, g.known[:min(len(g.known), maxGraphs-1)]...)
	return known, true
}

func (g *Store) load(ctx context.Context, known *knownGraph) {
	defer close(known.loaded)
	data, err := g.fetch(ctx, known.fingerprint)
	if err == nil {
		known.parsed, err = graph.Parse(data, graph.PeerLimits())
	}
	if err == nil {
		return
	}
	known.err = err
	// A failure is not kept.
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range g.known {
		if g.known[i] == known {
			g.known = append(g.known[:i], g.known[i+1:]...)
			return
		}
	}
}
