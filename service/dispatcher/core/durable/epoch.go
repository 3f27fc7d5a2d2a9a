package durable

import (
	"cmp"
	"encoding/binary"
	"maps"
	"math/bits"
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// wholeStreams is the number of streams up to which all streams of an epoch that have begun stay active. The status of
// such an epoch shows each of its streams, and the log each lease.
const wholeStreams = 64

// Job is a job with its open epochs. The caller must not change it.
type Job struct {
	// StoredJob has no epochs here.
	*pecanv1.StoredJob
	// Epochs are open, ascending.
	Epochs []*Epoch
}

// Epoch is an open epoch. It has an entry for each active stream. The other streams are fresh, which means untouched,
// or settled, which means that they are delivered and nobody needs them. The caller must not change it.
type Epoch struct {
	Job   *Job
	Epoch uint64
	// Opened is the number of the record that opened the epoch.
	Opened uint64
	Passes []*pecanv1.StoredPass
	Error  *pecanv1.ErrorDetail
	// FailedInOrder is set if the stream that failed had the order.
	FailedInOrder bool
	Order         []string
	// OrderStreams and the regular streams in [OrderFrom, OrderBelow) have the order; if there are none, all have it.
	OrderStreams          []uint32
	OrderFrom, OrderBelow uint32
	// CachedStep is the node of the step that is cached by decision; empty if none is.
	CachedStep string
	// After is the open epoch whose batches go on in this one, until its rows are known; else nil. Joins are rows of
	// earlier epochs, which the last closing stream joins first. Carried: Carry has the rows that are left for the next
	// epoch. These fields are set in plans with a carry.
	After        *uint64
	Joins, Carry []*pecanv1.KeptRows
	Carried      bool

	total uint32
	// assignment is the number of the newest assignment of fresh streams.
	assignment           uint64
	delivered, truncated bitmap
	active               map[uint32]*pecanv1.StoredStream
	// idle has the active streams that no worker holds, without truncated ones.
	idle bitmap
	// No regular stream below fresh is fresh, and no closing stream below freshClosing.
	fresh, freshClosing uint32
	sums                sums
	// No regular stream below undelivered is undelivered.
	undelivered uint32
	// closings has the closing streams that workers hold and that are not produced.
	closings map[uint32]bool
	// consumers counts the streams of each client that are not delivered, in shared jobs.
	consumers map[string]int
}

// sums are over all streams of an epoch.
type sums struct {
	delivered, truncated, activeDelivered           uint32
	held, running, unread, produced, openingCrashed int
	elements, lost                                  uint64
}

func newEpoch(job *Job, number, opened uint64, total uint32) *Epoch {
	return &Epoch{
		Job: job, Epoch: number, Opened: opened, total: total, delivered: newBitmap(total), truncated: newBitmap(total),
		active: map[uint32]*pecanv1.StoredStream{}, closings: map[uint32]bool{}, consumers: map[string]int{},
	}
}

// KeepsAll reports whether the streams of the epoch stay active after their end.
func (e *Epoch) KeepsAll() bool { return e.total <= wholeStreams }

// Total returns the number of streams so far, closing streams included.
func (e *Epoch) Total() uint32 { return e.total }

// DeliveredStreams and StreamsTruncated count streams.
func (e *Epoch) DeliveredStreams() uint32 { return e.sums.delivered }

func (e *Epoch) StreamsTruncated() uint32 { return e.sums.truncated }

// Delivered reports whether all streams are delivered.
func (e *Epoch) Delivered() bool { return e.total > 0 && e.sums.delivered == e.total }

// Elements sums the elements of the delivered streams.
func (e *Epoch) Elements() uint64 { return e.sums.elements }

// Held counts the streams on workers that are not delivered.
func (e *Epoch) Held() int { return e.sums.held }

// Unread counts the produced streams on workers that are not delivered.
func (e *Epoch) Unread() int { return e.sums.unread }

// ActiveStreams counts the active streams.
func (e *Epoch) ActiveStreams() int { return len(e.active) }

// OpeningCrashed counts the active streams that crashed workers while these opened them.
func (e *Epoch) OpeningCrashed() int { return e.sums.openingCrashed }

// AnyEnded reports whether a stream is produced or delivered.
func (e *Epoch) AnyEnded() bool { return e.sums.produced > 0 || e.sums.delivered > 0 }

// Undelivered returns the number of streams of a shared job that a client reads.
func (e *Epoch) Undelivered(clientID string) int { return e.consumers[clientID] }

// Find returns an active stream, or nil.
func (e *Epoch) Find(stream uint32) *pecanv1.StoredStream { return e.active[stream] }

// Settled reports whether a stream is delivered and no longer active.
func (e *Epoch) Settled(stream uint32) bool {
	return e.delivered.has(stream) && e.active[stream] == nil
}

// Stream returns a stream: the active one, or a copy of what is known of another one.
func (e *Epoch) Stream(stream uint32) *pecanv1.StoredStream {
	switch s := e.active[stream]; {
	case s != nil:
		return s
	case e.delivered.has(stream):
		return &pecanv1.StoredStream{Stream: stream, Delivered: true, Produced: true, Truncated: e.truncated.has(stream)}
	}
	return &pecanv1.StoredStream{Stream: stream, Consumer: e.onlyConsumer(), Assignment: e.assignment}
}

// Leased reports whether a stream has ever had a lease, or needs none.
func (e *Epoch) Leased(stream uint32) bool {
	active := e.active[stream]
	return active.GetLease() > 0 || active == nil && e.delivered.has(stream) || active.GetDelivered()
}

// KeepsOrder reports whether a stream keeps its order of steps, because it has ended or a worker runs it.
func (e *Epoch) KeepsOrder(stream uint32) bool {
	active := e.active[stream]
	return e.Leased(stream) && (active == nil || active.Worker != nil || active.Produced || active.Delivered)
}

// WhollyOrdered reports whether all streams have the epoch's order.
func (e *Epoch) WhollyOrdered() bool {
	return len(e.Order) > 0 && len(e.OrderStreams) == 0 && e.OrderBelow == 0
}

// Active returns the active streams, ascending.
func (e *Epoch) Active() []*pecanv1.StoredStream {
	list := make([]*pecanv1.StoredStream, 0, len(e.active))
	for _, stream := range e.active {
		list = append(list, stream)
	}
	slices.SortFunc(list, byNumber)
	return list
}

// AnyActive reports whether the condition holds for an active stream.
func (e *Epoch) AnyActive(condition func(*pecanv1.StoredStream) bool) bool {
	for _, stream := range e.active {
		if condition(stream) {
			return true
		}
	}
	return false
}

// NextFresh returns the first fresh stream from one on; false if there is none.
func (e *Epoch) NextFresh(from uint32) (uint32, bool) {
	regular := e.Regular()
	for e.fresh < regular && !e.isFresh(e.fresh) {
		e.fresh++
	}
	for stream := max(from, e.fresh); stream < regular; stream++ {
		if e.isFresh(stream) {
			return stream, true
		}
	}
	e.freshClosing = max(e.freshClosing, regular)
	for e.freshClosing < e.total && !e.isFresh(e.freshClosing) {
		e.freshClosing++
	}
	for stream := max(from, e.freshClosing); stream < e.total; stream++ {
		if e.isFresh(stream) {
			return stream, true
		}
	}
	return 0, false
}

func (e *Epoch) isFresh(stream uint32) bool {
	return e.active[stream] == nil && !e.delivered.has(stream)
}

// AnyFresh reports whether one of the streams with numbers in [first, below) is fresh.
func (e *Epoch) AnyFresh(first, below uint32) bool {
	for stream := max(first, e.fresh); stream < min(below, e.total); stream++ {
		if e.isFresh(stream) {
			return true
		}
	}
	return false
}

// NextIdle returns the first active stream from one on that no worker holds, that is not truncated, and for which the
// condition holds; false if there is none.
func (e *Epoch) NextIdle(from uint32, condition func(*pecanv1.StoredStream) bool) (uint32, bool) {
	for number, any := e.idle.next(from); any; number, any = e.idle.next(number + 1) {
		if condition(e.active[number]) {
			return number, true
		}
	}
	return 0, false
}

// FirstUndelivered returns the first regular stream that is not delivered; the number of regular streams if there is none.
func (e *Epoch) FirstUndelivered() uint32 {
	regular := e.Regular()
	for e.undelivered < regular && e.delivered.has(e.undelivered) {
		e.undelivered++
	}
	return min(e.undelivered, regular)
}

// Regular returns the number of streams that are not closing streams.
func (e *Epoch) Regular() uint32 {
	if e.Job.Plan.HasClosing() {
		return min(e.total, uint32(max(0, e.Job.Plan.GetNumStreams())))
	}
	return e.total
}

// Closings returns the closing streams that workers hold and that are not produced, ascending.
func (e *Epoch) Closings() []*pecanv1.StoredStream {
	var list []*pecanv1.StoredStream
	for _, number := range slices.Sorted(maps.Keys(e.closings)) {
		list = append(list, e.active[number])
	}
	return list
}

// FreshStreams counts the fresh streams.
func (e *Epoch) FreshStreams() uint32 {
	return e.total - uint32(len(e.active)) - (e.sums.delivered - e.sums.activeDelivered)
}

// Sources returns the streams that a closing stream joins: those with numbers in [first, below).
func (e *Epoch) Sources(closing uint32) (first, below uint32) {
	first, below = e.Job.Plan.Sources(closing)
	return first, min(below, e.total)
}

// closingSettles reports whether no closing stream needs what a delivered stream kept back any more. A closing stream
// that keeps rows back itself may have to run again, and then needs its sources again.
func (e *Epoch) closingSettles(stream uint32) bool {
	closing, exists := e.Job.Plan.ClosingOf(stream)
	if !exists || closing >= e.total {
		return true
	}
	if active := e.active[closing]; active != nil && !e.Settles(active) || !e.delivered.has(closing) {
		return false
	}
	return !e.carryNeeds(stream)
}

// Running counts the streams that take a slot of their workers.
func (e *Epoch) Running() int { return e.sums.running }

// Settles reports whether nobody needs an active stream any more: its consumer has all of it, and no closing stream
// needs its remainder rows.
func (e *Epoch) Settles(stream *pecanv1.StoredStream) bool {
	return stream.Delivered && (stream.Truncated || stream.Produced && stream.RemainderRows == 0 || e.closingSettles(stream.Stream))
}

// onlyConsumer returns the reader of all streams of a private job's epoch; empty for a shared job.
func (e *Epoch) onlyConsumer() string {
	if Private(e.Job) && len(e.Passes) > 0 {
		return e.Passes[0].ClientId
	}
	return ""
}

// count adds a stream to the sums, or removes it with sign -1.
func (e *Epoch) count(stream *pecanv1.StoredStream, sign int) {
	add := func(sum *int, holds bool) {
		if holds {
			*sum += sign
		}
	}
	held := stream.Worker != nil
	add(&e.sums.held, held && !stream.Delivered)
	add(&e.sums.running, held && !stream.Produced && !e.Job.Plan.IsClosing(stream.Stream))
	add(&e.sums.unread, held && stream.Produced && !stream.Delivered)
	add(&e.sums.produced, stream.Produced)
	add(&e.sums.openingCrashed, stream.OpeningCrashes > 0)
	if stream.Delivered {
		e.sums.delivered += uint32(sign)
		e.sums.activeDelivered += uint32(sign)
		e.sums.elements += uint64(sign) * elementsOf(stream)
		e.sums.lost += uint64(sign) * lostOf(stream)
	} else if stream.Consumer != "" && !Private(e.Job) {
		if e.consumers[stream.Consumer] += sign; e.consumers[stream.Consumer] == 0 {
			delete(e.consumers, stream.Consumer)
		}
	}
	if stream.Truncated {
		e.sums.truncated += uint32(sign)
	}
}

func elementsOf(stream *pecanv1.StoredStream) uint64 {
	if !stream.Delivered {
		return 0
	}
	return stream.Count
}

// lostOf counts the elements of a stream that were produced and did not arrive, as far as is known.
func lostOf(stream *pecanv1.StoredStream) uint64 {
	if !stream.Truncated || !stream.Delivered || stream.Progress <= stream.Count {
		return 0
	}
	return stream.Progress - stream.Count
}

func byNumber(a, b *pecanv1.StoredStream) int { return cmp.Compare(a.Stream, b.Stream) }

// bitmap has one bit for each stream of an epoch, stream 0 in the lowest bit of the first byte.
type bitmap []byte

func newBitmap(streams uint32) bitmap { return make(bitmap, (streams+7)/8) }

func (b bitmap) has(stream uint32) bool { return b[stream/8]&(1<<(stream%8)) != 0 }

func (b bitmap) set(stream uint32, on bool) {
	if on {
		b[stream/8] |= 1 << (stream % 8)
	} else {
		b[stream/8] &^= 1 << (stream % 8)
	}
}

// next returns the first stream from one on that has its bit set; false if there is none.
func (b bitmap) next(from uint32) (uint32, bool) {
	for at := from; at/8 < uint32(len(b)); at++ {
		switch rest := b[at/8:]; {
		case at%8 == 0 && len(rest) >= 8 && binary.LittleEndian.Uint64(rest) == 0:
			at += 63
		case rest[0]>>(at%8) == 0:
			at |= 7
		case b.has(at):
			return at, true
		}
	}
	return 0, false
}

func (b bitmap) count() (n uint32) {
	for _, part := range b {
		n += uint32(bits.OnesCount8(part))
	}
	return n
}

// resized returns the bitmap with room for this many streams.
func (b bitmap) resized(streams uint32) bitmap {
	for uint32(len(b)) < (streams+7)/8 {
		b = append(b, 0)
	}
	return b
}
