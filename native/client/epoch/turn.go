package epoch

import "github.com/pecan-ml/pecan/native/client/wait"

// pick returns the stream to dequeue from; nil when no stream may be dequeued from now. e.mu is held.
func (e *Epoch) pick() *stream {
	if e.options.Deterministic {
		if st := e.turn(); st != nil && len(st.queue) > 0 {
			return st
		}
		return nil
	}
	if at := e.streams.ready.Front(); at != nil {
		return at.Value.(*stream)
	}
	return nil
}

// advance moves the turn past a stream from which an element is dequeued.
func (e *Epoch) advance(st *stream) {
	e.cursor = st.number + 1
	if st.readyAt != nil {
		e.streams.ready.MoveToBack(st.readyAt)
	}
}

// groupSize returns how many streams are read in turn. e.mu is held.
func (e *Epoch) groupSize() (group, regular uint32) {
	plan := e.Consumer.Plan
	regular = uint32(max(0, plan.GetNumStreams()))
	if regular == 0 {
		regular = uint32(e.streams.known())
	}
	if group = uint32(max(0, plan.GetGroup())); group == 0 {
		group = regular
	}
	return group, regular
}

// group returns the number of the group that is read. The cursor is above the stream that was read last. At the end of a
// group it is therefore the first stream of the next group. e.mu is held.
func (e *Epoch) group() uint32 {
	size, regular := e.groupSize()
	if e.cursor == 0 || size == 0 {
		return e.turnGroup
	}
	if last := e.cursor - 1; last >= regular {
		// A closing stream was read last, that of the group with its number or the one of all groups.
		return max(e.turnGroup, min(last-regular, e.Consumer.Plan.Groups()-1))
	} else {
		return max(e.turnGroup, last/size)
	}
}

// turn implements the order that depends only on the streams' contents. The groups are read one after the other. In a group,
// element 0 of each stream comes first, then element 1 of each. Streams that have ended are skipped. The group's closing
// stream follows, and after all groups the closing stream of the whole epoch. turn returns the stream of the next element,
// or nil while the dispatcher has not assigned that stream. e.mu is held.
func (e *Epoch) turn() *stream {
	size, regular := e.groupSize()
	groups := e.Consumer.Plan.Groups()
	for q := e.group(); q*size < regular; q++ {
		first, n := q*size, min(size, regular-q*size)
		from := uint32(0)
		if e.cursor > first && e.cursor < first+n {
			from = e.cursor - first
		}
		for i := range n {
			if st, over := e.inHand(first + (from+i)%n); !over {
				return st
			}
		}
		if closing, ok := e.Consumer.Plan.ClosingOf(first); ok && groups > 1 {
			if st, over := e.inHand(closing); !over {
				return st
			}
		}
		if groups > 1 {
			// Streams of the next group need steady credit.
			e.turnGroup = q + 1
			wait.Signal(e.kick)
		}
	}
	if groups > 1 {
		return e.streams.find(regular + groups)
	}
	return e.streams.find(regular)
}

// inHand returns the stream with a number, or nil if the dispatcher has not assigned it yet. over is true if no element of
// that stream can come: it has ended, or another consumer has it.
func (e *Epoch) inHand(number uint32) (st *stream, over bool) {
	st = e.streams.find(number)
	switch {
	case st != nil:
		return st, len(st.queue) == 0 && !st.reading()
	case e.streams.isPast(number):
		return nil, true
	}
	return nil, e.noMoreStreams || e.final && number >= e.total
}

// inTurn reports whether a stream belongs to the group that is read. e.mu is held.
func (e *Epoch) inTurn(number uint32) bool {
	size, regular := e.groupSize()
	switch group := e.group(); {
	case size == 0:
		return true
	case number < regular:
		return number/size == group
	default:
		return number-regular <= group
	}
}

// awaited returns the streams that can have the next element. In deterministic mode that is at most one,
// whatever the other streams have. e.mu is held.
func (e *Epoch) awaited() []*stream {
	if !e.options.Deterministic {
		return e.streams.byNumber
	}
	if st := e.turn(); st != nil {
		return []*stream{st}
	}
	return nil
}
