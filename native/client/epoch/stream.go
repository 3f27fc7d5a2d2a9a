package epoch

import (
	"container/list"
	"context"
	"time"

	"github.com/pecan-ml/pecan/native/client/control"
	"github.com/pecan-ml/pecan/native/client/element"
	"github.com/pecan-ml/pecan/native/client/wait"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// A stream whose queue reaches ParkAt entries is closed, and requested again when the queue is down to
// resumeAt. Credits do not limit entries without bytes, which are failed or empty elements.
const ParkAt = 8192

const resumeAt = ParkAt / 4

// stream has the client's state of one stream of its epoch. Epoch.mu guards all of it.
type stream struct {
	epoch  *Epoch
	number uint32
	lease  uint64
	worker *pecanv1.WorkerAddress
	// assignment numbers the newest assignment of the stream to this client; 0 before the first.
	assignment uint64
	// next is the only index that is accepted.
	next uint64
	// This client has received all elements below clean, and none was an error.
	clean uint64
	queue []element.Entry
	// queued is the size of the queue in the memory budget. largest is the size of the largest frame that
	// arrived.
	queued  uint64
	largest uint64
	ended   bool
	// endedUnder is the lease under which the stream ended. abandoned is set if it ended early, because its remainder was
	// abandoned.
	endedUnder uint64
	abandoned  bool
	// count is how many elements the stream has, once known. It stays when the stream goes to another
	// trainer.
	count   uint64
	counted bool
	// finished is set if the report that all of it was received is on its way to the dispatcher.
	finished bool
	// released is set if the stream was released for another consumer.
	released bool
	parked   bool
	// opened is set if a channel was opened for the stream.
	opened bool
	// rotates is set if its channel was opened without credit, and gets credit in rotation with others.
	rotates bool

	// streams.settle keeps these: how the set counts the stream, and its places in the lists of the set.
	tally              tally
	readyAt, pendingAt *list.Element

	receiver *receiver
	failures int
	// since is when the first of the failures in a row occurred.
	since     time.Time
	pause     wait.Backoff
	retryAt   time.Time
	reported  time.Time
	lastError error
	// denied is set if the worker said that it does not have the stream, and has sent nothing of it since.
	denied bool
}

// reading reports whether the stream has, or may get, elements to read.
func (st *stream) reading() bool { return !st.ended && !st.released }

// wanted reports whether a channel should be opened.
func (st *stream) wanted() bool {
	return st.reading() && st.receiver == nil && st.worker != nil && (!st.parked || len(st.queue) <= st.resumesAt())
}

// resumesAt returns how long the queue of a parked stream may be when the stream is requested again. It is 0
// where the request drops the queue.
func (st *stream) resumesAt() int {
	if st.epoch.acknowledgesDequeued() {
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

// drop releases the queue, as if its elements had not arrived.
func (st *stream) drop() {
	st.next = st.nextToDequeue()
	st.clean = min(st.clean, st.next)
	for i := range st.queue {
		st.queue[i].Release()
	}
	st.queue, st.queued = nil, 0
}

// revoke records that the dispatcher took the stream away from this client without a request to release it.
func (st *stream) revoke() {
	if st.finished || st.released {
		return
	}
	st.released, st.ended = true, false
	st.closeChannel()
	if st.epoch.acknowledgesDequeued() {
		st.drop()
	}
}

// release passes the stream to another consumer, which starts at the trainer's position. The worker still has
// the queued elements, because they were not acknowledged.
func (st *stream) release() {
	if st.released || st.finished || st.lease == 0 {
		return
	}
	next := releasedAt(st)
	st.released, st.ended = true, false
	st.closeChannel()
	st.drop()
	st.epoch.reportReleased(&pecanv1.ReleasedStream{Stream: st.number, Lease: st.lease, NextIndex: next, Assignment: st.assignment})
}

// end records that all elements have arrived. Where elements are acknowledged when they are dequeued, the
// channel stays open for that.
func (st *stream) end() {
	st.ended, st.endedUnder, st.lastError = true, st.lease, nil
	st.count, st.counted = st.next, true
	if len(st.queue) == 0 || !st.epoch.acknowledgesDequeued() {
		st.finish()
	}
}

// acknowledgesDequeued reports whether an element is acknowledged only when the trainer has dequeued it. In a
// shared job another trainer gets the queued elements when this one leaves.
func (e *Epoch) acknowledgesDequeued() bool { return e.Consumer.Shared() }

// finish reports to the dispatcher that the whole stream was received.
func (st *stream) finish() {
	if st.finished {
		return
	}
	st.finished = true
	st.closeChannel()
	st.epoch.reportFinished(&pecanv1.FinishedStream{Stream: st.number, Lease: st.endedUnder, Count: st.next, Assignment: st.assignment, Abandoned: st.abandoned})
}

// pop removes the first entry of the queue and returns its bytes to the credit.
func (st *stream) pop() {
	st.queued -= st.queue[0].Bytes
	st.queue[0].Release()
	st.queue[0] = element.Entry{}
	st.queue = st.queue[1:]
	if len(st.queue) == 0 {
		st.queue = nil
	}
	if st.receiver != nil {
		st.receiver.credit(st.epoch.acknowledgesDequeued())
	}
	if st.ended && len(st.queue) == 0 {
		st.finish()
	} else if st.receiver == nil && st.parked && len(st.queue) <= st.resumesAt() {
		wait.Signal(st.epoch.kick)
	}
}

// maxReports bounds the streams in one call.
const maxReports = 4096

// streamReports are the ends and releases of streams that the dispatcher has not received yet. One background call sends
// all that wait, so the dispatcher writes its journal once for many streams. Epoch.mu guards them.
type streamReports struct {
	finished []*pecanv1.FinishedStream
	released []*pecanv1.ReleasedStream
	// queued is set if a background call is queued that sends everything.
	queued bool
}

// reportFinished reports that the whole stream was received. e.mu is held.
func (e *Epoch) reportFinished(one *pecanv1.FinishedStream) {
	e.reports.finished = append(e.reports.finished, one)
	e.queueReports()
}

// reportReleased reports that another consumer may continue the stream. e.mu is held.
func (e *Epoch) reportReleased(one *pecanv1.ReleasedStream) {
	e.reports.released = append(e.reports.released, one)
	e.queueReports()
}

func (e *Epoch) queueReports() {
	if !e.reports.queued {
		e.reports.queued = true
		e.link.Deliver(e.sendReports)
	}
}

// sendReports sends all waiting reports. It returns an error if the dispatcher is away. The reports then stay, and the
// link repeats the call.
func (e *Epoch) sendReports(ctx context.Context) error {
	for {
		e.mu.Lock()
		finished := e.reports.finished[:min(len(e.reports.finished), maxReports)]
		released := e.reports.released[:min(len(e.reports.released), maxReports)]
		e.reports.queued = len(finished)+len(released) > 0
		more := e.reports.queued
		e.mu.Unlock()
		if !more {
			return nil
		}
		if err := e.sendFinished(ctx, finished); err != nil {
			return err
		}
		if err := e.sendReleased(ctx, released); err != nil {
			return err
		}
	}
}

func (e *Epoch) sendFinished(ctx context.Context, list []*pecanv1.FinishedStream) error {
	return sendList(e, list, &e.reports.finished, func() ([]*pecanv1.RefusedStream, error) {
		answer, err := e.link.API().FinishStreams(ctx, &pecanv1.FinishStreamsRequest{
			ClientId: e.Consumer.ClientID, JobId: e.Consumer.JobID, Epoch: e.id, Streams: list,
		})
		return answer.GetRefused(), err
	})
}

func (e *Epoch) sendReleased(ctx context.Context, list []*pecanv1.ReleasedStream) error {
	return sendList(e, list, &e.reports.released, func() ([]*pecanv1.RefusedStream, error) {
		answer, err := e.link.API().ReleaseStreams(ctx, &pecanv1.ReleaseStreamsRequest{
			ClientId: e.Consumer.ClientID, JobId: e.Consumer.JobID, Epoch: e.id, Streams: list,
		})
		return answer.GetRefused(), err
	})
}

// sendList sends the first waiting reports of one kind. The reports stay if the dispatcher is away.
func sendList[R any](e *Epoch, list []R, waiting *[]R, send func() ([]*pecanv1.RefusedStream, error)) error {
	if len(list) == 0 {
		return nil
	}
	if err := e.refusedReports(send()); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	*waiting = (*waiting)[len(list):]
	return nil
}

// refusedReports returns an error if the whole list must be sent again. A report that arrives twice counts once.
func (e *Epoch) refusedReports(refused []*pecanv1.RefusedStream, err error) error {
	if control.IsOutage(err) {
		return err
	}
	if err != nil {
		e.link.Log().Debug("the dispatcher refused reports of streams", "epoch", e.id, "error", err)
	}
	for _, one := range refused {
		why := reason.FromDetail(one.GetError())
		if control.IsOutage(why) {
			return why
		}
		e.link.Log().Debug("the dispatcher refused the report of a stream", "epoch", e.id, "stream", one.GetStream(), "error", why)
	}
	return nil
}
