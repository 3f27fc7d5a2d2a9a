package epoch

import (
	"slices"
)

// pick chooses the stream to take from; nil when none may be taken from now. e.mu is held.
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

// advance moves the turn behind a stream that is being taken from.
func (e *Epoch) advance(st *stream) {
	if e.options.Deterministic {
		e.cursor = st.number + 1
		return
	}
	at, _ := slices.BinarySearchFunc(e.list, st.number, func(st *stream, n uint32) int { return int(int64(st.number) - int64(n)) })
	e.cursor = uint32(at+1) % uint32(len(e.list))
}

// pickInTurn is the stream whose turn it is if its element has come.
func (e *Epoch) pickInTurn() *stream {
	if st := e.turn(); st != nil && len(st.queue) > 0 {
		return st
	}
	return nil
}

// turn keeps the one order that depends on nothing but the streams' contents: element 0 of streams 0, 1, …, then
// element 1 of each, streams that are over left out, and the closing stream when all others are over. It gives the stream that
// the next element comes from, and nil while the dispatcher has not told of that one. e.mu is held.
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
			// Another consumer's.
		case st == nil:
			return nil
		case len(st.queue) > 0 || st.reading():
			return st
		}
	}
	return e.streams[regular]
}

// awaited are the streams that the next element can come from: in deterministic mode no more than one, whatever the others have
// or lack. e.mu is held.
func (e *Epoch) awaited() []*stream {
	if !e.options.Deterministic {
		return e.list
	}
	if st := e.turn(); st != nil {
		return []*stream{st}
	}
	return nil
}
