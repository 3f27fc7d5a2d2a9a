package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// epoch is one pass that is open at the dispatcher. Nothing is read before it is activated.
type epoch struct {
	consumer *Consumer
	link     *Link
	// pass is the number by which trainers of a shared job ask for the same epoch, once it is asked for; nil before.
	pass  *uint64
	ahead bool
	// start is where a trainer goes on that was stopped; nil at the start.
	start *pecanv1.Position
	// requestID is of the call that opens it, and of the one that closes it.
	requestID string
	ctx       context.Context
	cancel    context.CancelFunc
	// earlier is closed when the epoch that was begun before this one is open, or will never be, and nil where there is none; answered is so of
	// this one.
	earlier, answered chan struct{}
	// notify wakes the consumer, kick the pump.
	notify chan struct{}
	kick   chan struct{}

	mu     sync.Mutex
	opened bool
	id     uint64
	// order is what positions in the epoch say of the order of its steps.
	order   *pecanv1.EpochOrder
	active  bool
	closed  bool
	options EpochOptions
	// The newest snapshot of the dispatcher.
	version uint64
	total   uint32
	final   bool
	noMore  bool
	// delivered: others had all of the epoch before this client came.
	delivered bool
	waiting   string
	// passed: the newest snapshot speaks of a stream's earlier time. beatsBehind counts heartbeats at which that was so, in a row.
	passed      bool
	beatsBehind int
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
	accepted   uint64
	first      time.Time
	askedAhead bool

	taken      uint64
	takenBytes uint64
	duplicates uint64
	reopened   uint64
	waitedFor  time.Duration
	starved    bool
	retired    bool
	// stranded is since when a consumer has been waiting without anything that could give it an element; zero while there is.
	stranded time.Time
	// asked is when a consumer last waited in vain.
	asked time.Time
	// excused is when a consumer was last told of an outage: who asks again is given the whole time again.
	excused time.Time
}

// EpochOptions says how one epoch is read; IterOptions says what they mean.
type EpochOptions struct {
	MaxOutstandingBytes int64
	Compression         pecanv1.Compression
	Protocol            Protocol
	Deterministic       bool
	NoAhead             bool
}

// newEpoch opens a pass of the job in the background: the one of this number, or the next one. earlier is closed when the epoch that was
// begun before is open or will never be, nil where there is none.
func newEpoch(c *Consumer, earlier chan struct{}, pass *uint64, ahead bool, start *pecanv1.Position) *epoch {
	e := &epoch{
		consumer: c, link: c.Link, pass: pass, ahead: ahead, start: start, requestID: uuid.NewString(), cursor: start.GetTurn(), streams: map[uint32]*stream{},
		earlier: earlier, answered: make(chan struct{}), notify: make(chan struct{}, 1), kick: make(chan struct{}, 1),
	}
	e.ctx, e.cancel = context.WithCancel(c.Link.Context())
	c.Link.Go(e.run)
	return e
}

// activate starts reading, and has the dispatcher told if the epoch was opened ahead; nobody waits for that.
func (e *epoch) activate(options EpochOptions) {
	e.mu.Lock()
	e.options = options
	start := !e.active && !e.closed
	e.active = true
	empty := start && e.delivered && e.opened
	adopt := start && e.ahead && e.opened && !e.delivered
	opened, number := e.opened, e.id
	e.mu.Unlock()
	if opened {
		e.consumer.Job.NoteOpened(number, true)
	}
	if start {
		e.link.Go(e.pump)
	}
	if adopt {
		e.link.Go(e.adopt)
	}
	if empty {
		e.sayEmpty()
	}
}

// sayEmpty tells people of a pass that is read and gives nothing, since trainers of one name have had all of it: without a word
// it looks like a dataset that has no elements.
func (e *epoch) sayEmpty() {
	e.link.Log().Warn(fmt.Sprintf("nothing is left of epoch %d: the trainers that share the job by its name have had all of it before this one asked, "+
		"so this pass is empty. The next pass reads the next epoch; give another job_name to read everything from the start", e.number()),
		"job_name", e.consumer.Request.GetJobName())
}

// adopt tells the dispatcher that the epoch is read from now on: until it knows, workers make hardly anything of it. This
// does not stand in the queue of calls, where the ends of all streams of the epoch before may be waiting.
func (e *epoch) adopt() {
	request := &pecanv1.AdoptEpochRequest{ClientId: e.consumer.ClientID, JobId: e.consumer.JobID, Epoch: e.id}
	var pause retryPause
	for {
		ctx, cancel := context.WithTimeout(e.ctx, callTimeout)
		_, err := e.link.API().AdoptEpoch(ctx, request)
		cancel()
		if e.ctx.Err() != nil {
			return
		}
		e.link.observe(err)
		if err == nil || !isOutage(err) {
			// A dispatcher that knows nothing of the epoch says so where it is followed, too.
			return
		}
		if !pause.wait(e.ctx) {
			return
		}
	}
}

