package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
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
	// request is the call that opens an epoch over files, once it may have been made.
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
	if e.job.plan.GetWritesFiles() && !e.ask(request) {
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
// each other's way. False when the epoch was closed meanwhile.
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

// stir wakes whoever may have something to do now.
func (e *epoch) stir(openAhead bool) {
	nudge(e.notify)
	nudge(e.kick)
	if openAhead {
		e.job.openAhead()
	}
}

// pump keeps a channel open for every stream that can be read, until the epoch is closed.
func (e *epoch) pump() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-e.ctx.Done():
			return
		case <-e.kick:
		case <-timer.C:
		}
		if next := e.reconcile(time.Now()); next > 0 {
			timer.Reset(next)
		}
	}
}

// reconcile opens what can be opened and says when to look again; 0 means not before something happens.
func (e *epoch) reconcile(now time.Time) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.active || e.closed || e.err != nil {
		return 0
	}
	e.countLive()
	var next time.Duration
	for _, st := range e.list {
		if !st.wanted() {
			continue
		}
		if pause := st.retryAt.Sub(now); pause > 0 {
			if next == 0 || pause < next {
				next = pause
			}
			continue
		}
		if err := e.openChannel(st); err != nil {
			e.err = err
			nudge(e.notify)
			return 0
		}
	}
	return next
}

// countLive finds how many streams share the budget. e.mu is held.
func (e *epoch) countLive() {
	e.live = 0
	for _, st := range e.list {
		if st.reading() {
			e.live++
		}
	}
}

// share is a stream's part of the budget. e.mu is held.
func (e *epoch) share() uint64 {
	return uint64(max(1, e.options.MaxOutstandingBytes/int64(max(1, e.live))))
}

// streamOf finds or makes a stream. e.mu is held.
func (e *epoch) streamOf(number uint32) *stream {
	if st := e.streams[number]; st != nil {
		return st
	}
	st := &stream{epoch: e, number: number}
	e.streams[number] = st
	at, _ := slices.BinarySearchFunc(e.list, number, func(st *stream, n uint32) int {
		return int(int64(st.number) - int64(n))
	})
	e.list = slices.Insert(e.list, at, st)
	return st
}

// received is true when no more elements will come. e.mu is held.
func (e *epoch) received() bool {
	if e.noMore {
		for _, st := range e.list {
			if st.reading() {
				return false
			}
		}
		return true
	}
	if !e.final || uint32(len(e.list)) < e.total {
		return false
	}
	for _, st := range e.list {
		if !st.ended {
			return false
		}
	}
	return true
}

// aheadTime is how long before the foreseen end of an epoch the next one is opened: opening a stream takes tens of
// milliseconds, filling a shuffle buffer more.
const aheadTime = 2 * time.Second

// nearlyDone tells, once, that the next epoch should be opened: everything has come or will have come soon. e.mu is held.
func (e *epoch) nearlyDone() bool {
	if e.askedAhead || !e.active || e.closed || e.err != nil || e.options.NoAhead {
		return false
	}
	near := e.received() || e.final && e.openStreams() == 0
	if expected := e.job.expected(); !near && expected >= 0 && e.accepted > 0 {
		left := float64(expected) - float64(e.accepted)
		elapsed := time.Since(e.first).Seconds()
		near = left*elapsed <= aheadTime.Seconds()*float64(e.accepted)
	}
	e.askedAhead = near
	return near
}

// openStreams counts streams that have not ended and not begun to be read. e.mu is held.
func (e *epoch) openStreams() int {
	n := int(e.total) - len(e.list)
	for _, st := range e.list {
		if !st.ended {
			n++
		}
	}
	return n
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

// takeBack closes an epoch over files whose opening was not answered. The heartbeat would end it too, and seconds later, for which the next
// epoch would find its files locked. The same request once more is answered with the same epoch.
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

func (e *epoch) addStats(stats *Stats) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.retired {
		stats.Duplicates += e.duplicates
		stats.Reopened += e.reopened
	}
}

func (e *epoch) addWaited(d time.Duration, starved bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.waitedFor += d
	e.starved = starved
}

func (e *epoch) setStarved(starved bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if starved && !e.starved {
		nudge(e.session.urgent)
	}
	e.starved = starved
}

// report is what the heartbeat tells; nil before the dispatcher knows the epoch.
func (e *epoch) report() *pecanv1.ClientHeartbeatRequest_Pass {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.opened || e.closed {
		return nil
	}
	return &pecanv1.ClientHeartbeatRequest_Pass{
		JobId: e.job.id, Epoch: e.id, Starved: e.starved, Elements: e.taken, Bytes: e.takenBytes, WaitedS: e.waitedFor.Seconds(), DuplicatesDropped: e.duplicates,
	}
}

// number is the epoch's at the dispatcher, 0 before it is known.
func (e *epoch) number() uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.id
}

// position is the one behind everything that was taken; nil before the epoch is open.
func (e *epoch) position() *pecanv1.Position {
	e.mu.Lock()
	next, opened, turn := map[uint32]uint64{}, e.opened, e.cursor
	for _, st := range e.list {
		next[st.number] = st.nextToTake()
	}
	e.mu.Unlock()
	if !opened {
		return nil
	}
	return e.positionAt(next, turn)
}

