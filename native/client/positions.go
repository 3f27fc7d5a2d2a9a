package client

import (
	"maps"
	"sync"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// keptDeliveries is how many deliveries back a position can be told. TensorFlow reads ahead of the training loop, and says
// to nobody how far.
const keptDeliveries = 1024

// piece is consecutive rows of one stream.
type piece struct {
	stream uint32
	first  uint64
	rows   uint64
}

// pass is an epoch as an iteration reads it.
type pass struct {
	epoch *epoch
	// iteration numbers the iterations of a dataset.
	iteration uint64
	// done passes of an outer repeat came before in the iteration, with that many elements.
	done     uint64
	elements uint64
	// over: the iteration has handed out its end behind this pass.
	over bool
	// left: the place was another iteration's, which had not handed out anything.
	left bool
}

// delivery is what one call handed over: rows, or an error in the place of rows.
type delivery struct {
	pass *pass
	piece
	more   []piece
	failed bool
}

// steps is how many answers of next() the delivery is.
func (d *delivery) steps() uint64 {
	if d.failed {
		return 1
	}
	n := d.rows
	for _, p := range d.more {
		n += p.rows
	}
	return n
}

// place is a position that is being added up.
type place struct {
	pass *pass
	next map[uint32]uint64
	turn uint32
	// elements of the pass so far, failed ones not counted.
	elements uint64
}

// add moves the place behind up to n steps of a delivery.
func (p *place) add(d *delivery, n uint64) {
	if p.pass != d.pass {
		*p = place{pass: d.pass, next: map[uint32]uint64{}}
		for stream, next := range d.pass.epoch.start.GetNext() {
			p.next[uint32(stream)] = next
		}
		p.turn = d.pass.epoch.start.GetTurn()
	}
	if d.failed {
		p.move(d.piece, d.rows)
		return
	}
	p.elements += n
	n -= p.move(d.piece, n)
	for _, more := range d.more {
		n -= p.move(more, n)
	}
}

// move takes up to n rows of a piece and gives how many there were.
func (p *place) move(from piece, n uint64) uint64 {
	n = min(n, from.rows)
	if n > 0 {
		p.next[from.stream], p.turn = from.first+n, from.stream+1
	}
	return n
}

// positions remembers where the last deliveries of a dataset's iterations were, so that the one that the training loop has
// come to can be told.
type positions struct {
	mu sync.Mutex
	// kept is a ring: the oldest delivery is at index first.
	kept  []delivery
	first int
	// total steps were delivered. before is the place in front of the oldest one kept, after that many steps.
	total  uint64
	before place
	steps  uint64
	// iterations were begun. newest is the last pass that delivered or ended. An iteration that delivers after a newer one is left
	// out of everything here; mixed is the newest of those.
	iterations uint64
	newest     *pass
	mixed      uint64
	// readings that were begun last, the oldest first.
	readings []reading
	// resumed is where the next iteration begins; nil at the start of an epoch. taken: it has begun.
	resumed *Resume
	taken   bool
}

// keptReadings is how many iterators of one dataset, made one after another, can tell their positions.
const keptReadings = 64

// reading is an iterator of the training loop: the iterations from a number on, of which an outer repeat() makes many.
type reading struct {
	iteration uint64
	// from is how many steps were delivered before its own; it is known once it has begun.
	from  uint64
	begun bool
}

// read notes that an iterator is made, and gives the number of its first iteration.
func (p *positions) read() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	next := p.iterations + 1
	if n := len(p.readings); n == 0 || p.readings[n-1].iteration < next {
		p.readings = append(p.readings, reading{iteration: next})
	}
	if len(p.readings) > keptReadings {
		p.readings = p.readings[1:]
	}
	return next
}

// iteration gives the number of an iteration that begins.
func (p *positions) iteration() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.iterations++
	return p.iterations
}

// delivered notes rows that were handed over, or that an error was handed over in their place.
func (p *positions) delivered(pass *pass, rows *Rows, failed bool) {
	d := delivery{pass: pass, piece: piece{stream: rows.Stream, first: rows.Index, rows: uint64(rows.Count)}, failed: failed}
	if len(rows.pieces) > 0 {
		d.piece, d.more = rows.pieces[0], rows.pieces[1:]
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.newest != nil && pass.iteration < p.newest.iteration {
		p.mixed = max(p.mixed, pass.iteration)
		return
	}
	p.newest = pass
	for i := len(p.readings) - 1; i >= 0 && !p.readings[i].begun; i-- {
		if r := &p.readings[i]; r.iteration <= pass.iteration {
			r.from, r.begun = p.total, true
		}
	}
	p.total += d.steps()
	if len(p.kept) < keptDeliveries {
		p.kept = append(p.kept, d)
		return
	}
	oldest := &p.kept[p.first]
	n := oldest.steps()
	p.before.add(oldest, n)
	p.steps += n
	*oldest = d
	p.first = (p.first + 1) % keptDeliveries
}

// ended notes that an iteration's end was handed out.
func (p *positions) ended(pass *pass) {
	p.mu.Lock()
	defer p.mu.Unlock()
	pass.over = true
	if p.newest == nil || pass.iteration >= p.newest.iteration {
		p.newest = pass
	}
}

// resume gives the place at which the next iteration begins, to it alone.
func (p *positions) resume() *Resume {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.taken {
		return nil
	}
	p.taken = true
	return p.resumed
}

// leave gives the place of an iteration that handed out nothing to the next one, unless that has begun already.
func (p *positions) leave(iteration uint64, at *Resume) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.iterations == iteration {
		p.resumed, p.taken = at, false
	}
}