// run opens the epoch at the dispatcher and follows its snapshots until the epoch is closed.
func (e *epoch) run() {
	var pause retryPause
	follow := e.open(&pause)
	close(e.answered)
	if !follow {
		return
	}
	pause.reset()
	for {
		err := e.watch(&pause)
		if e.ctx.Err() != nil || e.failure() != nil {
			// An epoch that failed stays so.
			return
		}
		if !errors.Is(err, io.EOF) {
			e.link.observe(err)
			if e.refused(err) {
				return
			}
		}
		if !pause.wait(e.ctx) {
			return
		}
	}
}

// open asks until the dispatcher answers; false when there is nothing to follow. Where the dispatcher would miss an epoch that it may have
// opened, the answer is awaited even if the epoch is closed meanwhile.
func (e *epoch) open(pause *retryPause) (follow bool) {
	ctx := e.ctx
	if e.consumer.shared() || e.overFiles() {
		if !e.awaitTurn() {
			return false
		}
		ctx = e.link.Context()
	}
	request := &pecanv1.OpenEpochRequest{
		RequestId: e.requestID, ClientId: e.consumer.ClientID, JobId: e.consumer.JobID, Pass: e.consumer.Job.NumberPass(e), Prefetch: e.ahead, Position: e.start,
		HeartbeatNumber: e.consumer.Heartbeats.Load(),
	}
	for {
		limited, cancel := context.WithTimeout(ctx, callTimeout)
		answer, err := e.link.API().OpenEpoch(limited, request)
		cancel()
		if ctx.Err() != nil {
			return false
		}
		e.link.observe(err)
		if err == nil {
			return e.hasOpened(answer)
		}
		if e.refused(err) || e.ctx.Err() != nil && !isOutage(err) || !pause.wait(ctx) {
			return false
		}
	}
}

// unanswered tells of an epoch's answered whether the dispatcher is still to say that it is open.
func unanswered(answered <-chan struct{}) bool {
	select {
	case <-answered:
		return false
	default:
		return answered != nil
	}
}

// overFiles: two epochs that write the same files of a cache would be in each other's way, and an epoch that begins at a place may be the
// one that was left there, which is open once.
func (e *epoch) overFiles() bool { return e.consumer.Plan.GetWritesFiles() || e.start != nil }

// awaitTurn has epochs open one after the other: the passes of a shared job are numbered, and over files the dispatcher has to know that
// earlier ones are closed. False when the epoch was closed meanwhile, which the dispatcher then never hears of.
func (e *epoch) awaitTurn() bool {
	wait := func(ctx context.Context, c <-chan struct{}) {
		select {
		case <-c:
		case <-ctx.Done():
		}
	}
	if e.earlier != nil {
		// Also where this one was closed: those behind it wait for the one before it, too.
		wait(e.link.Context(), e.earlier)
	}
	if e.overFiles() {
		wait(e.ctx, e.link.Delivered())
	}
	return e.ctx.Err() == nil
}

// hasOpened takes over the dispatcher's answer; false when there is nothing to follow.
func (e *epoch) hasOpened(answer *pecanv1.OpenEpochResponse) bool {
	e.consumer.Job.CountPass(e)
	e.mu.Lock()
	e.opened, e.id, e.order = true, answer.GetEpoch(), answer.GetOrder()
	begun, delivered, closed := e.active, answer.GetAlreadyDelivered(), e.closed
	e.delivered, e.noMore = delivered, delivered
	adopt := e.ahead && e.active
	if closed && !delivered {
		e.consumer.Leaving.add(e)
	}
	e.mu.Unlock()
	if closed {
		if !delivered {
			e.tellClosed(answer.GetEpoch())
		}
		return false
	}
	if delivered && begun {
		// Before the end is seen: a short script is over a moment later.
		e.sayEmpty()
	}
	e.consumer.Job.NoteOpened(answer.GetEpoch(), begun)
	nudge(e.notify)
	if delivered {
		// The dispatcher does not count this client among the epoch's: there is nothing to follow.
		return false
	}
	if adopt {
		// It was asked for before the dispatcher had answered that it is open.
		e.link.Go(e.adopt)
	}
	return true
}

// refused ends the epoch when the dispatcher answered that it cannot be; false when asking again may help.
func (e *epoch) refused(err error) bool {
	if isOutage(err) {
		return false
	}
	own := reason.From(err)
	switch own.Reason {
	case reason.ClientUnknown:
		// A dispatcher that was restarted may have to be told of this client; that settles whether the job is there.
		ctx, cancel := context.WithTimeout(e.ctx, callTimeout)
		defer cancel()
		e.consumer.Job.ClientUnknown(ctx, own)
		return e.failure() != nil
	case reason.JobUnknown:
		e.consumer.Job.Lose(own.Message)
		return true
	case reason.Unavailable, reason.NoWorkers:
		return false
	case reason.EpochUnknown:
		// Nobody else closes the passes of a private job: the dispatcher goes on with an older store.
		if !e.consumer.shared() {
			e.consumer.Job.Lose(own.Message)
			return true
		}
		e.disown()
	}
	e.abort(own)
	return true
}

