package epoch

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/pecan-ml/pecan/native/client/control"
	"github.com/pecan-ml/pecan/native/client/transport"
	"github.com/pecan-ml/pecan/native/client/wait"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// Epoch is one pass that is open at the dispatcher. Nothing is read before it is activated.
type Epoch struct {
	Consumer *Consumer
	link     *control.Link
	// pass is the number by which trainers of a shared job ask for the same epoch, once it is asked for; nil before.
	Pass     *uint64
	prefetch bool
	// start is where a trainer goes on that was stopped; nil at the start.
	ResumeAt *pecanv1.Position
	// requestID is of the call that opens it, and of the one that closes it.
	requestID string
	ctx       context.Context
	cancel    context.CancelFunc
	// earlier is closed when the epoch that was begun before this one is open, or will never be, and nil where there is none; answered is so of
	// this one.
	previous, Answered chan struct{}
	// notify wakes the consumer, kick the pump.
	Notify chan struct{}
	kick   chan struct{}

	mu     sync.Mutex
	opened bool
	id     uint64
	// order is what positions in the epoch say of the order of its steps.
	order   *pecanv1.EpochOrder
	active  bool
	closed  bool
	options Options
	// The newest snapshot of the dispatcher.
	version       uint64
	total         uint32
	final         bool
	noMoreStreams bool
	// delivered: others had all of the epoch before this client came.
	delivered bool
	waiting   string
	// passed: the newest snapshot speaks of a stream's earlier time. beatsBehind counts heartbeats at which that was so, in a row.
	stale           bool
	staleHeartbeats int
	// noWorkers: what is waited for is a worker.
	noWorkers bool
	err       error
	// disowned: what came is others' by now, and nothing more is handed out; err is why, as soon as that is known.
	disowned bool

	streams map[uint32]*stream
	// list has the streams by number; cursor is the place in it (in deterministic mode: the number) to take from next.
	list   []*stream
	cursor uint32
	// live is how many streams share the budget.
	live int

	// accepted counts elements that arrived since first.
	accepted      uint64
	first         time.Time
	prefetchAsked bool

	dequeued      uint64
	dequeuedBytes uint64
	duplicates    uint64
	reopened      uint64
	waitedFor     time.Duration
	starved       bool
	retired       bool
	// stranded is since when a consumer has been waiting without anything that could give it an element; zero while there is.
	stranded time.Time
	// asked is when a consumer last waited in vain.
	asked time.Time
	// excused is when a consumer was last told of an outage: who asks again is given the whole time again.
	reported time.Time
}

// Options says how one epoch is read; IterOptions says what they mean.
type Options struct {
	MaxOutstandingBytes int64
	Compression         pecanv1.Compression
	Protocol            transport.Protocol
	Deterministic       bool
	NoPrefetch          bool
}

// Open opens a pass of the job in the background: the one of this number, or the next one. earlier is closed when the epoch that was
// begun before is open or will never be, nil where there is none.
func Open(c *Consumer, earlier chan struct{}, pass *uint64, ahead bool, start *pecanv1.Position) *Epoch {
	e := &Epoch{
		Consumer: c, link: c.Link, Pass: pass, prefetch: ahead, ResumeAt: start, requestID: uuid.NewString(), cursor: start.GetTurn(), streams: map[uint32]*stream{},
		previous: earlier, Answered: make(chan struct{}), Notify: make(chan struct{}, 1), kick: make(chan struct{}, 1),
	}
	e.ctx, e.cancel = context.WithCancel(c.Link.Context())
	c.Link.Go(e.run)
	return e
}

// Activate starts reading, and has the dispatcher told if the epoch was opened ahead; nobody waits for that.
func (e *Epoch) Activate(options Options) {
	e.mu.Lock()
	e.options = options
	start := !e.active && !e.closed
	e.active = true
	empty := start && e.delivered && e.opened
	adopt := start && e.prefetch && e.opened && !e.delivered
	opened, number := e.opened, e.id
	e.mu.Unlock()
	if opened {
		e.Consumer.Job.NoteOpened(number, true)
	}
	if start {
		e.link.Go(e.pump)
	}
	if adopt {
		e.link.Go(e.adopt)
	}
	if empty {
		e.warnEmpty()
	}
}

// Abort ends the epoch with an error; what has arrived is still handed out.
func (e *Epoch) Abort(err error) {
	e.mu.Lock()
	if e.err == nil {
		e.err = err
	}
	e.mu.Unlock()
	e.wake(false)
}

// Disown drops what waits here of a shared job whose consumer the dispatcher has forgotten: it is others' by now. Nothing more is handed
// out; the error that says why follows.
func (e *Epoch) Disown() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.disowned = true
	for _, st := range e.list {
		st.closeChannel()
		st.drop()
	}
}

func (e *Epoch) Failure() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.err
}

// Close gives everything back and tells the dispatcher, after all that was to be told before. Idempotent.
func (e *Epoch) Close() {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return
	}
	e.closed = true
	opened, id := e.opened && !e.delivered, e.id
	if opened {
		// Before heartbeats take it for closed: they name it until the dispatcher is told.
		e.Consumer.Leaving.add(e)
	}
	for _, st := range e.list {
		if e.Consumer.Shared() {
			st.release()
		}
		st.closeChannel()
		st.drop()
	}
	e.mu.Unlock()
	e.cancel()
	wait.Signal(e.Notify)
	// One that is still to be answered is closed with its answer. Where nobody waits for that, the call may have reached the dispatcher all
	// the same: the heartbeat does not name the epoch, which ends it.
	if opened {
		e.reportClosed(id)
	}
}

// reportClosed has the dispatcher told. Another pass over the same files, or of the same number, would find the epoch open until its heartbeat
// does; and until it is told heartbeats name the epoch, which is in leaving, or one that overtakes what waits to be told of its streams would end
// it without that.
func (e *Epoch) reportClosed(id uint64) {
	request := &pecanv1.CloseEpochRequest{ClientId: e.Consumer.ClientID, JobId: e.Consumer.JobID, Epoch: id, RequestId: e.requestID}
	e.link.Deliver(func(ctx context.Context) error {
		_, err := e.link.API().CloseEpoch(ctx, request)
		if err == nil || !control.IsOutage(err) {
			e.Consumer.Leaving.remove(e)
		}
		return err
	})
}

// Set may be used by several goroutines.
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

// Retire closes the epoch, hands its counters over, once, and tells how many elements were taken.
func (e *Epoch) Retire() (taken uint64, counters Counters) {
	counters = e.Counters()
	e.mu.Lock()
	e.retired = true
	taken = e.dequeued
	e.mu.Unlock()
	e.Close()
	return taken, counters
}

// Empty is true when not even a failed element has come.
func (e *Epoch) Empty() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.accepted == 0
}
