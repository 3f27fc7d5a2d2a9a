package payload

import (
	"sync"
)

// poolKeep bounds the idle buffers of a stream.
const poolKeep = 8

// Pool keeps buffers outside of Go's heap between uses. After Close, every buffer that comes back is freed.
type Pool[T interface{ Free() }] struct {
	mu     sync.Mutex
	idle   []T
	closed bool
}

// Get returns an idle buffer, or one that make makes.
func (p *Pool[T]) Get(make func() T) T {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.idle); n > 0 {
		b := p.idle[n-1]
		p.idle = p.idle[:n-1]
		return b
	}
	return make()
}

// Put returns a buffer to the pool.
func (p *Pool[T]) Put(b T) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || len(p.idle) >= poolKeep {
		b.Free()
		return
	}
	p.idle = append(p.idle, b)
}

// Close frees the idle buffers.
func (p *Pool[T]) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, b := range p.idle {
		b.Free()
	}
	p.idle = nil
}
