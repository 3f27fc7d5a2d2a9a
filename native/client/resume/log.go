package resume

import (
	"sync"

	"github.com/pecan-ml/pecan/native/client/element"
)

// KeptDeliveries is how many deliveries back a position can be told. TensorFlow reads ahead of the training loop, and says
// to nobody how far.
const KeptDeliveries = 1024

// delivery is what one call handed over: rows, or an error in the place of rows.
type delivery struct {
	pass *Pass
	element.Span
	more   []element.Span
	failed bool
}

// steps is how many answers of next() the delivery is.
func (d *delivery) steps() uint64 {
	if d.failed {
		return 1
	}
	n := d.Rows
	for _, p := range d.more {
		n += p.Rows
	}
	return n
}

// Log remembers where the last deliveries of a dataset's iterations were, so that the one that the training loop has
// come to can be told.
type Log struct {
	mu sync.Mutex
	// kept is a ring: the oldest delivery is at index first.
	kept  []delivery
	first int
	// total steps were delivered. before is the place in front of the oldest one kept, after that many steps.
	total  uint64
	before position
	steps  uint64
	// iterations were begun. newest is the last pass that delivered or ended. An iteration that delivers after a newer one is left
	// out of everything here; mixed is the newest of those.
	iterations  uint64
	newest      *Pass
	interleaved uint64
	// readings that were begun last, the oldest first.
	iterators []iterator
	// resumed is where the next iteration begins; nil at the start of an epoch. taken: it has begun.
	point      *Point
	pointTaken bool
}

// keptIterators is how many iterators of one dataset, made one after another, can tell their positions.
const keptIterators = 64

// iterator is an iterator of the training loop: the iterations from a number on, of which an outer repeat() makes many.
type iterator struct {
	iteration uint64
	// from is how many steps were delivered before its own; it is known once it has begun.
	from  uint64
	begun bool
}

// NewIterator notes that an iterator is made, and gives the number of its first iteration.
func (p *Log) NewIterator() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	next := p.iterations + 1
	if n := len(p.iterators); n == 0 || p.iterators[n-1].iteration < next {
		p.iterators = append(p.iterators, iterator{iteration: next})
	}
	if len(p.iterators) > keptIterators {
		p.iterators = p.iterators[1:]
	}
	return next
}

// NewIteration gives the number of an iteration that begins.
func (p *Log) NewIteration() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.iterations++
	return p.iterations
}

// Delivered notes rows that were handed over, or that an error was handed over in their place.
func (p *Log) Delivered(pass *Pass, rows *element.Rows, failed bool) {
	d := delivery{pass: pass, Span: element.Span{Stream: rows.Stream, First: rows.Index, Rows: uint64(rows.Count)}, failed: failed}
	if len(rows.Spans) > 0 {
		d.Span, d.more = rows.Spans[0], rows.Spans[1:]
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.newest != nil && pass.Iteration < p.newest.Iteration {
		p.interleaved = max(p.interleaved, pass.Iteration)
		return
	}
	p.newest = pass
	for i := len(p.iterators) - 1; i >= 0 && !p.iterators[i].begun; i-- {
		if r := &p.iterators[i]; r.iteration <= pass.Iteration {
			r.from, r.begun = p.total, true
		}
	}
	p.total += d.steps()
	if len(p.kept) < KeptDeliveries {
		p.kept = append(p.kept, d)
		return
	}
	oldest := &p.kept[p.first]
	n := oldest.steps()
	p.before.add(oldest, n)
	p.steps += n
	*oldest = d
	p.first = (p.first + 1) % KeptDeliveries
}

// Ended notes that an iteration's end was handed out.
func (p *Log) Ended(pass *Pass) {
	p.mu.Lock()
	defer p.mu.Unlock()
	pass.ended = true
	if p.newest == nil || pass.Iteration >= p.newest.Iteration {
		p.newest = pass
	}
}

// TakePoint gives the place at which the next iteration begins, to it alone.
func (p *Log) TakePoint() *Point {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pointTaken {
		return nil
	}
	p.pointTaken = true
	return p.point
}

// HandOver gives the place of an iteration that handed out nothing to the next one, unless that has begun already.
func (p *Log) HandOver(iteration uint64, at *Point) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.iterations == iteration {
		p.point, p.pointTaken = at, false
	}
}

// Load are those of a dataset whose next iteration begins at a place. Numbers go on, so that an older iterator is found to be one.
func (p *Log) Load(at *Point) *Log {
	p.mu.Lock()
	defer p.mu.Unlock()
	return &Log{iterations: p.iterations, point: at}
}
