package epoch

import (
	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// Number is the epoch's at the dispatcher, 0 before it is known.
func (e *Epoch) Number() uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.id
}

// Position is the one behind everything that was taken; nil before the epoch is open.
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

// Start is the position in front of everything that the epoch gives.
func (e *Epoch) Start() *pecanv1.Position {
	e.mu.Lock()
	defer e.mu.Unlock()
	position := &pecanv1.Position{Epoch: e.id}
	if e.ResumeAt != nil {
		position = proto.CloneOf(e.ResumeAt)
	}
	if e.order != nil {
		// Also where it begins at a position that left the order open.
		position.Order = e.order
	}
	return position
}

// PositionAt writes down a position in the epoch. Streams that are known to have ended there are marked, so that nobody
// has to run them again to find out.
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
