package resume

import (
	"sync"

	"github.com/pecan-ml/pecan/native/client/element"
)

// KeptDeliveries is how many deliveries the log keeps. TensorFlow reads ahead of the training loop, and does
// not say how far.
const KeptDeliveries = 1024

// delivery is what one call returned: rows, or an error in the position of rows.
type delivery struct {
	pass *Pass
	element.Span
	more   []element.Span
	failed bool
}

// steps returns how many results of next() the delivery is.
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

// Log records the newest deliveries of a dataset's iterations, so that it can return the position that the
// training loop has reached.
type Log struct {
	mu sync.Mutex
	// kept is a ring. Its oldest delivery is at index first.
	kept  []delivery
	first int
	// total is how many steps were delivered. before is the position before the oldest kept delivery, after
	// that many steps.
	total  uint64
	before position
	steps  uint64
	// iterations is how many iterations have begun. newest is the last pass that delivered or ended. The log
	// ignores an iteration that delivers after a newer one; interleaved is the newest of those.
	iterations  uint64
	newest      *Pass
	interleaved uint64
	// iterators holds the newest iterators, oldest first.
	iterators []iterator
	// point is where the next iteration begins; nil for the start of an epoch. pointTaken: that iteration has
	// begun.
	point      *Point
	pointTaken bool
}

// keptIterators is for how many iterators of one dataset, created one after another, the log can return
// positions.
const keptIterators = 64

// iterator is an iterator of the training loop. It consists of the iterations from a number on, because an
// outer repeat() creates many.
type iterator struct {
	iteration uint64
	// from is how many steps were delivered before those of the iterator. It is known once the iterator has
	// begun.
	from  uint64
	begun bool
}

// NewIterator records that an iterator is created, and returns the number of its first iteration.
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

// NewIteration returns the number of an iteration that begins.
func (p *Log) NewIteration() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.iterations++
	return p.iterations
}

// Delivered records that rows were returned, or an error in their position.
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

// Ended records that an iteration returned its end.
func (p *Log) Ended(pass *Pass) {
	p.mu.Lock()
	defer p.mu.Unlock()
	pass.ended = true
	if p.newest == nil || pass.Iteration >= p.newest.Iteration {
		p.newest = pass
	}
}

// TakePoint returns the point where the next iteration begins, once.
func (p *Log) TakePoint() *Point {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pointTaken {
		return nil
	}
	p.pointTaken = true
	return p.point
}

// HandOver gives the point of an iteration without deliveries to the next one, unless that has begun already.
func (p *Log) HandOver(iteration uint64, at *Point) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.iterations == iteration {
		p.point, p.pointTaken = at, false
	}
}

// Load returns the log of a dataset whose next iteration begins at a point. Numbers continue, so that older
// iterators are recognised.
func (p *Log) Load(at *Point) *Log {
	p.mu.Lock()
	defer p.mu.Unlock()
	return &Log{iterations: p.iterations, point: at}
}
