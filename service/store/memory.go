package store

import (
	"fmt"
	"maps"
	"slices"
	"sync"
)

// Memory is a store without a directory. It keeps graphs in memory and discards records, so nothing survives the process.
type Memory struct {
	mu     sync.Mutex
	graphs map[string][]byte
}

// NewMemory returns an empty store.
func NewMemory() *Memory { return &Memory{graphs: map[string][]byte{}} }

// Dir returns "".
func (m *Memory) Dir() string { return "" }

// Load calls neither function.
func (m *Memory) Load(_, _ func([]byte) error) error { return nil }

// Append discards the records.
func (m *Memory) Append([][]byte) error { return nil }

// Compact discards the snapshot.
func (m *Memory) Compact([]byte) error { return nil }

// PutGraph stores a graph. The caller must not change the slice afterwards.
func (m *Memory) PutGraph(fingerprint string, graph []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.graphs[fingerprint] = graph
	return nil
}

// Graph returns a graph, or ErrNoGraph. The caller must not change the slice.
func (m *Memory) Graph(fingerprint string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	graph, ok := m.graphs[fingerprint]
	if !ok {
		return nil, fmt.Errorf("%w: %s", ErrNoGraph, fingerprint)
	}
	return graph, nil
}

// Graphs returns the fingerprints of all graphs.
func (m *Memory) Graphs() ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.graphs)), nil
}

// DeleteGraph deletes a graph.
func (m *Memory) DeleteGraph(fingerprint string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.graphs, fingerprint)
	return nil
}

// Metrics returns zeros: nothing is on disk.
func (m *Memory) Metrics() Metrics { return Metrics{} }

// Failed returns nil: a store in memory cannot fail.
func (m *Memory) Failed() <-chan struct{} { return nil }

// Close does nothing.
func (m *Memory) Close() error { return nil }
