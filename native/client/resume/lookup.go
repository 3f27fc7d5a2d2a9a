package resume

import (
	"maps"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// afterLast is the place at which an iteration begins that is opened now.
func (p *Log) afterLast() *Point {
	switch {
	case p.newest != nil:
		return &Point{Position: &pecanv1.Position{Epoch: p.newest.Epoch.Number() + 1}}
	case p.point != nil:
		return p.point
	}
	return &Point{Position: &pecanv1.Position{}}
}

// NextEpoch is the number of the epoch behind all that iterations have had or are to go on in.
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

// At gives the place behind so many steps of a reading, or of all iterations where that is 0. ended: the training loop is between two
// of its iterators.
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
		return nil, reason.New(reason.BadArgument, "tell the position: two iterators read this dataset at the same time, and which of them a step belongs to is not known. Give each a dataset of its own (apply distribute() for each)")
	case to > p.total:
		return nil, reason.New(reason.BadArgument, "tell the position behind %d elements: only %d were handed over since the dataset or its iterator was made or its state was loaded", steps, p.total-from)
	case to < p.steps:
		return nil, reason.New(reason.BadArgument, "tell the position behind %d elements: %d were handed over since, and only the last %d deliveries are kept, from element %d on", steps, p.total-from, KeptDeliveries, p.steps-from)
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
		// What other iterators had is not what this one has.
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

// from is how many steps were delivered before those of a reading.
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
	return 0, reason.New(reason.BadArgument, "tell the position: since this iterator was made, the dataset's state was loaded by another, or %d others were made; make a new one", keptIterators)
}
