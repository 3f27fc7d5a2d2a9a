package epoch

import (
	"context"
	"time"

	"github.com/pecan-ml/pecan/native/client/element"
	"github.com/pecan-ml/pecan/native/client/wait"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// A stream whose queue has parkAt entries is closed, and asked for again when it is down to resumeAt: entries
// without bytes (failed or empty elements) are not held back by credits.
const ParkAt = 8192

const resumeAt = ParkAt / 4

// stream is what the client knows of one stream of its epoch. epoch.mu guards all of it.
type stream struct {
	epoch  *Epoch
	number uint32
	lease  uint64
	worker *pecanv1.WorkerAddress
	// assignment is the newest time that the stream was given to this client; 0 before the first.
	assignment uint64
	// next is the one index that is accepted.
	next uint64
	// clean: everything below came to this client, and none of it was an error.
	clean uint64
	queue []element.Chunk
	// queued is what the queue counts against the budget, largest the largest frame that came.
	queued  uint64
	largest uint64
	ended   bool
	// endedUnder is the lease under which it ended; gaveUp: not at its end, but since the rest was given up.
	endedUnder uint64
	abandoned  bool
	// count is how many elements the stream has, once that is known; it stays when the stream goes to others.
	count   uint64
	counted bool
	// finished: the dispatcher is being told that all of it has been received.
	finished bool
	// released: given up for another consumer.
	released bool
	parked   bool

	receiver *receiver
	failures int
	// since is when the first of the failures in a row came.
	since     time.Time
	pause     wait.Backoff
	retryAt   time.Time
	reported  time.Time
	lastError error
	// denied: the worker said that it does not have the stream, and nothing has come of it since.
	denied bool
}

// reading is true while the stream has, or may get, elements to read.
func (st *stream) reading() bool { return !st.ended && !st.released }

// wanted is true when a channel should be opened.
func (st *stream) wanted() bool {
	if st.parked && len(st.queue) <= st.resumesAt() {
		st.parked = false
	}
	return st.reading() && !st.parked && st.receiver == nil && st.worker != nil
}

// resumesAt is how many entries a parked stream may have left when it is asked for again. Where that drops what is queued, none.
func (st *stream) resumesAt() int {
	if st.epoch.acknowledgesTaken() {
		return 0
	}
	return resumeAt
}

func (st *stream) id() *pecanv1.StreamId {
	return &pecanv1.StreamId{JobId: st.epoch.Consumer.JobID, Epoch: st.epoch.id, Stream: st.number}
}

func (st *stream) nextToDequeue() uint64 {
	if len(st.queue) > 0 {
		return st.queue[0].Index()
	}
	return st.next
}

// drop gives back what was not taken; it is as if it had not come.
func (st *stream) drop() {
	st.next = st.nextToDequeue()
	st.clean = min(st.clean, st.next)
	for i := range st.queue {
		st.queue[i].Release()
	}
	st.queue, st.queued = nil, 0
}

// revoke notes that the dispatcher does not count the stream as this client's any more, unasked.
func (st *stream) revoke() {
	if st.finished || st.released {
		return
	}
	st.released, st.ended = true, false
	st.closeChannel()
	if st.epoch.acknowledgesTaken() {
		st.drop()
	}
}

// release leaves the stream to another consumer, who starts where the trainer stopped: what is queued here and was not
// taken is still with the worker, since it was not acknowledged.
func (st *stream) release() {
	if st.released || st.finished || st.lease == 0 {
		return
	}
	next := st.nextToDequeue()
	st.released, st.ended = true, false
	st.closeChannel()
	st.drop()
	api := st.epoch.link.API()
	request := &pecanv1.ReleaseStreamRequest{ClientId: st.epoch.Consumer.ClientID, Id: st.id(), Lease: st.lease, NextIndex: next, Assignment: st.assignment}
	st.epoch.link.Deliver(func(ctx context.Context) error {
		_, err := api.ReleaseStream(ctx, request)
		return err
	})
}

// end notes that everything has arrived. Where elements are acknowledged as they are taken, the channel stays for that.
func (st *stream) end() {
	st.ended, st.endedUnder, st.lastError = true, st.lease, nil
	st.count, st.counted = st.next, true
	if len(st.queue) == 0 || !st.epoch.acknowledgesTaken() {
		st.finish()
	}
}

// acknowledgesTaken is true where an element counts as received only when the trainer has taken it: another trainer would
// otherwise never get what was queued here when this one leaves.
func (e *Epoch) acknowledgesTaken() bool { return e.Consumer.Shared() }

// finish tells the dispatcher that the stream was received to its end.
func (st *stream) finish() {
	if st.finished {
		return
	}
	st.finished = true
	st.closeChannel()
	api := st.epoch.link.API()
	request := &pecanv1.FinishStreamRequest{ClientId: st.epoch.Consumer.ClientID, Id: st.id(), Lease: st.endedUnder, Count: st.next, Assignment: st.assignment, Abandoned: st.abandoned}
	st.epoch.link.Deliver(func(ctx context.Context) error {
		_, err := api.FinishStream(ctx, request)
		return err
	})
}

// pop removes the first entry of the queue and gives its bytes back to the credit.
func (st *stream) pop() {
	st.queued -= st.queue[0].Bytes
	st.queue[0].Release()
	st.queue[0] = element.Chunk{}
	st.queue = st.queue[1:]
	if len(st.queue) == 0 {
		st.queue = nil
	}
	if st.receiver != nil {
		st.receiver.credit(st.epoch.acknowledgesTaken())
	}
	if st.ended && len(st.queue) == 0 {
		st.finish()
	} else if st.receiver == nil && st.parked && len(st.queue) <= st.resumesAt() {
		wait.Signal(st.epoch.kick)
	}
}
