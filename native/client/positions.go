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
	// iterations were begun; newest is the one that delivered last. mixed: an older one did so after a newer one.
	iterations uint64
	newest     uint64
	mixed      bool
	// resumed is where the first iteration begins; nil at the start of an epoch. taken: it has begun.
	resumed *Resume
	taken   bool
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
	p.mixed = p.mixed || pass.iteration < p.newest
	p.newest = max(p.newest, pass.iteration)
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
}

// resume gives the place at which the first iteration begins, to it alone.
func (p *positions) resume() *Resume {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.taken {
		return nil
	}
	p.taken = true
	return p.resumed
}

// count is how many steps were delivered.
func (p *positions) count() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.total
}

// at gives the place behind so many steps. ended: the training loop has seen the end of a pass there.
func (p *positions) at(steps uint64, ended bool) (*Resume, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.mixed:
		return nil, reason.New(reason.BadArgument, "tell the position: two iterators read this dataset at the same time, and which of them a step belongs to is not known. Give each a dataset of its own (apply distribute() for each)")
	case steps > p.total:
		return nil, reason.New(reason.BadArgument, "tell the position behind %d elements: only %d were handed over since the dataset was made or its state was loaded", steps, p.total)
	case steps < p.steps:
		return nil, reason.New(reason.BadArgument, "tell the position behind %d elements: %d were handed over since, and only the last %d deliveries are kept, from element %d on", steps, p.total, keptDeliveries, p.steps)
	}
	here, left := p.before, steps-p.steps
	here.next = maps.Clone(p.before.next)
	for i := 0; left > 0; i++ {
		d := &p.kept[(p.first+i)%len(p.kept)]
		n := min(left, d.steps())
		here.add(d, n)
		left -= n
	}
	switch {
	case here.pass == nil && p.resumed != nil && !ended:
		return p.resumed, nil
	case here.pass == nil:
		return &Resume{Position: &pecanv1.Position{}}, nil
	case ended || here.over(steps == p.total):
		return &Resume{Position: &pecanv1.Position{Epoch: here.pass.epoch.number() + 1}}, nil
	}
	return &Resume{
		Position: here.pass.epoch.positionAt(here.next, here.turn), Passes: here.pass.done, Elements: here.pass.elements + here.elements,
	}, nil
}

// over tells whether nothing of the iteration comes behind the place. TensorFlow does not ask for an end that it foresees.
func (p *place) over(last bool) bool {
	if !last {
		return false
	}
	plan := p.pass.epoch.job.plan
	known, repeat := plan.GetCardinality(), plan.GetRepeat()
	return p.pass.over || known >= 0 && repeat > 0 && p.pass.elements+p.elements == uint64(known)*uint64(repeat)
}
