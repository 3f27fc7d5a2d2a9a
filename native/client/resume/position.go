package resume

import (
	"github.com/pecan-ml/pecan/native/client/element"
	"github.com/pecan-ml/pecan/native/client/epoch"
)

// Pass is an epoch as an iteration reads it.
type Pass struct {
	Epoch *epoch.Epoch
	// iteration numbers the iterations of a dataset.
	Iteration uint64
	// done passes of an outer repeat came before in the iteration, with that many elements.
	Passes   uint64
	Elements uint64
	// over: the iteration has handed out its end behind this pass.
	ended bool
	// left: the place was another iteration's, which had not handed out anything.
	HandedOver bool
}

// position is a position that is being added up.
type position struct {
	pass *Pass
	next map[uint32]uint64
	turn uint32
	// elements of the pass so far, failed ones not counted.
	elements uint64
}

// add moves the place behind up to n steps of a delivery.
func (p *position) add(d *delivery, n uint64) {
	if p.pass != d.pass {
		*p = position{pass: d.pass, next: map[uint32]uint64{}}
		for stream, next := range d.pass.Epoch.ResumeAt.GetNext() {
			p.next[uint32(stream)] = next
		}
		p.turn = d.pass.Epoch.ResumeAt.GetTurn()
	}
	if d.failed {
		p.move(d.Span, d.Rows)
		return
	}
	p.elements += n
	n -= p.move(d.Span, n)
	for _, more := range d.more {
		n -= p.move(more, n)
	}
}

// move takes up to n rows of a piece and gives how many there were.
func (p *position) move(from element.Span, n uint64) uint64 {
	n = min(n, from.Rows)
	if n > 0 {
		p.next[from.Stream], p.turn = from.First+n, from.Stream+1
	}
	return n
}

// begin is the place in front of a pass.
func (p *Pass) begin() *Point {
	return &Point{Position: p.Epoch.Start(), Passes: p.Passes, Elements: p.Elements}
}

// leadsTo tells whether a pass that delivered next is what comes behind the place: not where an iterator was given up there.
func (p *position) leadsTo(next *Pass) bool {
	return p.pass == nil || next.Iteration == p.pass.Iteration || next.Epoch.ResumeAt != nil && !next.HandedOver || p.over()
}

// over tells whether nothing of the iteration comes behind the place. TensorFlow does not ask for an end that it foresees.
func (p *position) over() bool {
	plan := p.pass.Epoch.Consumer.Plan
	known, repeat := plan.GetCardinality(), plan.GetRepeat()
	return p.pass.ended || known >= 0 && repeat > 0 && p.pass.Elements+p.elements == uint64(known)*uint64(repeat)
}
