package epoch

import (
	"time"

	"github.com/pecan-ml/pecan/native/client/element"
	"github.com/pecan-ml/pecan/native/client/wait"
	"github.com/pecan-ml/pecan/proto/frame"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// Lookahead says what follows the next element.
type Lookahead int

const (
	// NoNeedToWait means that the next element failed, or none is queued, or none will come.
	NoNeedToWait Lookahead = iota
	// MayBeLast means that it is unknown whether another element follows.
	MayBeLast
	// MoreFollow means that another element follows.
	MoreFollow
)

// LookAhead reports whether elements follow the next one.
func (e *Epoch) LookAhead() Lookahead {
	e.mu.Lock()
	defer e.mu.Unlock()
	queued := 0
	for at := e.streams.ready.Front(); at != nil; at = at.Next() {
		st := at.Value.(*stream)
		for i := range st.queue {
			if st.queue[i].Err != nil {
				return NoNeedToWait
			}
			queued += st.queue[i].Remaining()
		}
	}
	switch {
	case queued > 1:
		return MoreFollow
	case queued == 0 || e.received() || e.err != nil || e.closed:
		return NoNeedToWait
	}
	return MayBeLast
}

const (
	// When a block is requested, elements of at most gatherElement bytes from several frames are copied together,
	// because a call costs more than the copy. A gathered block has at most gatherBytes.
	gatherElement = 8 << 10
	gatherBytes   = 1 << 20
)

// Result is the result of Dequeue.
type Result int

const (
	Nothing Result = iota
	Ready
	// ElementFailed means that an element failed, and the next one may be requested.
	ElementFailed
	// Broken means that the epoch ended with an error.
	Broken
	End
)

// Dequeue returns up to max elements that are ready, or the elements that failed. It never blocks.
func (e *Epoch) Dequeue(max int, lead bool) (*element.Elements, Result, error) {
	pieces, found, err := e.dequeueChunks(max, lead)
	if found == ElementFailed {
		return pieces[0], found, err
	}
	if found != Ready {
		return nil, found, err
	}
	elements := pieces[0]
	if len(pieces) > 1 {
		elements.Spans = make([]element.Span, len(pieces))
		for i, p := range pieces {
			elements.Spans[i] = element.Span{Stream: p.Stream, First: p.Index, Elements: uint64(p.Count)}
		}
		if elements, err = element.Gather(e.Consumer.Pool, pieces); err != nil {
			return nil, Broken, err
		}
	}
	return elements, Ready, nil
}

// dequeueChunks dequeues elements of one shape, up to max. With lead, it gathers small pieces of several streams, because a
// call of the op costs more than a copy of few bytes.
func (e *Epoch) dequeueChunks(max int, lead bool) ([]*element.Elements, Result, error) {
	// The unlock is deferred because this can panic: a worker on the same host may change strings in shared
	// memory. Without the deferred unlock nobody could close the epoch any more.
	e.mu.Lock()
	defer e.mu.Unlock()
	first, found, err := e.dequeueFrom(e.pick(), max, lead)
	if found == ElementFailed {
		return []*element.Elements{first}, found, err
	}
	if found != Ready {
		return nil, found, err
	}
	e.starved, e.stranded = false, time.Time{}
	pieces := []*element.Elements{first}
	if !lead || first.Count >= (max+1)/2 || element.Size(first) > gatherElement*first.Count {
		return pieces, Ready, nil
	}
	elements, bytes := first.Count, element.Size(first)
	for elements < max && bytes < gatherBytes {
		st := e.pick()
		if st == nil || !st.queue[0].SameShape(first) {
			break
		}
		piece, found, _ := e.dequeueFrom(st, max-elements, lead)
		if found != Ready {
			break
		}
		pieces = append(pieces, piece)
		elements += piece.Count
		bytes += element.Size(piece)
	}
	return pieces, Ready, nil
}

// dequeueFrom dequeues from the head of a stream's queue. With st nil it returns why nothing is ready. e.mu
// is held.
func (e *Epoch) dequeueFrom(st *stream, max int, lead bool) (*element.Elements, Result, error) {
	switch {
	case e.disowned && e.err == nil:
		return nil, Nothing, nil
	case e.disowned:
		return nil, Broken, e.err
	case st != nil && !e.Consumer.LeaseHolds():
		// Nothing is returned before the dispatcher has answered.
		e.link.RequestHeartbeat()
		return nil, Nothing, nil
	case st != nil:
	case e.received() && e.streams.ready.Len() == 0:
		return nil, End, nil
	case e.err != nil:
		return nil, Broken, e.err
	case e.closed:
		return nil, Broken, reason.New(reason.Closed, "the epoch is closed")
	default:
		return nil, Nothing, nil
	}
	defer e.settle(st)
	e.advance(st)
	head := &st.queue[0]
	if err := head.Err; err != nil {
		failed := &element.Elements{Epoch: e.id, Stream: st.number, Index: head.Index(), Count: 1}
		st.pop()
		return failed, ElementFailed, err
	}
	n := 1
	if head.Columnar && !(e.options.Deterministic && e.streams.known() > 1) {
		n = min(max, head.Remaining())
	}
	if err := e.checkSpec(st, head); err != nil {
		failed := &element.Elements{Epoch: e.id, Stream: st.number, Index: head.Index(), Count: n}
		head.At += n
		if head.Remaining() == 0 {
			st.pop()
		}
		return failed, ElementFailed, err
	}
	elements := head.Cut(n, lead)
	elements.Epoch, elements.Stream = e.id, st.number
	if e.tookLast = time.Now(); e.dequeued == 0 {
		e.tookFirst, e.firstTaken = e.tookLast, uint64(n)
	}
	e.dequeued += uint64(n)
	e.dequeuedBytes += uint64(element.Size(elements))
	if head.Remaining() == 0 {
		st.pop()
	}
	return elements, Ready, nil
}

// checkSpec compares an element with the dataset's spec, so that nobody reads a buffer of another type.
func (e *Epoch) checkSpec(st *stream, en *element.Entry) error {
	specs := e.Consumer.Plan.GetComponents()
	if len(specs) == 0 || en.Checked {
		return nil
	}
	where := func() string { return formatElement(st, en.Index()) }
	if en.Table.Components != len(specs) {
		return reason.New(reason.ElementSpec, "%s has %d components, the dataset's spec has %d", where(), en.Table.Components, len(specs))
	}
	row := 0
	if !en.Columnar {
		row = en.At * en.Table.Components
	}
	for c, spec := range specs {
		tensor := &en.Table.Rows[row+c]
		if tensor.DType != uint32(spec.GetDtype()) {
			return reason.New(reason.ElementSpec, "%s: component %d is %s, the dataset's spec says %s", where(), c, frame.DTypeName(tensor.DType), frame.DTypeName(uint32(spec.GetDtype())))
		}
		if !pecanv1.ShapeFits(spec, tensor.Dims) {
			return reason.New(reason.ElementSpec, "%s: component %d has shape %v, the dataset's spec says %v", where(), c, tensor.Dims, spec.GetDims())
		}
	}
	// All elements of a columnar frame have the one shape that was checked.
	en.Checked = en.Columnar
	return nil
}

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
