package resume

import (
	"maps"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// afterLast returns the point where an iteration begins that is opened now.
func (p *Log) afterLast() *Point {
	switch {
	case p.newest != nil:
		return &Point{Position: &pecanv1.Position{Epoch: p.newest.Epoch.Number() + 1}}
	case p.point != nil:
		return p.point
	}
	return &Point{Position: &pecanv1.Position{}}
}

// NextEpoch returns the number of the epoch after all that iterations have read or will resume in.
func (p *Log) NextEpoch() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	var next uint64
	if p.newest != nil {
		next = p.newest.Epoch.Number() + 1
	}
	if p.point != nil {
		next = max(next, p.point.Position.GetEpoch()+1)
	}
	return next
}

// At returns the point after so many steps of an iterator, or of all iterations if reading is 0. ended: the
// training loop is between two of its iterators.
func (p *Log) At(reading, steps uint64, ended bool) (*Point, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if ended {
		return p.afterLast(), nil
	}
	from, err := p.from(reading)
	if err != nil {
		return nil, err
	}
	to := from + steps
	switch {
	case p.interleaved >= max(reading, 1):
		return nil, reason.New(reason.BadArgument, "save the position: two iterators read this dataset at the same time, so it is unknown which of them a step belongs to. Give each one its own dataset (apply distribute() for each)")
	case to > p.total:
		return nil, reason.New(reason.BadArgument, "save the position after %d elements: only %d were returned since the dataset or its iterator was created or its state was loaded", steps, p.total-from)
	case to < p.steps:
		return nil, reason.New(reason.BadArgument, "save the position after %d elements: %d were returned since, and only the last %d deliveries are kept, from element %d on", steps, p.total-from, KeptDeliveries, p.steps-from)
	}
	here, next, left := p.before, 0, to-p.steps
	here.next = maps.Clone(p.before.next)
	for ; left > 0; next++ {
		d := &p.kept[(p.first+next)%len(p.kept)]
		n := min(left, d.steps())
		here.add(d, n)
		left -= n
		if n < d.steps() {
			break
		}
	}
	if steps == 0 {
		// Elements that other iterators returned do not count for this one.
		here = position{}
	}
	var then *Pass
	if next < len(p.kept) {
		then = p.kept[(p.first+next)%len(p.kept)].pass
	}
	switch {
	case then == nil && (here.pass == nil || here.over()):
		return p.afterLast(), nil
	case then != nil && then != here.pass && here.leadsTo(then):
		return then.begin(), nil
	}
	return &Point{
		Position: here.pass.Epoch.PositionAt(here.next, here.turn), Passes: here.pass.Passes, Elements: here.pass.Elements + here.elements,
	}, nil
}

// from returns how many steps were delivered before those of an iterator.
func (p *Log) from(reading uint64) (uint64, error) {
	if reading == 0 {
		return 0, nil
	}
	for _, r := range p.iterators {
		switch {
		case r.iteration == reading && r.begun:
			return r.from, nil
		case r.iteration == reading:
			return p.total, nil
		}
	}
	return 0, reason.New(reason.BadArgument, "save the position: since this iterator was created, another one loaded the dataset's state, or %d others were created; create a new one", keptIterators)
}
