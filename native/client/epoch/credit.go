package epoch

import (
	"math"
)

// countLive counts the streams that share the memory budget. e.mu is held.
func (e *Epoch) countLive() {
	e.live = 0
	for _, st := range e.list {
		if st.reading() {
			e.live++
		}
	}
}

// share returns a stream's part of the memory budget. e.mu is held.
func (e *Epoch) share() uint64 {
	return uint64(max(1, e.options.MaxOutstandingBytes/int64(max(1, e.live))))
}

// Acknowledge tells the worker what has arrived and how much it may send. The reader calls it when it has
// nothing else to do or has received many bytes.
func (r *receiver) Acknowledge() {
	e := r.stream.epoch
	e.mu.Lock()
	defer e.mu.Unlock()
	if r.stream.receiver == r {
		r.credit(true)
	}
}

// firstCredit is how much a worker may send before the size of its frames is known.
const firstCredit = 1 << 20

// window returns how many bytes may be queued while more are requested. A worker sends while it has sent less
// than its credit, and so exceeds the credit by up to one frame. The window is therefore smaller than the
// share by that much. One frame is always requested.
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

// credit sends a CREDIT frame if the change is worth a frame. With ack, a new acknowledgement is worth one.
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