// positionAt writes down a position in the epoch. Streams that are known to have ended there are marked, so that nobody
// has to run them again to find out.
func (e *epoch) positionAt(next map[uint32]uint64, turn uint32) *pecanv1.Position {
	e.mu.Lock()
	defer e.mu.Unlock()
	position := &pecanv1.Position{Epoch: e.id}
	if e.options.Deterministic {
		position.Turn = turn
	}
	put := func(stream uint32, index uint64) {
		for uint32(len(position.Next)) <= stream {
			position.Next = append(position.Next, 0)
		}
		position.Next[stream] = index
	}
	for stream, index := range next {
		if index > 0 {
			put(stream, index)
		}
	}
	for _, st := range e.list {
		if st.counted && next[st.number] == st.count {
			position.Ended = append(position.Ended, st.number)
		}
	}
	return position
}

// pausedAfter is how long nobody has asked when a consumer is taken to have done something else.
const pausedAfter = 2 * time.Second

// outage is the error of a consumer that has been waiting for longer than limit while nothing was there that could give it
// an element: the dispatcher is away and no worker connected, no worker is registered, or none can be reached. A worker that
// is connected may take as long as it likes. In deterministic mode only the worker counts whose stream's turn it is.
func (e *epoch) outage(now time.Time, limit time.Duration) error {
	away, why := e.session.away()
	e.mu.Lock()
	defer e.mu.Unlock()
	if now.Sub(e.asked) > pausedAfter {
		// Nobody has waited meanwhile.
		e.stranded = time.Time{}
	}
	e.asked = now
	connected, unreached := e.links()
	switch {
	case connected || away == 0 && !e.noWorkers && unreached == nil:
		// With nothing known either way, as while a stream moves to another worker, the clock goes on.
		if connected || !e.moving() {
			e.stranded = time.Time{}
		}
		return nil
	case e.stranded.IsZero():
		e.stranded = now
	}
	since := e.stranded
	if e.excused.After(since) {
		since = e.excused
	}
	lasted := now.Sub(since)
	if lasted <= limit {
		return nil
	}
	e.excused = now
	wait := fmt.Sprintf("wait for elements of job %s", e.job.id)
	switch {
	case away > 0:
		return reason.New(reason.Unavailable, "%s: the dispatcher at %s has not answered for %.1f s (%s) and no worker that could give the "+
			"next one is connected: see that pecan-dispatcher runs there; the iteration goes on when it answers", wait, e.session.target.shown, away.Seconds(), why)
	case e.noWorkers:
		return reason.New(reason.NoWorkers, "%s: no worker was there for %.1f s (the dispatcher at %s: %s): start workers, or give a longer "+
			"dispatcher timeout; the iteration goes on when one registers", wait, lasted.Seconds(), e.session.target.shown, e.waiting)
	}
	return reason.New(reason.Unavailable, "%s: no worker that has its streams could be reached for %.1f s (stream %d, worker %s at %s: %v): see that "+
		"the address by which it was started (pecan-worker --advertise HOST:PORT) can be reached from this host; the iteration goes on when it can",
		wait, lasted.Seconds(), unreached.number, unreached.worker.GetWorkerId(), unreached.worker.GetTcp(), unreached.trouble)
}

// links tells whether a worker is connected that has an awaited stream, and else gives one of those whose worker could not
// be reached, if there is one. e.mu is held.
func (e *epoch) links() (connected bool, unreached *stream) {
	for _, st := range e.awaited() {
		switch {
		case !st.reading():
		case st.channel != nil && st.channel.conn.isUp():
			return true, nil
		case st.worker != nil && st.trouble != nil && unreached == nil:
			unreached = st
		}
	}
	return false, unreached
}

// moving is true while an awaited stream has a worker that was not tried to its end yet. e.mu is held.
func (e *epoch) moving() bool {
	for _, st := range e.awaited() {
		if st.reading() && st.worker != nil && st.trouble == nil {
			return true
		}
	}
	return false
}

// why says for people what is being waited for, and whether it is only that workers are computing it.
func (e *epoch) why() (why string, computing bool) {
	away, reasonAway := e.session.away()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err != nil || e.received() {
		return "", false
	}
	awaited := e.awaited()
	for _, st := range awaited {
		if len(st.queue) > 0 {
			return "", false
		}
	}
	if away > 0 {
		return fmt.Sprintf("the dispatcher at %s has not answered for %.1f s: %s", e.session.target.shown, away.Seconds(), reasonAway), false
	}
	if e.waiting != "" {
		return e.waiting, false
	}
	for _, st := range awaited {
		if st.trouble != nil && !st.ended {
			return fmt.Sprintf("stream %d of job %s epoch %d: %v", st.number, e.job.id, e.id, st.trouble), false
		}
	}
	switch {
	case !e.opened:
		return "the dispatcher has not opened the epoch yet", false
	case len(awaited) == 0:
		return "the dispatcher has not assigned a stream yet", false
	}
	return fmt.Sprintf("%d of %d streams have ended, the others' next elements are being computed", len(e.list)-e.unfinished(), max(int(e.total), len(e.list))), true
}

// unfinished counts known streams that have not ended. e.mu is held.
func (e *epoch) unfinished() int {
	n := 0
	for _, st := range e.list {
		if !st.ended {
			n++
		}
	}
	return n
}
