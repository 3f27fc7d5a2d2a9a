package epoch

import (
	"container/list"
	"slices"

	"github.com/pecan-ml/pecan/native/client/wait"
)

// streams holds the streams of an epoch. A stream is active from the first update that lists it until nothing of it is
// queued and it is finished or released. A past stream has only a few numbers left. No call that is made per element or per
// update of one stream visits all streams. Epoch.mu guards the set.
type streams struct {
	active map[uint32]*stream
	// byNumber has the active streams in ascending order.
	byNumber []*stream
	// past has by number what is left of past streams. pasts counts them.
	past  []pastStream
	pasts int
	// resumed has the next indexes of streams that the start position says have begun, until an update lists them.
	resumed map[uint32]uint64
	// ready has the streams with queued entries, in the order of their turns. pending has the streams that need a
	// channel, at first those that have begun.
	ready, pending list.List
	// rotation has the receivers that wait for credit, asks first come first.
	rotation list.List
	// held and rotating sum the tallies. steady counts open channels that do not rotate.
	held, rotating uint64
	steady         int
	// The numbers of streams that are read, that have ended, that have begun and are active, and that have an open channel.
	reading, ended, begun, open int
	// empty has the streams that ended without an element.
	empty Bitmap
}

// pastStream remembers a stream that is not active. It restores the stream if another update lists it.
type pastStream struct {
	// stream explains the fields.
	next, lease, assignment, count                       uint64
	known, ended, finished, released, abandoned, counted bool
}

// tally is how the set counts a stream.
type tally struct {
	reading, ended, begun, open, steady bool
	// held is the stream's part of the budget: queued bytes, and granted ones that have not arrived. rotating is the
	// same if the stream rotates.
	held, rotating uint64
}

// find returns an active stream; nil if the stream is past or unknown.
func (s *streams) find(number uint32) *stream { return s.active[number] }

// isPast reports whether nothing more is to be read of a stream that was listed before.
func (s *streams) isPast(number uint32) bool {
	return int(number) < len(s.past) && s.past[number].known
}

// known counts the streams that were listed so far.
func (s *streams) known() int { return len(s.byNumber) + s.pasts }

func (s *streams) position(number uint32) int {
	at, _ := slices.BinarySearchFunc(s.byNumber, number, func(st *stream, n uint32) int { return int(int64(st.number) - int64(n)) })
	return at
}

// streamOf finds or creates a stream, or makes a past one active again. The caller calls settle after its changes. e.mu
// is held.
func (e *Epoch) streamOf(number uint32) *stream {
	s := &e.streams
	if st := s.active[number]; st != nil {
		return st
	}
	st := &stream{epoch: e, number: number}
	if s.isPast(number) {
		p := &s.past[number]
		st.next, st.lease, st.assignment, st.count = p.next, p.lease, p.assignment, p.count
		st.ended, st.finished, st.released, st.abandoned, st.counted = p.ended, p.finished, p.released, p.abandoned, p.counted
		st.endedUnder = p.lease
		if p.ended {
			s.ended--
		}
		*p = pastStream{}
		s.pasts--
		e.turnGroup = 0
	}
	delete(s.resumed, number)
	if s.active == nil {
		s.active = map[uint32]*stream{}
	}
	s.active[number] = st
	s.byNumber = slices.Insert(s.byNumber, s.position(number), st)
	return st
}

// settle adjusts the set to the state of a stream. Everybody who changes a stream calls it before e.mu is unlocked.
func (e *Epoch) settle(st *stream) {
	s := &e.streams
	if s.active[st.number] != st {
		return
	}
	now := tally{reading: st.reading(), ended: st.ended, begun: st.opened || st.next > 0, open: st.receiver != nil, steady: !st.rotates, held: st.queued}
	if r := st.receiver; r != nil && r.granted > r.received {
		now.held += r.granted - r.received
		if !st.rotates {
			// The worker may exceed a grant by a part of a frame.
			now.held += max(1, e.largest) - 1
		}
	}
	if st.rotates {
		now.rotating = now.held
	}
	s.count(st.tally, now)
	freed := st.tally.open && !now.open
	st.tally = now
	enlist(&s.ready, &st.readyAt, len(st.queue) > 0, st, false)
	enlist(&s.pending, &st.pendingAt, st.wanted(), st, now.begun)
	if st.counted && st.count == 0 {
		s.empty.Set(st.number)
	} else {
		s.empty.clear(st.number)
	}
	if len(st.queue) == 0 && st.receiver == nil && (st.finished || st.released) {
		s.retire(st)
		freed = true
	}
	if freed && (s.pending.Len() > 0 || s.open > s.steady) {
		wait.Signal(e.kick)
	}
	e.rotate()
}

func (s *streams) count(before, now tally) {
	add := func(n *int, was, is bool) {
		if was {
			*n--
		}
		if is {
			*n++
		}
	}
	add(&s.reading, before.reading, now.reading)
	add(&s.ended, before.ended, now.ended)
	add(&s.begun, before.begun, now.begun)
	add(&s.open, before.open, now.open)
	add(&s.steady, before.open && before.steady, now.open && now.steady)
	s.held += now.held - before.held
	s.rotating += now.rotating - before.rotating
}

func enlist(l *list.List, at **list.Element, in bool, st *stream, first bool) {
	switch {
	case in == (*at != nil):
	case !in:
		l.Remove(*at)
		*at = nil
	case first:
		*at = l.PushFront(st)
	default:
		*at = l.PushBack(st)
	}
}

// retire makes a stream past.
func (s *streams) retire(st *stream) {
	s.count(st.tally, tally{})
	enlist(&s.ready, &st.readyAt, false, st, false)
	enlist(&s.pending, &st.pendingAt, false, st, false)
	delete(s.active, st.number)
	at := s.position(st.number)
	s.byNumber = slices.Delete(s.byNumber, at, at+1)
	s.putPast(st.number, pastStream{
		next: st.next, lease: st.lease, assignment: st.assignment, count: st.count,
		ended: st.ended, finished: st.finished, released: st.released, abandoned: st.abandoned, counted: st.counted,
	})
}

func (s *streams) putPast(number uint32, p pastStream) {
	if grow := int(number) + 1 - len(s.past); grow > 0 {
		s.past = append(s.past, make([]pastStream, grow)...)
	}
	p.known = true
	s.past[number] = p
	s.pasts++
	if p.ended {
		s.ended++
	}
}

// countOf returns how many elements a stream has; false if that is unknown.
func (s *streams) countOf(number uint32) (uint64, bool) {
	if st := s.active[number]; st != nil {
		return st.count, st.counted
	}
	if !s.isPast(number) {
		return 0, false
	}
	return s.past[number].count, s.past[number].counted
}

// highest returns one more than the greatest number of a listed stream.
func (s *streams) highest() uint32 {
	n := uint32(len(s.past))
	if last := len(s.byNumber); last > 0 {
		n = max(n, s.byNumber[last-1].number+1)
	}
	return n
}
