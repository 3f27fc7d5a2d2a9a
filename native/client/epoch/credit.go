package epoch

import (
	"math"
)

// countLive finds how many streams share the budget. e.mu is held.
func (e *Epoch) countLive() {
	e.live = 0
	for _, st := range e.list {
		if st.reading() {
			e.live++
		}
	}
}

// share is a stream's part of the budget. e.mu is held.
func (e *Epoch) share() uint64 {
	return uint64(max(1, e.options.MaxOutstandingBytes/int64(max(1, e.live))))
}

// Acknowledge tells the worker what has arrived and what it may send. Called by the reader when it has nothing else to
// do or has taken in a good deal.
func (r *receiver) Acknowledge() {
	e := r.stream.epoch
	e.mu.Lock()
	defer e.mu.Unlock()
	if r.stream.receiver == r {
		r.credit(true)
	}
}

// firstCredit is what a stream may send before the size of its frames is known.
const firstCredit = 1 << 20

// window is how much may be queued and still be asked for. A worker sends while it has sent less than the credit, so it
// passes it by up to one frame: the window is that much smaller than the share. One frame is asked for in any case.
func (st *stream) window() uint64 {
	share := st.epoch.share()
	switch {
	case st.largest == 0:
		return min(share, firstCredit)
	case share <= st.largest:
		return 1
	}
	return share - st.largest + 1
}

// credit sends a CREDIT frame if it says something worth a frame. With ack, an acknowledgement alone is worth it.
func (r *receiver) credit(ack bool) {
	st := r.stream
	received := st.next
	if st.epoch.acknowledgesTaken() {
		received = st.nextToDequeue()
	}
	share := st.epoch.share()
	grant := r.granted
	if window := st.window(); window > st.queued {
		grant = max(grant, saturatingAdd(r.received, window-st.queued))
	}
	worth := grant-r.granted >= max(1, share/4) ||
		grant > r.granted && r.granted <= saturatingAdd(r.received, share/2) ||
		ack && received > r.acked
	if !worth {
		return
	}
	r.granted, r.acked = grant, received
	r.channel.Credit(received, grant)
}

func saturatingAdd(a, b uint64) uint64 {
	if a > math.MaxUint64-b {
		return math.MaxUint64
	}
	return a + b
}
