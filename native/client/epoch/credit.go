package epoch

import (
	"math"
)

// minSteady is how many channels have steady credit whatever the size of elements.
const minSteady = 16

// steadyLimit returns how many channels have steady credit: half of the budget holds a frame of the largest size for each.
// e.mu is held.
func (e *Epoch) steadyLimit() int {
	frame := e.largest
	if frame == 0 {
		frame = firstCredit
	}
	return int(max(minSteady, min(uint64(e.options.MaxOutstandingBytes)/2/frame, maxBegun)))
}

// steadyAhead is steadyLimit for streams whose turn has not come. A group that is read in turn gets its part of the limit
// first. The limit is 0 while queued and granted bytes of other streams fill the budget. e.mu is held.
func (e *Epoch) steadyAhead() int {
	limit := e.steadyLimit()
	if e.streams.reading > limit && e.streams.held+e.streamBudget() > uint64(e.options.MaxOutstandingBytes) {
		return 0
	}
	if group := int(e.Consumer.Plan.GetGroup()); e.options.Deterministic && group > 0 {
		return limit - min(limit, group)
	}
	return limit
}

// streamBudget returns the memory budget of one stream with steady credit. If some streams get credit in rotation,
// half of the budget is theirs. e.mu is held.
func (e *Epoch) streamBudget() uint64 {
	budget, limit := e.options.MaxOutstandingBytes, e.steadyLimit()
	if e.streams.reading > limit {
		return uint64(max(1, budget/2/int64(limit)))
	}
	// Streams that got credit in rotation may have ended and still be queued.
	budget -= int64(min(e.streams.rotating, uint64(budget)/2))
	return uint64(max(1, budget/int64(max(1, e.streams.reading))))
}

// Ready is called when the worker lacks credit for a frame.
func (r *receiver) Ready(bytes uint64) {
	st, e := r.stream, r.stream.epoch
	e.mu.Lock()
	defer e.mu.Unlock()
	if st.receiver != r || !st.rotates || r.granted > r.received {
		return
	}
	if r.asks = bytes; r.rotated == nil {
		r.rotated = e.streams.rotation.PushBack(r)
	}
	e.rotate()
}

// rotate grants the frames that workers have announced, in the order of their asking, while half of the budget lasts. One
// frame is always granted, however large. e.mu is held.
func (e *Epoch) rotate() {
	s, budget := &e.streams, uint64(e.options.MaxOutstandingBytes)
	for at := s.rotation.Front(); at != nil; at = s.rotation.Front() {
		r := at.Value.(*receiver)
		st := r.stream
		current := st.receiver == r && st.rotates
		if current && s.rotating > 0 && (saturatingAdd(s.rotating, r.asks) > budget/2 || saturatingAdd(s.held, r.asks) > budget) {
			return
		}
		s.rotation.Remove(at)
		r.rotated = nil
		if !current {
			continue
		}
		r.granted, r.acked = saturatingAdd(r.received, r.asks), st.acknowledgeable()
		before := st.tally
		st.tally.held += r.asks
		st.tally.rotating += r.asks
		s.count(before, st.tally)
		r.channel.Credit(r.acked, r.granted)
	}
}

// steady gives a stream that rotates steady credit. e.mu is held.
func (e *Epoch) steady(st *stream) {
	st.rotates = false
	if st.receiver != nil {
		st.receiver.credit(true)
	}
	e.settle(st)
}

// acknowledgeable returns the index below which the worker may forget the elements.
func (st *stream) acknowledgeable() uint64 {
	if st.epoch.acknowledgesDequeued() {
		return st.nextToDequeue()
	}
	return st.next
}

// Acknowledge tells the worker what it may forget and how much it may send. The reader calls it when it has
// nothing else to do or has received many bytes.
func (r *receiver) Acknowledge() {
	e := r.stream.epoch
	e.mu.Lock()
	defer e.mu.Unlock()
	if r.stream.receiver == r {
		r.credit(true)
		e.settle(r.stream)
	}
}

// firstCredit is how much a worker may send before the size of its frames is known.
const firstCredit = 1 << 20

// window returns how many bytes may be queued while more are requested. A worker sends while it has sent less
// than its credit, and so exceeds the credit by up to one frame. The window is therefore smaller than the
// stream's budget by that much. One frame is always requested.
func (st *stream) window() uint64 {
	budget := st.epoch.streamBudget()
	switch {
	case st.largest == 0:
		return min(budget, firstCredit)
	case budget <= st.largest:
		return 1
	}
	return budget - st.largest + 1
}

// room bounds the window by what other streams leave of the budget: streams that have ended may still be queued. A
// stream without a frame may always request one.
func (st *stream) room() uint64 {
	e := st.epoch
	budget, others := uint64(e.options.MaxOutstandingBytes), e.streams.held-st.tally.held
	return max(1, budget-min(budget, saturatingAdd(others, max(1, e.largest)-1)))
}

// grantable returns how many bytes the worker may send beyond those that are queued.
func (st *stream) grantable() uint64 {
	if st.rotates {
		return 0
	}
	window := min(st.window(), st.room())
	return window - min(window, st.queued)
}

// credit sends a CREDIT frame if the change is worth a frame. With ack, a new acknowledgement is worth one.
func (r *receiver) credit(ack bool) {
	st := r.stream
	below := st.acknowledgeable()
	budget := st.epoch.streamBudget()
	grant := r.granted
	if more := st.grantable(); more > 0 {
		grant = max(grant, saturatingAdd(r.received, more))
	}
	worth := grant-r.granted >= max(1, budget/4) ||
		grant > r.granted && r.granted <= saturatingAdd(r.received, budget/2) ||
		ack && below > r.acked
	if !worth {
		return
	}
	r.granted, r.acked = grant, below
	r.channel.Credit(below, grant)
}

func saturatingAdd(a, b uint64) uint64 {
	if a > math.MaxUint64-b {
		return math.MaxUint64
	}
	return a + b
}
