package resume

import (
	"sync"

	"github.com/pecan-ml/pecan/native/client/element"
)

// KeptDeliveries is how many deliveries the log keeps. TensorFlow reads ahead of the training loop, and does
// not say how far.
const KeptDeliveries = 1024

// delivery is the result of one call: elements, or an error in the position of elements.
type delivery struct {
	pass *Pass
	element.Span
	more   []element.Span
	failed bool
}

// results returns how many results of next() the delivery is.
func (d *delivery) results() uint64 {
	if d.failed {
		return 1
	}
	n := d.Elements
	for _, p := range d.more {
		n += p.Elements
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
	// total is how many results were delivered. before is the position before the oldest kept delivery, after
	// that many results.
	total   uint64
	before  position
	results uint64
	// iterations is how many iterations have begun. newest is the last pass that delivered or ended. The log
	// ignores an iteration that delivers after a newer one; interleaved is the newest of those.
	iterations  uint64
	newest      *Pass
	interleaved uint64
	// iterators holds the newest iterators, oldest first.
	iterators []iterator
	// point is where the next iteration begins; nil for the start of an epoch. pointTaken is set if that iteration has
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
	// from is how many results were delivered before those of the iterator. It is known once the iterator has
	// begun.
	from  uint64
	begun bool
}

// NewIterator records that an iterator is created, and returns the number of its first iteration.
func (l *Log) NewIterator() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	next := l.iterations + 1
	if n := len(l.iterators); n == 0 || l.iterators[n-1].iteration < next {
		l.iterators = append(l.iterators, iterator{iteration: next})
	}
	if len(l.iterators) > keptIterators {
		l.iterators = l.iterators[1:]
	}
	return next
}

// NewIteration returns the number of an iteration that begins.
func (l *Log) NewIteration() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.iterations++
	return l.iterations
}

// Delivered records that elements were returned, or an error in their position.
func (l *Log) Delivered(pass *Pass, elements *element.Elements, failed bool) {
	d := delivery{pass: pass, Span: element.Span{Stream: elements.Stream, First: elements.Index, Elements: uint64(elements.Count)}, failed: failed}
	if len(elements.Spans) > 0 {
		d.Span, d.more = elements.Spans[0], elements.Spans[1:]
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.newest != nil && pass.Iteration < l.newest.Iteration {
		l.interleaved = max(l.interleaved, pass.Iteration)
		return
	}
	l.newest = pass
	for i := len(l.iterators) - 1; i >= 0 && !l.iterators[i].begun; i-- {
		if r := &l.iterators[i]; r.iteration <= pass.Iteration {
			r.from, r.begun = l.total, true
		}
	}
	l.total += d.results()
	if len(l.kept) < KeptDeliveries {
		l.kept = append(l.kept, d)
		return
	}
	oldest := &l.kept[l.first]
	n := oldest.results()
	l.before.add(oldest, n)
	l.before.compact()
	l.results += n
	*oldest = d
	l.first = (l.first + 1) % KeptDeliveries
}

// Ended records that an iteration returned its end.
func (l *Log) Ended(pass *Pass) {
	l.mu.Lock()
	defer l.mu.Unlock()
	pass.ended = true
	if l.newest == nil || pass.Iteration >= l.newest.Iteration {
		l.newest = pass
	}
}

// TakePoint returns the point where the next iteration begins, once.
func (l *Log) TakePoint() *Point {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pointTaken {
		return nil
	}
	l.pointTaken = true
	return l.point
}

// HandOver passes the point of an iteration without deliveries to the next one, unless that has begun already.
func (l *Log) HandOver(iteration uint64, at *Point) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.iterations == iteration {
		l.point, l.pointTaken = at, false
	}
}

// Load returns the log of a dataset whose next iteration begins at a point. Numbers continue, so that older
// iterators are recognised.
func (l *Log) Load(at *Point) *Log {
	l.mu.Lock()
	defer l.mu.Unlock()
	return &Log{iterations: l.iterations, point: at}
}