// loaded are those of a dataset whose next iteration begins at a place. Numbers go on, so that an older iterator is found to be one.
func (p *positions) loaded(at *Resume) *positions {
	p.mu.Lock()
	defer p.mu.Unlock()
	return &positions{iterations: p.iterations, resumed: at}
}

// behind is the place at which an iteration begins that is opened now.
func (p *positions) behind() *Resume {
	switch {
	case p.newest != nil:
		return &Resume{Position: &pecanv1.Position{Epoch: p.newest.epoch.number() + 1}}
	case p.resumed != nil:
		return p.resumed
	}
	return &Resume{Position: &pecanv1.Position{}}
}

// following is the number of the epoch behind all that iterations have had or are to go on in.
func (p *positions) following() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	var next uint64
	if p.newest != nil {
		next = p.newest.epoch.number() + 1
	}
	if p.resumed != nil {
		next = max(next, p.resumed.Position.GetEpoch()+1)
	}
	return next
}

// at gives the place behind so many steps of a reading, or of all iterations where that is 0. ended: the training loop is between two
// of its iterators.
func (p *positions) at(reading, steps uint64, ended bool) (*Resume, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if ended {
		return p.behind(), nil
	}
	from, err := p.from(reading)
	if err != nil {
		return nil, err
	}
	to := from + steps
	switch {
	case p.mixed >= max(reading, 1):
		return nil, reason.New(reason.BadArgument, "tell the position: two iterators read this dataset at the same time, and which of them a step belongs to is not known. Give each a dataset of its own (apply distribute() for each)")
	case to > p.total:
		return nil, reason.New(reason.BadArgument, "tell the position behind %d elements: only %d were handed over since the dataset or its iterator was made or its state was loaded", steps, p.total-from)
	case to < p.steps:
		return nil, reason.New(reason.BadArgument, "tell the position behind %d elements: %d were handed over since, and only the last %d deliveries are kept, from element %d on", steps, p.total-from, keptDeliveries, p.steps-from)
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
		here = place{}
	}
	var then *pass
	if next < len(p.kept) {
		then = p.kept[(p.first+next)%len(p.kept)].pass
	}
	switch {
	case then == nil && (here.pass == nil || here.over()):
		return p.behind(), nil
	case then != nil && then != here.pass && here.leadsTo(then):
		return then.begin(), nil
	}
	return &Resume{
		Position: here.pass.epoch.positionAt(here.next, here.turn), Passes: here.pass.done, Elements: here.pass.elements + here.elements,
	}, nil
}

// from is how many steps were delivered before those of a reading.
func (p *positions) from(reading uint64) (uint64, error) {
	if reading == 0 {
		return 0, nil
	}
	for _, r := range p.readings {
		switch {
		case r.iteration == reading && r.begun:
			return r.from, nil
		case r.iteration == reading:
			return p.total, nil
		}
	}
	return 0, reason.New(reason.BadArgument, "tell the position: since this iterator was made, the dataset's state was loaded by another, or %d others were made; make a new one", keptReadings)
}

// begin is the place in front of a pass.
func (p *pass) begin() *Resume {
	return &Resume{Position: p.epoch.begin(), Passes: p.done, Elements: p.elements}
}

// leadsTo tells whether a pass that delivered next is what comes behind the place: not where an iterator was given up there.
func (p *place) leadsTo(next *pass) bool {
	return p.pass == nil || next.iteration == p.pass.iteration || next.epoch.start != nil && !next.left || p.over()
}

// over tells whether nothing of the iteration comes behind the place. TensorFlow does not ask for an end that it foresees.
func (p *place) over() bool {
	plan := p.pass.epoch.consumer.Plan
	known, repeat := plan.GetCardinality(), plan.GetRepeat()
	return p.pass.over || known >= 0 && repeat > 0 && p.pass.elements+p.elements == uint64(known)*uint64(repeat)
}
