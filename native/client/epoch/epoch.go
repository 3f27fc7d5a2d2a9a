package epoch

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/pecan-ml/pecan/native/client/control"
	"github.com/pecan-ml/pecan/native/client/wait"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// Epoch is this client's pass over one epoch of the job. It reads nothing until it is activated.
type Epoch struct {
	Consumer *Consumer
	link     *control.Link
	// Pass is the number by which trainers of a shared job request the same epoch; nil until the epoch is
	// requested.
	Pass     *uint64
	prefetch bool
	// ResumeAt is the position where a stopped trainer continues; nil at the start.
	ResumeAt *pecanv1.Position
	// requestID identifies the call that opens the epoch, and the call that closes it.
	requestID string
	ctx       context.Context
	cancel    context.CancelFunc
	// previous is closed when the preceding epoch is open or will never be; it is nil without one. Answered
	// is the same for this epoch.
	previous, Answered chan struct{}
	carryState
	// Notify wakes the consumer, kick wakes the pump.
	Notify chan struct{}
	kick   chan struct{}

	mu     sync.Mutex
	opened bool
	id     uint64
	// order is the order of the epoch's steps, as positions record it.
	order   *pecanv1.EpochOrder
	active  bool
	closed  bool
	options Options
	// The newest update of the dispatcher.
	version       uint64
	total         uint32
	final         bool
	noMoreStreams bool
	// delivered is set if other trainers read the whole epoch before this client joined.
	delivered bool
	waiting   string
	// stale is set if the newest update has an older lease or assignment of a stream than this client had.
	// staleHeartbeats counts heartbeats in a row for which that was so.
	stale           bool
	staleHeartbeats int
	// deliveredStreams is the greatest number of delivered streams that the dispatcher has reported. marked is set if the
	// streams that ended before the start position are past.
	deliveredStreams uint32
	marked           bool
	// update has what the updates of the current watch said.
	update updates
	// noWorkers is set if the epoch waits for a worker.
	noWorkers bool
	err       error
	// disowned is set if the queue belongs to others, so nothing more is returned. err says why as soon as the reason is
	// known.
	disowned bool

	streams streams
	// In deterministic mode cursor is one more than the number of the stream that was dequeued from last. All streams of
	// the groups below turnGroup have ended.
	cursor, turnGroup uint32
	// reports are the ends and releases of streams that are on their way to the dispatcher.
	reports streamReports

	// largest is the size of the largest frame that arrived. accepted counts elements that arrived since first.
	largest       uint64
	accepted      uint64
	first         time.Time
	prefetchAsked bool

	dequeued      uint64
	dequeuedBytes uint64
	// tookFirst is when the first elements were dequeued, tookLast is when the newest ones were. firstTaken is the number of the first
	// ones.
	tookFirst, tookLast time.Time
	firstTaken          uint64
	duplicates          uint64
	reopened            uint64
	waitedFor           time.Duration
	starved             bool
	retired             bool
	// stranded is when the consumer began to wait without a worker that could produce its next element; zero
	// while there is one.
	stranded time.Time
	// asked is when a consumer last waited without result.
	asked time.Time
	// reported is when an outage was last returned. The next caller gets the whole timeout again.
	reported time.Time
}

// Abort ends the epoch with an error. Elements that arrived are still returned.
func (e *Epoch) Abort(err error) {
	e.mu.Lock()
	if e.err == nil {
		e.err = err
	}
	e.mu.Unlock()
	e.wake(false)
}

// Disown drops the queue of a shared job whose consumer the dispatcher removed, because the elements belong
// to others by now. Nothing more is returned; the error with the reason follows.
func (e *Epoch) Disown() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.disowned = true
	e.dropQueues()
}

// dropQueues closes all channels and drops what was not dequeued. Streams that have ended may then be past before their
// ends. e.mu is held.
func (e *Epoch) dropQueues() {
	for _, st := range slices.Clone(e.streams.byNumber) {
		st.closeChannel()
		st.drop()
		e.settle(st)
	}
}

func (e *Epoch) Failure() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.err
}

// Close releases the queue and the streams, and reports the close to the dispatcher after all earlier
// reports. Idempotent.
func (e *Epoch) Close() {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return
	}
	e.closed = true
	opened, id := e.opened && !e.delivered, e.id
	if opened {
		// The epoch joins Leaving first, because heartbeats have to name it until the dispatcher has received
		// the close.
		e.Consumer.Leaving.add(e)
	}
	if e.Consumer.Shared() {
		for _, st := range e.streams.byNumber {
			st.release()
		}
	}
	e.dropQueues()
	e.mu.Unlock()
	e.cancel()
	wait.Signal(e.Notify)
	// An epoch whose opening is unanswered is closed with the answer. If nobody waits for the answer, the
	// call may still have reached the dispatcher; the heartbeat does not name the epoch, and that closes it.
	if opened {
		e.reportClosed(id)
	}
}

// reportClosed reports the close of the epoch to the dispatcher. Without the report, another pass over the
// same files, or with the same number, would find the epoch open until a heartbeat omits it. Heartbeats name
// the epoch until the report has arrived. Otherwise a heartbeat that overtakes the reports of the epoch's
// streams would end the epoch without them.
//
// If the batches go on in another epoch, the report waits until that one is open. The dispatcher then keeps the rows.
func (e *Epoch) reportClosed(id uint64) {
	e.mu.Lock()
	next := e.next
	e.mu.Unlock()
	if !Unanswered(next) {
		e.deliverClosed(id)
		return
	}
	e.link.Go(func() {
		select {
		case <-next:
			e.deliverClosed(id)
		case <-e.link.Context().Done():
		}
	})
}

func (e *Epoch) deliverClosed(id uint64) {
	e.mu.Lock()
	request := &pecanv1.CloseEpochRequest{
		ClientId: e.Consumer.ClientID, JobId: e.Consumer.JobID, Epoch: id, RequestId: e.requestID,
		Seconds: e.tookLast.Sub(e.tookFirst).Seconds(), Elements: e.dequeued - e.firstTaken,
	}
	e.mu.Unlock()
	e.link.Deliver(func(ctx context.Context) error {
		_, err := e.link.API().CloseEpoch(ctx, request)
		if err == nil || !control.IsOutage(err) {
			e.Consumer.Leaving.remove(e)
		}
		return err
	})
}

// Set is a set of epochs. It is safe for concurrent use.
type Set struct {
	mu     sync.Mutex
	epochs map[*Epoch]struct{}
}

func (s *Set) add(e *Epoch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.epochs == nil {
		s.epochs = map[*Epoch]struct{}{}
	}
	s.epochs[e] = struct{}{}
}

func (s *Set) remove(e *Epoch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.epochs, e)
}

func (s *Set) List() []*Epoch {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.epochs))
}

// Retire closes the epoch and returns its counters, once.
func (e *Epoch) Retire() Counters {
	counters := e.Counters()
	e.mu.Lock()
	e.retired = true
	e.mu.Unlock()
	e.Close()
	return counters
}

// Taken returns how many elements were dequeued.
func (e *Epoch) Taken() uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.dequeued
}

// Empty reports whether no element has arrived, not even a failed one.
func (e *Epoch) Empty() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.accepted == 0
}
