package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/google/uuid"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// epoch is one pass that is open at the dispatcher. Nothing is read before it is activated.
type epoch struct {
	job     *Job
	session *Session
	pass    uint64
	ahead   bool
	// start is where a trainer goes on that was stopped; nil at the start.
	start  *pecanv1.Position
	ctx    context.Context
	cancel context.CancelFunc
	// notify wakes the consumer, kick the pump.
	notify chan struct{}
	kick   chan struct{}

	mu sync.Mutex
	// request is the call that opens an epoch over files or at a place, once it may have been made.
	request *pecanv1.OpenEpochRequest
	opened  bool
	id      uint64
	active  bool
	closed  bool
	options IterOptions
	// The newest snapshot of the dispatcher.
	version uint64
	total   uint32
	final   bool
	noMore  bool
	// delivered: others had all of the epoch before this client came.
	delivered bool
	waiting   string
	// noWorkers: what is waited for is a worker.
	noWorkers bool
	err       error

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

// newEpoch opens pass number pass of the job in the background.
func newEpoch(j *Job, pass uint64, ahead bool, start *pecanv1.Position) *epoch {
	e := &epoch{
		job: j, session: j.session, pass: pass, ahead: ahead, start: start, cursor: start.GetTurn(), streams: map[uint32]*stream{},
		notify: make(chan struct{}, 1), kick: make(chan struct{}, 1),
	}
	e.ctx, e.cancel = context.WithCancel(j.session.ctx)
	j.session.wg.Go(e.run)
	return e
}

// activate starts reading, and has the dispatcher told if the epoch was opened ahead; nobody waits for that.
func (e *epoch) activate(options IterOptions) {
	e.mu.Lock()
	e.options = options
	start := !e.active && !e.closed
	e.active = true
	empty := start && e.delivered && e.opened
	adopt := start && e.ahead && e.opened && !e.delivered
	e.mu.Unlock()
	if start {
		e.session.wg.Go(e.pump)
	}
	if adopt {
		e.session.wg.Go(e.adopt)
	}
	if empty {
		e.sayEmpty()
	}
}

// sayEmpty tells people of a pass that is read and gives nothing, since trainers of one name have had all of it: without a word
// it looks like a dataset that has no elements.
func (e *epoch) sayEmpty() {
	e.session.log.Warn(fmt.Sprintf("nothing is left of epoch %d: the trainers that share the job by its name have had all of it before this one asked, "+
		"so this pass is empty. The next pass reads the next epoch; give another job_name to read everything from the start", e.pass),
		"job_name", e.job.request.GetJobName())
}

// adopt tells the dispatcher that the epoch is read from now on: until it knows, workers make hardly anything of it. This
// does not stand in the queue of calls, where the ends of all streams of the epoch before may be waiting.
func (e *epoch) adopt() {
	request := &pecanv1.AdoptEpochRequest{ClientId: e.job.clientID, JobId: e.job.id, Epoch: e.id}
	var pause retryPause
	for {
		ctx, cancel := context.WithTimeout(e.ctx, callTimeout)
		_, err := e.session.api.AdoptEpoch(ctx, request)
		cancel()
		if e.ctx.Err() != nil {
			return
		}
		e.session.observe(err)
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
	request := &pecanv1.OpenEpochRequest{
		RequestId: uuid.NewString(), ClientId: e.job.clientID, JobId: e.job.id, Pass: e.pass, Ahead: e.ahead, Position: e.start,
	}
	if (e.job.plan.GetWritesFiles() || e.start != nil) && !e.ask(request) {
		return
	}
	for {
		ctx, cancel := context.WithTimeout(e.ctx, callTimeout)
		answer, err := e.session.api.OpenEpoch(ctx, request)
		cancel()
		if e.ctx.Err() != nil {
			return
		}
		e.session.observe(err)
		if err == nil {
			e.mu.Lock()
			e.opened, e.id = true, answer.GetEpoch()
			delivered := answer.GetAlreadyDelivered()
			if delivered && e.active {
				// Before the end is seen: a short script is over a moment later.
				e.sayEmpty()
			}
			e.delivered, e.noMore = delivered, delivered
			adopt := e.ahead && e.active
			e.mu.Unlock()
			nudge(e.notify)
			if delivered {
				// The dispatcher does not count this client among the epoch's: there is nothing to follow.
				return
			}
			if adopt {
				// It was asked for before the dispatcher had answered that it is open.
				e.session.wg.Go(e.adopt)
			}
			break
		}
		if e.refused(err) || !pause.wait(e.ctx) {
			return
		}
	}
	pause.reset()
	for {
		err := e.watch(&pause)
		if e.ctx.Err() != nil || e.failure() != nil {
			// An epoch that failed stays so.
			return
		}
		if !errors.Is(err, io.EOF) {
			e.session.observe(err)
			if e.refused(err) {
				return
			}
		}
		if !pause.wait(e.ctx) {
			return
		}
	}
}

// ask holds the call back until the dispatcher knows that earlier epochs are closed: two that write the same files of a cache would be in
// each other's way, and an epoch that begins at a place may be the one that was left there, which is open once. False when the epoch was closed meanwhile.
func (e *epoch) ask(request *pecanv1.OpenEpochRequest) bool {
	select {
	case <-e.session.calls.behind():
	case <-e.ctx.Done():
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.request = request
	return !e.closed
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
		e.job.reattach(ctx)
		return e.failure() != nil
	case reason.JobUnknown:
		e.job.lose(own.Message)
		return true
	case reason.Unavailable, reason.NoWorkers:
		return false
	}
	e.abort(own)
	return true
}

// watch applies snapshots until the call ends.
func (e *epoch) watch(pause *retryPause) error {
	watch, err := e.session.api.WatchEpoch(e.ctx, &pecanv1.WatchEpochRequest{
		ClientId: e.job.clientID, JobId: e.job.id, Epoch: e.id,
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
		e.session.observe(nil)
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
	if trouble := update.GetCacheTrouble(); trouble != "" {
		e.job.sayOfCache(trouble)
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
	opened, id, request := e.opened && !e.delivered, e.id, e.request
	if e.opened {
		request = nil
	}
	for _, st := range e.list {
		if e.job.shared() {
			st.giveUp()
		}
		st.closeChannel()
		st.drop()
	}
	e.mu.Unlock()
	e.cancel()
	nudge(e.notify)
	if request != nil {
		e.takeBack(request)
		return
	}
	if !opened {
		// The call may have reached the dispatcher all the same; the heartbeat does not name the epoch, which ends it.
		return
	}
	e.session.calls.add(call{keep: true, do: func(ctx context.Context) error { return e.tellClosed(ctx, id) }})
}

func (e *epoch) tellClosed(ctx context.Context, id uint64) error {
	_, err := e.session.api.CloseEpoch(ctx, &pecanv1.CloseEpochRequest{ClientId: e.job.clientID, JobId: e.job.id, Epoch: id})
	return err
}

// takeBack closes an epoch over files, or at a place, whose opening was not answered. The heartbeat would end it too, and seconds later, for
// which the next epoch would find its files locked, or itself open. The same request once more is answered with the same epoch.
func (e *epoch) takeBack(request *pecanv1.OpenEpochRequest) {
	e.session.calls.add(call{keep: true, do: func(ctx context.Context) error {
		answer, err := e.session.api.OpenEpoch(ctx, request)
		if err != nil || answer.GetAlreadyDelivered() {
			return err
		}
		return e.tellClosed(ctx, answer.GetEpoch())
	}})
}

// retire closes the epoch, hands its counters over, once, and tells how many elements were taken.
func (e *epoch) retire(stats *Stats) uint64 {
	e.addStats(stats)
	e.mu.Lock()
	e.retired = true
	taken := e.taken
	e.mu.Unlock()
	e.close()
	return taken
}

// empty is true when not even a failed element has come.
func (e *epoch) empty() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.accepted == 0
}
