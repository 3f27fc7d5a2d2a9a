package client

import (
	"fmt"
	"math"
	"time"

	"github.com/pecan-ml/pecan/proto/frame"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// receiver takes what comes of one opening of a stream on a connection. It implements Receiver.
type receiver struct {
	stream  *stream
	channel *Channel
	lease   uint64
	opened  time.Time
	// received and granted are running totals of payload bytes since the opening.
	received uint64
	granted  uint64
	// acked is the index of the last CREDIT.
	acked uint64
}

// openChannel asks the stream's worker for it. An error is final: no other try can help. e.mu is held.
func (e *epoch) openChannel(st *stream) error {
	c, err := e.consumer.Workers.Connect(st.worker, e.options.Protocol)
	if err != nil {
		return err
	}
	if c == nil {
		return nil
	}
	if e.keepsBack() {
		// A worker counts what lies below the first index that it is asked for as received, and nobody else would get what is queued here if
		// this trainer died. So that comes again.
		st.drop()
	}
	r := &receiver{stream: st, lease: st.lease, opened: time.Now(), acked: st.next}
	if window := st.window(); window > st.queued {
		r.granted = window - st.queued
	}
	open := &pecanv1.OpenStream{
		Id: st.id(), Lease: st.lease, StartIndex: st.next, CleanBelow: st.clean, Credit: r.granted, Compression: e.options.Compression, PayloadChecksum: e.consumer.Options.GetPayloadChecksum(),
	}
	channel, ended := c.open(r, open, e.consumer.maxElement())
	if ended != nil {
		// It ended before it had the stream, so it tells nobody else.
		st.cut(ended.why, ended.unreachable)
		return nil
	}
	r.channel = channel
	st.receiver = r
	if st.failures > 0 {
		e.reopened++
	}
	return nil
}

// closeChannel tells the worker that the channel is not wanted, if there is one.
func (st *stream) closeChannel() {
	if r := st.receiver; r != nil {
		st.receiver = nil
		r.channel.Close()
	}
}

// Lost is called by the connection when it failed, with no lock held. unreachable: another try has little hope.
func (r *receiver) Lost(why error, unreachable bool) {
	st, e := r.stream, r.stream.epoch
	e.mu.Lock()
	defer e.mu.Unlock()
	if st.receiver == r {
		st.receiver = nil
		st.cut(why, unreachable)
	}
}

// Refused is called when the worker closed the channel with an error.
func (r *receiver) Refused(why *reason.Error) {
	st, e := r.stream, r.stream.epoch
	e.mu.Lock()
	defer e.mu.Unlock()
	if st.receiver != r {
		return
	}
	st.receiver = nil
	st.failed(why)
	switch why.Reason {
	case reason.StaleLease, reason.StreamUnknown, reason.WorkerUnknown, reason.EpochUnknown, reason.JobUnknown, reason.Unavailable,
		reason.Closed, reason.ClusterMismatch, reason.FrameCorrupt, reason.NoWorkers:
		// The dispatcher's next snapshot, or the worker's next command, sets this right.
		st.denied = true
		if st.failures > 2 {
			st.report(why)
		}
	default:
		// The dispatcher hears of it from the worker as well and may move the stream. If it does not, people must see it.
		st.report(why)
		if time.Since(st.since) > patience && e.err == nil {
			e.err = why
			nudge(e.notify)
		}
	}
}

// final tells errors of a connection that no other try can mend.
func final(err error) bool { return reason.Is(err, reason.Unsupported) }

// Wants decides on a DATA or ERROR frame of the channel.
func (r *receiver) Wants(h frame.Header) (bool, error) {
	st, e := r.stream, r.stream.epoch
	e.mu.Lock()
	defer e.mu.Unlock()
	rows := uint64(max(1, h.Count))
	switch {
	case st.receiver != r || st.ended:
		return false, nil
	case outdated(h.Lease, r.lease):
		e.duplicates += rows
		return false, nil
	case h.Lease > r.lease:
		st.reopen(reason.New(reason.StaleLease, "the worker sends under lease %d, this reader knows %d", h.Lease, r.lease))
		return false, nil
	case h.Index > st.next:
		st.reopen(reason.New(reason.FrameCorrupt, "stream %d: element %d came where %d is next", st.number, h.Index, st.next))
		return false, nil
	case h.Type == frame.Data && r.received > 0 && r.received >= r.granted:
		return false, reason.New(reason.FrameCorrupt, "stream %d: %d bytes were sent on a credit of %d", st.number, r.received+h.RawLen, r.granted)
	case had(h.Index, rows, st.next) == rows:
		e.duplicates += rows
		r.received += h.RawLen
		return false, nil
	}
	return true, nil
}

// Add puts an accepted entry into the queue; it owns the entry's memory. False: the channel was closed meanwhile.
func (r *receiver) Add(en entry) bool {
	st, e := r.stream, r.stream.epoch
	e.mu.Lock()
	known := had(en.first, uint64(en.rows), st.next)
	if st.receiver != r || e.closed || en.first > st.next || known == uint64(en.rows) {
		e.mu.Unlock()
		en.release()
		return false
	}
	if known > 0 {
		e.duplicates += known
		en.skip(int(known))
	}
	r.received += en.arrived
	if st.clean == st.next && en.err == nil {
		st.clean = en.first + uint64(en.rows)
	}
	st.next = en.first + uint64(en.rows)
	st.queued += en.bytes
	st.largest = max(st.largest, en.bytes)
	st.queue = append(st.queue, en)
	st.failures, st.trouble, st.denied = 0, nil, false
	st.pause.reset()
	if e.accepted == 0 {
		e.first = time.Now()
	}
	e.accepted += uint64(en.left())
	if len(st.queue) >= parkAt {
		st.parked = true
		st.closeChannel()
	}
	ahead := e.nearlyDone()
	e.mu.Unlock()
	nudge(e.notify)
	if ahead {
		e.consumer.Job.Prefetch()
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
		e.mu.Unlock()
		return
	}
	st.end()
	e.countLive()
	ahead := e.nearlyDone()
	e.mu.Unlock()
	e.stir(ahead)
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

// Name names an element of the stream for messages.
func (r *receiver) Name(index uint64) string { return formatElement(r.stream, index) }

func formatElement(st *stream, index uint64) string {
	return fmt.Sprintf("element %d of stream %d, epoch %d, job %s", index, st.number, st.epoch.id, st.epoch.consumer.JobID)
}

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
	if st.epoch.keepsBack() {
		received = st.nextToTake()
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
