package epoch

import (
	"container/list"
	"fmt"
	"time"

	"github.com/pecan-ml/pecan/native/client/element"
	"github.com/pecan-ml/pecan/native/client/transport"
	"github.com/pecan-ml/pecan/native/client/wait"
	"github.com/pecan-ml/pecan/proto/frame"
	"github.com/pecan-ml/pecan/proto/reason"
)

// receiver takes in what arrives on one opening of a stream on a connection. It implements
// transport.Receiver.
type receiver struct {
	stream  *stream
	channel *transport.Channel
	lease   uint64
	opened  time.Time
	// received and granted are running totals of payload bytes since the opening.
	received uint64
	granted  uint64
	// acked is the index of the last CREDIT.
	acked uint64
	// asks is the size of the frame that the worker has announced, while the receiver waits in the rotation.
	asks    uint64
	rotated *list.Element
}

// closeChannel closes the stream's channel, if there is one.
func (st *stream) closeChannel() {
	if r := st.receiver; r != nil {
		st.receiver = nil
		r.channel.Close()
	}
}

// Lost is called by the connection when it failed, without a lock held. unreachable is true if another try has little
// hope.
func (r *receiver) Lost(why error, unreachable bool) {
	st, e := r.stream, r.stream.epoch
	e.mu.Lock()
	defer e.mu.Unlock()
	defer e.settle(st)
	if st.receiver == r {
		st.receiver = nil
		st.disconnected(why, unreachable)
	}
}

// Refused is called when the worker closed the channel with an error.
func (r *receiver) Refused(why *reason.Error) {
	st, e := r.stream, r.stream.epoch
	e.mu.Lock()
	defer e.mu.Unlock()
	defer e.settle(st)
	if st.receiver != r {
		return
	}
	st.receiver = nil
	st.failed(why)
	switch why.Reason {
	case reason.StaleLease, reason.StreamUnknown, reason.WorkerUnknown, reason.EpochUnknown, reason.JobUnknown, reason.Unavailable,
		reason.Closed, reason.ClusterMismatch, reason.FrameCorrupt, reason.NoWorkers:
		// The dispatcher's next update, or the worker's next command, resolves this.
		st.denied = true
		if st.failures > 2 {
			st.report(why)
		}
	default:
		// The worker reports this to the dispatcher too, which may move the stream. If it does not, the user
		// must see the error.
		st.report(why)
		if time.Since(st.since) > failureTimeout && e.err == nil {
			e.err = why
			wait.Signal(e.Notify)
		}
	}
}

// Wants decides whether a DATA or ERROR frame of the channel is accepted.
func (r *receiver) Wants(h frame.Header) (bool, error) {
	st, e := r.stream, r.stream.epoch
	e.mu.Lock()
	defer e.mu.Unlock()
	defer e.settle(st)
	elements := uint64(max(1, h.Count))
	switch {
	case st.receiver != r || st.ended:
		return false, nil
	case outdated(h.Lease, r.lease):
		e.duplicates += elements
		return false, nil
	case h.Lease > r.lease:
		st.reopen(reason.New(reason.StaleLease, "the worker sends under lease %d, this reader knows %d", h.Lease, r.lease))
		return false, nil
	case h.Index > st.next:
		st.reopen(reason.New(reason.FrameCorrupt, "stream %d: element %d came where %d is next", st.number, h.Index, st.next))
		return false, nil
	case h.Type == frame.Data && r.received > 0 && r.received >= r.granted:
		return false, reason.New(reason.FrameCorrupt, "stream %d: %d bytes were sent on a credit of %d", st.number, r.received+h.RawLen, r.granted)
	case alreadyReceived(h.Index, elements, st.next) == elements:
		e.duplicates += elements
		r.received += h.RawLen
		return false, nil
	}
	return true, nil
}

// Add appends an accepted entry to the queue, and takes over its memory. It returns false if the channel was
// closed meanwhile.
func (r *receiver) Add(en element.Entry) bool {
	st, e := r.stream, r.stream.epoch
	e.mu.Lock()
	known := alreadyReceived(en.First, uint64(en.Elements), st.next)
	if st.receiver != r || e.closed || en.First > st.next || known == uint64(en.Elements) {
		e.mu.Unlock()
		en.Release()
		return false
	}
	if known > 0 {
		e.duplicates += known
		en.Skip(int(known))
	}
	r.received += en.Arrived
	if st.clean == st.next && en.Err == nil {
		st.clean = en.First + uint64(en.Elements)
	}
	st.next = en.First + uint64(en.Elements)
	st.queued += en.Bytes
	if e.largest == 0 {
		// The size of frames decides how many channels have steady credit.
		wait.Signal(e.kick)
	}
	st.largest, e.largest = max(st.largest, en.Bytes), max(e.largest, en.Bytes)
	st.queue = append(st.queue, en)
	st.failures, st.lastError, st.denied = 0, nil, false
	st.pause.Reset()
	if e.accepted == 0 {
		e.first = time.Now()
	}
	e.accepted += uint64(en.Remaining())
	if len(st.queue) >= ParkAt {
		st.parked = true
		st.closeChannel()
	}
	e.settle(st)
	ahead := e.nearlyDone()
	e.mu.Unlock()
	wait.Signal(e.Notify)
	if ahead {
		e.Consumer.Job.Prefetch(e)
	}
	return true
}

// End is called for an END frame.
func (r *receiver) End(count, lease uint64) {
	st, e := r.stream, r.stream.epoch
	e.mu.Lock()
	if st.receiver != r || st.ended || lease < r.lease {
		e.mu.Unlock()
		return
	}
	if count > st.next || lease > r.lease {
		st.reopen(reason.New(reason.FrameCorrupt, "stream %d: it ended with %d elements where element %d is next", st.number, count, st.next))
		e.settle(st)
		e.mu.Unlock()
		return
	}
	st.end()
	e.settle(st)
	ahead := e.nearlyDone()
	e.mu.Unlock()
	e.wake(ahead)
}

func formatElement(st *stream, index uint64) string {
	return fmt.Sprintf("element %d of stream %d, epoch %d, job %s", index, st.number, st.epoch.id, st.epoch.Consumer.JobID)
}
