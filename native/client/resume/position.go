package resume

import (
	"github.com/pecan-ml/pecan/native/client/element"
	"github.com/pecan-ml/pecan/native/client/epoch"
)

// Pass is an epoch as an iteration reads it.
type Pass struct {
	Epoch *epoch.Epoch
	// Iteration numbers the iterations of a dataset.
	Iteration uint64
	// Passes counts the passes of an outer repeat before this one in the iteration, Elements their elements.
	Passes   uint64
	Elements uint64
	// ended is set if the iteration returned its end after this pass.
	ended bool
	// HandedOver is set if the pass starts at the point of another iteration, which had no deliveries.
	HandedOver bool
}

// position is a position while deliveries are added to it.
type position struct {
	pass *Pass
	at   epoch.Progress
	turn uint32
	// compactAt is the number of streams from which at is compacted.
	compactAt int
	// elements of the pass so far, without failed ones.
	elements uint64
}

// add moves the position past up to n results of a delivery.
func (p *position) add(d *delivery, n uint64) {
	if p.pass != d.pass {
		*p = position{pass: d.pass, at: d.pass.Epoch.StartProgress()}
		p.turn = d.pass.Epoch.ResumeAt.GetTurn()
	}
	if d.failed {
		p.move(d.Span, d.Elements)
		return
	}
	p.elements += n
	n -= p.move(d.Span, n)
	for _, more := range d.more {
		n -= p.move(more, n)
	}
}

// minCompact is how many streams a position lists at least when it is compacted.
const minCompact = 256

// compact drops the indexes of streams that have ended. Each call halves the list or doubles compactAt, so a delivery
// costs the same whatever the number of streams.
func (p *position) compact() {
	if len(p.at.Next) >= max(p.compactAt, minCompact) {
		p.pass.Epoch.Compact(&p.at)
		p.compactAt = 2 * len(p.at.Next)
	}
}

// move advances past up to n elements of a span, and returns how many there were.
func (p *position) move(from element.Span, n uint64) uint64 {
	n = min(n, from.Elements)
	if n > 0 {
		p.at.Next[from.Stream], p.turn = from.First+n, from.Stream+1
	}
	return n
}

// begin returns the point before a pass.
func (p *Pass) begin() *Point {
	return &Point{Position: p.Epoch.Start(), Passes: p.Passes, Elements: p.Elements}
}

// leadsTo reports whether the pass that delivered next directly follows the position. It does not if an
// iterator was abandoned at the position.
func (p *position) leadsTo(next *Pass) bool {
	return p.pass == nil || next.Iteration == p.pass.Iteration || next.Epoch.ResumeAt != nil && !next.HandedOver || p.over()
}

// over reports whether the iteration has nothing after the position. TensorFlow does not request an end that
// it can predict.
func (p *position) over() bool {
	plan := p.pass.Epoch.Consumer.Plan
	known, repeat := plan.GetCardinality(), plan.GetRepeat()
	return p.pass.ended || known >= 0 && repeat > 0 && p.pass.Elements+p.elements == uint64(known)*uint64(repeat)
}
