package store

import (
	"fmt"
	"maps"
	"slices"
	"sync"
)

// Memory keeps graphs while the process lives and forgets records at once: nothing outlives the process.
type Memory struct {
	mu     sync.Mutex
	graphs map[string][]byte
}

// NewMemory makes an empty one.
func NewMemory() *Memory { return &Memory{graphs: map[string][]byte{}} }

// Dir is empty: nothing is on disk.
func (m *Memory) Dir() string { return "" }

// Load finds nothing.
func (m *Memory) Load(_, _ func([]byte) error) error { return nil }

// Append forgets the records.
func (m *Memory) Append([][]byte) error { return nil }

// Compact forgets the snapshot.
func (m *Memory) Compact([]byte) error { return nil }

// PutGraph keeps a graph; the caller does not change it afterwards.
func (m *Memory) PutGraph(fingerprint string, graph []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.graphs[fingerprint] = graph
	return nil
}

// Graph gives a graph, not to be changed, or ErrNoGraph.
func (m *Memory) Graph(fingerprint string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	graph, ok := m.graphs[fingerprint]
	if !ok {
		return nil, fmt.Errorf("%w: %s", ErrNoGraph, fingerprint)
	}
	return graph, nil
}

// Graphs gives the fingerprints of all graphs.
func (m *Memory) Graphs() ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.graphs)), nil
}

// DeleteGraph forgets a graph.
func (m *Memory) DeleteGraph(fingerprint string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.graphs, fingerprint)
	return nil
}

// Figures are none: nothing is on disk.
func (m *Memory) Figures() Figures { return Figures{} }

// Failed is never closed.
func (m *Memory) Failed() <-chan struct{} { return nil }

// Close forgets everything.
func (m *Memory) Close() error { return nil }
