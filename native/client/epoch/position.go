package epoch

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// Number returns the epoch's number at the dispatcher; 0 before it is known.
func (e *Epoch) Number() uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.id
}

// Position returns the position after everything that was dequeued; nil before the epoch is open.
func (e *Epoch) Position() *pecanv1.Position {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.opened {
		return nil
	}
	at := Progress{Next: map[uint32]uint64{}}
	maps.Copy(at.Next, e.streams.resumed)
	// The close of an epoch drops queues. The position of a past stream may therefore be before its end.
	for number := range e.streams.past {
		if p := &e.streams.past[number]; p.known {
			at.Next[uint32(number)] = p.next
		}
	}
	for _, st := range e.streams.byNumber {
		at.Next[st.number] = st.nextToDequeue()
	}
	return e.positionAt(at, e.cursor)
}

// grouped reports whether the plan has groups of streams. Positions in other plans list all streams.
func (e *Epoch) grouped() bool { return e.Consumer.Plan.GetGroup() > 0 }

// Start returns the position before all elements of the epoch.
func (e *Epoch) Start() *pecanv1.Position {
	e.mu.Lock()
	defer e.mu.Unlock()
	position := &pecanv1.Position{Epoch: e.id}
	if e.ResumeAt != nil {
		position = proto.CloneOf(e.ResumeAt)
	} else {
		position.Joins = e.joins
	}
	if e.order != nil {
		// This also applies to an epoch that begins at a position without an order.
		position.Order = e.order
	}
	return position
}

// StartProgress returns the progress at the start of the epoch.
func (e *Epoch) StartProgress() Progress {
	// The position is valid: it was checked when it was loaded, or it is the client's own.
	p, _ := NewProgress(e.ResumeAt, e.Consumer.Plan.TotalStreams())
	return p
}

// Compact moves streams that are known to have ended there from p.Next to p.Over, in plans with groups.
func (e *Epoch) Compact(p *Progress) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.grouped() {
		return
	}
	for stream, next := range p.Next {
		if count, counted := e.streams.countOf(stream); counted && next == count {
			p.Over.Set(stream)
			delete(p.Next, stream)
		}
	}
}

// PositionAt returns a position in the epoch. It marks streams that are known to end there, so that no worker
// has to run them again to find their end.
func (e *Epoch) PositionAt(at Progress, turn uint32) *pecanv1.Position {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.positionAt(at, turn)
}

// positionAt is PositionAt. e.mu is held.
func (e *Epoch) positionAt(at Progress, turn uint32) *pecanv1.Position {
	position := &pecanv1.Position{Epoch: e.id, Order: e.order}
	e.putRows(position)
	if e.options.Deterministic {
		position.Turn = turn
	}
	if e.grouped() {
		e.putGrouped(position, at)
		return position
	}
	put := func(stream uint32, index uint64) {
		for uint32(len(position.Next)) <= stream {
			position.Next = append(position.Next, 0)
		}
		position.Next[stream] = index
	}
	for stream, index := range at.Next {
		if index > 0 {
			put(stream, index)
		}
	}
	for stream := range e.streams.highest() {
		if count, counted := e.streams.countOf(stream); counted && at.Next[stream] == count {
			position.Ended = append(position.Ended, stream)
		}
	}
	return position
}

// putGrouped puts the progress into a position of a plan with groups. e.mu is held.
func (e *Epoch) putGrouped(position *pecanv1.Position, at Progress) {
	over := slices.Clone(at.Over)
	for stream, next := range at.Next {
		if count, counted := e.streams.countOf(stream); counted && next == count {
			over.Set(stream)
		}
	}
	for i, b := range e.streams.empty {
		for stream := uint32(i) * 8; b != 0; stream, b = stream+1, b>>1 {
			if b&1 == 1 {
				over.Set(stream)
			}
		}
	}
	Progress{Next: at.Next, Over: over}.Record(position)
}
