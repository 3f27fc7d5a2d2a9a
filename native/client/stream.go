package client

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

const (
	// A stream whose queue has parkAt entries is closed, and asked for again when it is down to resumeAt: entries
	// without bytes (failed or empty elements) are not held back by credits.
	parkAt   = 8192
	resumeAt = parkAt / 4
	// patience is how long a stream may fail with an error that another try will hardly mend: the dispatcher moves the
	// stream or gives the epoch up in that time.
	patience    = 5 * time.Second
	reportPause = 250 * time.Millisecond
)

// stream is what the client knows of one stream of its epoch. epoch.mu guards all of it.
type stream struct {
	epoch  *epoch
	number uint32
	lease  uint64
	worker *pecanv1.WorkerAddress
	// assignment is the newest time that the stream was given to this client; 0 before the first.
	assignment uint64
	// next is the one index that is accepted.
	next uint64
	// clean: everything below came to this client, and none of it was an error.
	clean uint64
	queue []entry
	// queued is what the queue counts against the budget, largest the largest frame that came.
	queued  uint64
	largest uint64
	ended   bool
	// endedUnder is the lease under which it ended; gaveUp: not at its end, but since the rest was given up.
	endedUnder uint64
	gaveUp     bool
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
	since    time.Time
	pause    retryPause
	retryAt  time.Time
	reported time.Time
	trouble  error
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
	if st.epoch.keepsBack() {
		return 0
	}
	return resumeAt
}

func (st *stream) id() *pecanv1.StreamId {
	return &pecanv1.StreamId{JobId: st.epoch.consumer.JobID, Epoch: st.epoch.id, Stream: st.number}
}

func (st *stream) nextToTake() uint64 {
	if len(st.queue) > 0 {
		return st.queue[0].index()
	}
	return st.next
}

// hadLater tells whether a snapshot speaks of an earlier time of a stream than this client has had. e.mu is held.
func (e *epoch) hadLater(told *pecanv1.ConsumerStream) bool {
	st := e.streamOf(told.GetStream())
	return outdated(told.GetLease(), st.lease) || told.GetAssignment() < st.assignment
}

// applyStream takes over what a snapshot says of one stream. e.mu is held.
func (e *epoch) applyStream(told *pecanv1.ConsumerStream) {
	if e.hadLater(told) {
		return
	}
	st := e.streamOf(told.GetStream())
	if told.GetAssignment() > st.assignment {
		// Got for the first time, or again after others had it: what was said of the time before does not hold for this one.
		st.assignment = told.GetAssignment()
		st.released, st.finished, st.ended, st.gaveUp = false, false, false, false
	}
	again := told.GetLease() > st.lease && st.lease > 0
	if told.GetLease() > st.lease {
		if again && e.consumer.startsOver() {
			// Its elements may be others this time, in another order: it is taken once more from where it began, and what is queued comes again.
			st.drop()
			st.clean = 0
			st.next, st.ended, st.finished, st.released = told.GetStartIndex(), false, false, false
		}
		st.lease, st.worker = told.GetLease(), nil
		st.failures, st.trouble, st.denied, st.retryAt = 0, nil, false, time.Time{}
		st.pause.reset()
		st.closeChannel()
	}
	// Without an address the last one is kept: the dispatcher may have lost sight of a worker that we still reach.
	if worker := told.GetWorker(); worker != nil && !proto.Equal(worker, st.worker) {
		st.worker, st.denied, st.retryAt = worker, false, time.Time{}
		st.closeChannel()
	}
	if told.GetStartIndex() > st.next {
		st.closeChannel()
		st.next = told.GetStartIndex()
	}
	// A dispatcher that did not know that the stream had begun may have it run again: what came of it must not come twice, here or
	// with the trainer that it is wanted for.
	mustNotComeTwice := e.consumer.givesUp() && again && st.next > told.GetStartIndex() && !st.released
	if mustNotComeTwice && st.ended {
		// All of it is here, and what is queued is nobody else's any more.
		st.finish()
	}
	if (told.GetTruncated() && !st.released || mustNotComeTwice) && !st.ended {
		st.closeChannel()
		st.gaveUp = true
		st.end()
		if !told.GetTruncated() {
			// The dispatcher would hand the stream on with another run of it, and what is queued is with nobody else.
			st.finish()
		}
		e.link.Log().Warn(fmt.Sprintf("stream %d of epoch %d ended early, at element %d: its worker was lost, and the rest of the stream with it, %d elements at least (mode at_most_once)",
			st.number, e.id, st.next, max(told.GetProduced(), st.next)-st.next), "job", e.consumer.JobID)
		return
	}
	if told.GetRelease() {
		// Snapshots replace each other, so this may be the first that tells of the assignment: it is given up from where it
		// was got.
		st.giveUp()
		return
	}
	if told.GetEnded() && st.next >= told.GetCount() && !st.ended {
		// All of it has arrived; only the END frame was lost.
		st.end()
	}
}

