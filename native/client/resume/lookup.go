package resume

import (
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// afterLast returns the point at which the next iteration begins.
func (l *Log) afterLast() *Point {
	switch {
	case l.newest != nil:
		return &Point{Position: &pecanv1.Position{Epoch: l.newest.Epoch.Number() + 1}}
	case l.point != nil:
		return l.point
	}
	return &Point{Position: &pecanv1.Position{}}
}

// NextEpoch returns the number of the epoch after all that iterations have read or will resume in.
func (l *Log) NextEpoch() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	var next uint64
	if l.newest != nil {
		next = l.newest.Epoch.Number() + 1
	}
	if l.point != nil {
		next = max(next, l.point.Position.GetEpoch()+1)
	}
	return next
}

// At returns the point after a number of results of an iterator; iterator is its number, or 0 for those of all iterators. ended is true if the
// training loop is between two of its iterators.
func (l *Log) At(iterator, results uint64, ended bool) (*Point, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ended {
		return l.afterLast(), nil
	}
	from, err := l.from(iterator)
	if err != nil {
		return nil, err
	}
	to := from + results
	switch {
	case l.interleaved >= max(iterator, 1):
		return nil, reason.New(reason.BadArgument, "save a state: two iterators read this dataset at the same time, so a number of elements names no position. Apply distribute() once for each iterator")
	case to > l.total:
		return nil, reason.New(reason.BadArgument, "save a state after %d elements: only %d were returned since the dataset or its iterator was created or its state was loaded", results, l.total-from)
	case to < l.results:
		return nil, reason.New(reason.BadArgument, "save a state after %d elements: %d were returned since, and only the last %d deliveries are kept, from element %d on", results, l.total-from, KeptDeliveries, l.results-from)
	}
	l.before.compact()
	here, next, left := l.before, 0, to-l.results
	here.at = l.before.at.Clone()
	for ; left > 0; next++ {
		d := &l.kept[(l.first+next)%len(l.kept)]
		n := min(left, d.results())
		here.add(d, n)
		left -= n
		if n < d.results() {
			break
		}
	}
	if results == 0 {
		// Elements that other iterators returned do not count for this one.
		here = position{}
	}
	var then *Pass
	if next < len(l.kept) {
		then = l.kept[(l.first+next)%len(l.kept)].pass
	}
	switch {
	case then == nil && (here.pass == nil || here.over()):
		return l.afterLast(), nil
	case then != nil && then != here.pass && here.leadsTo(then):
		return then.begin(), nil
	}
	return &Point{
		Position: here.pass.Epoch.PositionAt(here.at, here.turn), Passes: here.pass.Passes, Elements: here.pass.Elements + here.elements,
	}, nil
}

// from returns how many results were delivered before those of an iterator.
func (l *Log) from(iterator uint64) (uint64, error) {
	if iterator == 0 {
		return 0, nil
	}
	for _, r := range l.iterators {
		switch {
		case r.iteration == iterator && r.begun:
			return r.from, nil
		case r.iteration == iterator:
			return l.total, nil
		}
	}
	return 0, reason.New(reason.BadArgument, "save a state: since this iterator was created, another one loaded the dataset's state, or %d others were created; create a new one", keptIterators)
}
