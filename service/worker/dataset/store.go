package dataset

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	graphorder "github.com/pecan-ml/pecan/service/graph/order"
	"github.com/pecan-ml/pecan/service/graph/rewrite"
	"github.com/pecan-ml/pecan/service/graph/split"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/graph"
)

// maxGraphs bounds the parsed datasets that are kept, because jobs need theirs again in every epoch. maxOrders
// bounds the orders of the steps that are kept of each: the one that streams run in, and one under trial.
const (
	maxGraphs = 4
	maxOrders = 2
)

// Instantiator instantiates the graphs of streams.
type Instantiator interface {
	Instantiate(ctx context.Context, fingerprint string, plan *pecanv1.Plan, at rewrite.At) (*rewrite.StreamGraphs, error)
	// Files returns the files that a stream reads in an epoch, in order; nil if they are not known.
	Files(ctx context.Context, fingerprint string, plan *pecanv1.Plan, of split.EpochStream) []string
}

// Store instantiates the graphs of streams. It fetches each dataset once and keeps it parsed. The least recently
// used dataset is dropped.
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
	// ready is true once parsed is set. So TensorFlow's threads, which run outside of a test's simulated time, need not use
	// the channel.
	ready atomic.Bool

	// ordering is held while the steps are reordered: streams that begin together want the same order.
	ordering sync.Mutex
	// ordered are the orders requested last, the newest first.
	ordered []orderedGraph
}

type orderedGraph struct {
	order []string
	graph *graph.Graph
}

// NewStore makes an empty Store, which fetches datasets by fingerprint.
func NewStore(fetch func(context.Context, string) ([]byte, error)) *Store {
	return &Store{fetch: fetch}
}

// Instantiate makes the graphs of one stream.
func (s *Store) Instantiate(ctx context.Context, fingerprint string, plan *pecanv1.Plan, at rewrite.At) (*rewrite.StreamGraphs, error) {
	parsed, err := s.inOrder(ctx, fingerprint, plan.GetOrder())
	if err != nil {
		return nil, err
	}
	at.Files = FileStates(ctx, rewrite.TableFiles(parsed))
	return rewrite.Instantiate(parsed, plan, at)
}

// Files returns the files that a stream reads in an epoch, in order; nil if they are not known.
func (s *Store) Files(ctx context.Context, fingerprint string, plan *pecanv1.Plan, of split.EpochStream) []string {
	parsed, err := s.inOrder(ctx, fingerprint, plan.GetOrder())
	if err != nil {
		return nil
	}
	return split.Files(parsed, plan, of)
}

// Get returns a dataset as it was registered.
func (s *Store) Get(ctx context.Context, fingerprint string) (*graph.Graph, error) {
	return s.inOrder(ctx, fingerprint, nil)
}

// inOrder returns a dataset with its steps in an order; an empty order is the registered one.
func (s *Store) inOrder(ctx context.Context, fingerprint string, order []string) (*graph.Graph, error) {
	known, err := s.find(ctx, fingerprint)
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
		return nil, reason.New(reason.Internal, "reorder the steps of dataset %s: %w", k.fingerprint, err)
	}
	k.ordered = append([]orderedGraph{{order, ordered}}, k.ordered[:min(len(k.ordered), maxOrders-1)]...)
	return ordered, nil
}

func (s *Store) find(ctx context.Context, fingerprint string) (*knownGraph, error) {
	for {
		known, mine := s.slot(fingerprint)
		if known.ready.Load() {
			return known, nil
		}
		if mine {
			s.load(ctx, known)
		}
		select {
		case <-known.loaded:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		// The fetch of another stream ended with that stream. This stream tries itself.
		if known.err == nil || mine || ctx.Err() != nil {
			return known, known.err
		}
	}
}

// slot finds the dataset, or adds an entry that the caller has to load.
func (s *Store) slot(fingerprint string) (known *knownGraph, mine bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, known := range s.known {
		if known.fingerprint == fingerprint {
			copy(s.known[1:i+1], s.known[:i])
			s.known[0] = known
			return known, false
		}
	}
	known = &knownGraph{fingerprint: fingerprint, loaded: make(chan struct{})}
	s.known = append([]*knownGraph{known}, s.known[:min(len(s.known), maxGraphs-1)]...)
	return known, true
}

func (s *Store) load(ctx context.Context, known *knownGraph) {
	defer close(known.loaded)
	data, err := s.fetch(ctx, known.fingerprint)
	if err == nil {
		known.parsed, err = graph.Parse(data, graph.PeerLimits())
	}
	if err == nil {
		known.ready.Store(true)
		return
	}
	known.err = err
	// A failure is not kept.
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.known {
		if s.known[i] == known {
			s.known = append(s.known[:i], s.known[i+1:]...)
			return
		}
	}
}