// drop gives back what was not taken; it is as if it had not come.
func (st *stream) drop() {
	st.next = st.nextToTake()
	st.clean = min(st.clean, st.next)
	for i := range st.queue {
		st.queue[i].release()
	}
	st.queue, st.queued = nil, 0
}

// takenAway notes that the dispatcher does not count the stream as this client's any more, unasked.
func (st *stream) takenAway() {
	if st.finished || st.released {
		return
	}
	st.released, st.ended = true, false
	st.closeChannel()
	if st.epoch.keepsBack() {
		st.drop()
	}
}

// giveUp leaves the stream to another consumer, who starts where the trainer stopped: what is queued here and was not
// taken is still with the worker, since it was not acknowledged.
func (st *stream) giveUp() {
	if st.released || st.finished || st.lease == 0 {
		return
	}
	next := st.nextToTake()
	st.released, st.ended = true, false
	st.closeChannel()
	st.drop()
	api := st.epoch.link.API()
	request := &pecanv1.ReleaseStreamRequest{ClientId: st.epoch.consumer.ClientID, Id: st.id(), Lease: st.lease, NextIndex: next, Assignment: st.assignment}
	st.epoch.link.Deliver(func(ctx context.Context) error {
		_, err := api.ReleaseStream(ctx, request)
		return err
	})
}

// end notes that everything has arrived. Where elements are acknowledged as they are taken, the channel stays for that.
func (st *stream) end() {
	st.ended, st.endedUnder, st.trouble = true, st.lease, nil
	st.count, st.counted = st.next, true
	if len(st.queue) == 0 || !st.epoch.keepsBack() {
		st.finish()
	}
}

// keepsBack is true where an element counts as received only when the trainer has taken it: another trainer would
// otherwise never get what was queued here when this one leaves.
func (e *epoch) keepsBack() bool { return e.consumer.shared() }

// finish tells the dispatcher that the stream was received to its end.
func (st *stream) finish() {
	if st.finished {
		return
	}
	st.finished = true
	st.closeChannel()
	api := st.epoch.link.API()
	request := &pecanv1.FinishStreamRequest{ClientId: st.epoch.consumer.ClientID, Id: st.id(), Lease: st.endedUnder, Count: st.next, Assignment: st.assignment, Abandoned: st.gaveUp}
	st.epoch.link.Deliver(func(ctx context.Context) error {
		_, err := api.FinishStream(ctx, request)
		return err
	})
}

// reopen drops the channel and asks again from the next index.
func (st *stream) reopen(why error) {
	st.closeChannel()
	st.failed(why)
}

// failed notes that a channel was lost and when to try again.
func (st *stream) failed(why error) {
	if st.failures == 0 {
		st.since = time.Now()
	}
	st.failures++
	st.trouble = why
	if st.failures == 1 && !reason.Is(why, reason.NoWorkers) {
		st.retryAt = time.Now().Add(firstPause / 4)
	} else {
		st.retryAt = time.Now().Add(st.pause.next())
	}
	nudge(st.epoch.kick)
}

// report tells the dispatcher that the worker cannot be reached or answers nonsense, not too often.
func (st *stream) report(why error) {
	now := time.Now()
	if st.worker == nil || now.Sub(st.reported) < reportPause {
		return
	}
	st.reported = now
	e := st.epoch
	request := &pecanv1.ReportWorkerRequest{
		ClientId: e.consumer.ClientID, Id: st.id(), Lease: st.lease, WorkerId: st.worker.GetWorkerId(), NextIndex: st.next, Message: why.Error(),
		Number: e.consumer.Reports.Add(1),
	}
	e.link.Try(func(ctx context.Context) error {
		_, err := e.link.API().ReportWorker(ctx, request)
		return err
	})
}

// cut notes that the connection of the stream's worker has ended.
func (st *stream) cut(why error, unreachable bool) {
	st.failed(why)
	if final(why) {
		st.epoch.err = why
		nudge(st.epoch.notify)
		return
	}
	if unreachable || st.failures > 1 {
		st.report(why)
	}
}

// pop removes the first entry of the queue and gives its bytes back to the credit.
func (st *stream) pop() {
	st.queued -= st.queue[0].bytes
	st.queue[0].release()
	st.queue[0] = entry{}
	st.queue = st.queue[1:]
	if len(st.queue) == 0 {
		st.queue = nil
	}
	if st.receiver != nil {
		st.receiver.credit(st.epoch.keepsBack())
	}
	if st.ended && len(st.queue) == 0 {
		st.finish()
	} else if st.receiver == nil && st.parked && len(st.queue) <= st.resumesAt() {
		nudge(st.epoch.kick)
	}
}