// watch applies snapshots until the call ends.
func (e *epoch) watch(pause *retryPause) error {
	watch, err := e.link.API().WatchEpoch(e.ctx, &pecanv1.WatchEpochRequest{
		ClientId: e.consumer.ClientID, JobId: e.consumer.JobID, Epoch: e.id,
	})
	if err != nil {
		return err
	}
	// Versions start anew with a dispatcher that was restarted.
	fresh := true
	for {
		update, err := watch.Recv()
		if err != nil {
			return err
		}
		e.link.observe(nil)
		pause.reset()
		e.apply(update, fresh)
		fresh = false
	}
}

// apply takes over a snapshot.
func (e *epoch) apply(update *pecanv1.EpochUpdate, fresh bool) {
	e.mu.Lock()
	if e.closed || !fresh && update.GetVersion() <= e.version {
		e.mu.Unlock()
		return
	}
	e.version = update.GetVersion()
	e.waiting, e.noWorkers = update.GetWaiting(), update.GetNoWorkers()
	if update.GetStreamsFinal() {
		e.final, e.total = true, update.GetTotalStreams()
	}
	e.noMore = e.delivered || update.GetNoMoreStreams()
	if detail := update.GetError(); detail != nil && e.err == nil {
		e.err = reason.FromDetail(detail)
	}
	told := map[uint32]bool{}
	e.passed = slices.ContainsFunc(update.GetStreams(), e.hadLater)
	for _, one := range update.GetStreams() {
		told[one.GetStream()] = true
		e.applyStream(one)
	}
	for _, st := range e.list {
		if !told[st.number] {
			st.takenAway()
		}
	}
	e.countLive()
	ahead := e.nearlyDone()
	e.mu.Unlock()
	if trouble := update.GetCacheProblem(); trouble != "" {
		e.consumer.sayOfCache(trouble)
	}
	e.stir(ahead)
}

// abort ends the epoch with an error; what has arrived is still handed out.
func (e *epoch) abort(err error) {
	e.mu.Lock()
	if e.err == nil {
		e.err = err
	}
	e.mu.Unlock()
	e.stir(false)
}

// disown drops what waits here of a shared job whose consumer the dispatcher has forgotten: it is others' by now. Nothing more is handed
// out; the error that says why follows.
func (e *epoch) disown() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.disowned = true
	for _, st := range e.list {
		st.closeChannel()
		st.drop()
	}
}

func (e *epoch) failure() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.err
}

// close gives everything back and tells the dispatcher, after all that was to be told before. Idempotent.
func (e *epoch) close() {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return
	}
	e.closed = true
	opened, id := e.opened && !e.delivered, e.id
	if opened {
		// Before heartbeats take it for closed: they name it until the dispatcher is told.
		e.consumer.Leaving.add(e)
	}
	for _, st := range e.list {
		if e.consumer.shared() {
			st.giveUp()
		}
		st.closeChannel()
		st.drop()
	}
	e.mu.Unlock()
	e.cancel()
	nudge(e.notify)
	// One that is still to be answered is closed with its answer. Where nobody waits for that, the call may have reached the dispatcher all
	// the same: the heartbeat does not name the epoch, which ends it.
	if opened {
		e.tellClosed(id)
	}
}

// tellClosed has the dispatcher told. Another pass over the same files, or of the same number, would find the epoch open until its heartbeat
// does; and until it is told heartbeats name the epoch, which is in leaving, or one that overtakes what waits to be told of its streams would end
// it without that.
func (e *epoch) tellClosed(id uint64) {
	request := &pecanv1.CloseEpochRequest{ClientId: e.consumer.ClientID, JobId: e.consumer.JobID, Epoch: id, RequestId: e.requestID}
	e.link.Deliver(func(ctx context.Context) error {
		_, err := e.link.API().CloseEpoch(ctx, request)
		if err == nil || !isOutage(err) {
			e.consumer.Leaving.remove(e)
		}
		return err
	})
}

// epochSet may be used by several goroutines.
type epochSet struct {
	mu     sync.Mutex
	epochs map[*epoch]struct{}
}

func (s *epochSet) add(e *epoch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.epochs == nil {
		s.epochs = map[*epoch]struct{}{}
	}
	s.epochs[e] = struct{}{}
}

func (s *epochSet) remove(e *epoch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.epochs, e)
}

func (s *epochSet) list() []*epoch {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.epochs))
}

// retire closes the epoch, hands its counters over, once, and tells how many elements were taken.
func (e *epoch) retire() (taken uint64, counters Counters) {
	counters = e.counters()
	e.mu.Lock()
	e.retired = true
	taken = e.taken
	e.mu.Unlock()
	e.close()
	return taken, counters
}

// empty is true when not even a failed element has come.
func (e *epoch) empty() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.accepted == 0
}
