package epoch

import (
	"slices"
)

// pick returns the stream to dequeue from; nil when no stream may be dequeued from now. e.mu is held.
func (e *Epoch) pick() *stream {
	if e.options.Deterministic {
		return e.pickInTurn()
	}
	n := uint32(len(e.list))
	for i := range n {
		if st := e.list[(e.cursor+i)%n]; len(st.queue) > 0 {
			return st
		}
	}
	return nil
}

// advance moves the turn past a stream from which an element is dequeued.
func (e *Epoch) advance(st *stream) {
	if e.options.Deterministic {
		e.cursor = st.number + 1
		return
	}
	at, _ := slices.BinarySearchFunc(e.list, st.number, func(st *stream, n uint32) int { return int(int64(st.number) - int64(n)) })
	e.cursor = uint32(at+1) % uint32(len(e.list))
}

// pickInTurn returns the stream in turn if its element has arrived.
func (e *Epoch) pickInTurn() *stream {
	if st := e.turn(); st != nil && len(st.queue) > 0 {
		return st
	}
	return nil
}

// turn implements the order that depends only on the streams' contents: element 0 of streams 0, 1, …, then
// element 1 of each. Streams that have ended are skipped, and the closing stream follows after all others.
// turn returns the stream of the next element, or nil while the dispatcher has not assigned that stream. e.mu
// is held.
func (e *Epoch) turn() *stream {
	regular := uint32(max(0, e.Consumer.Plan.GetNumStreams()))
	if regular == 0 {
		regular = uint32(len(e.list))
	}
	for i := range regular {
		number := (e.cursor + i) % regular
		st := e.streams[number]
		switch {
		case st == nil && (e.noMoreStreams || e.final && number >= e.total):
			// The stream belongs to another consumer.
		case st == nil:
			return nil
		case len(st.queue) > 0 || st.reading():
			return st
		}
	}
	return e.streams[regular]
}

// awaited returns the streams that can have the next element. In deterministic mode that is at most one,
// whatever the other streams have. e.mu is held.
func (e *Epoch) awaited() []*stream {
	if !e.options.Deterministic {
		return e.list
	}
	if st := e.turn(); st != nil {
		return []*stream{st}
	}
	return nil
}
