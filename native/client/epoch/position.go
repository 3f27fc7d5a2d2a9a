package epoch

import (
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
	next, opened, turn := map[uint32]uint64{}, e.opened, e.cursor
	for _, st := range e.list {
		next[st.number] = st.nextToDequeue()
	}
	e.mu.Unlock()
	if !opened {
		return nil
	}
	return e.PositionAt(next, turn)
}

// Start returns the position before all elements of the epoch.
func (e *Epoch) Start() *pecanv1.Position {
	e.mu.Lock()
	defer e.mu.Unlock()
	position := &pecanv1.Position{Epoch: e.id}
	if e.ResumeAt != nil {
		position = proto.CloneOf(e.ResumeAt)
	}
	if e.order != nil {
		// This also applies to an epoch that begins at a position without an order.
		position.Order = e.order
	}
	return position
}

// PositionAt returns a position in the epoch. It marks streams that are known to end there, so that no worker
// has to run them again to find their end.
func (e *Epoch) PositionAt(next map[uint32]uint64, turn uint32) *pecanv1.Position {
	e.mu.Lock()
	defer e.mu.Unlock()
	position := &pecanv1.Position{Epoch: e.id, Order: e.order}
	if e.options.Deterministic {
		position.Turn = turn
	}
	put := func(stream uint32, index uint64) {
		for uint32(len(position.Next)) <= stream {
			position.Next = append(position.Next, 0)
		}
		position.Next[stream] = index
	}
	for stream, index := range next {
		if index > 0 {
			put(stream, index)
		}
	}
	for _, st := range e.list {
		if st.counted && next[st.number] == st.count {
			position.Ended = append(position.Ended, st.number)
		}
	}
	return position
}
