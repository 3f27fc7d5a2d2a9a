package epoch

import (
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/pecan-ml/pecan/native/client/wait"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// watch applies updates until the call ends.
func (e *Epoch) watch(pause *wait.Backoff) error {
	watch, err := e.link.API().WatchEpoch(e.ctx, &pecanv1.WatchEpochRequest{
		ClientId: e.Consumer.ClientID, JobId: e.Consumer.JobID, Epoch: e.id,
	})
	if err != nil {
		return err
	}
	// A restarted dispatcher numbers versions from the beginning.
	fresh := true
	for {
		update, err := watch.Recv()
		if err != nil {
			return err
		}
		e.link.Observe(nil)
		pause.Reset()
		e.apply(update, fresh)
		fresh = false
	}
}

// updates has the results of the updates of one watch.
type updates struct {
	// workers are numbered from 1.
	workers []*pecanv1.WorkerAddress
	// listed has the streams of a full update until its last part has come; nil otherwise.
	listed map[uint32]bool
	// older has the streams that were last listed with an older lease or assignment than this client had.
	older map[uint32]bool
}

// apply takes over an update.
func (e *Epoch) apply(update *pecanv1.EpochUpdate, fresh bool) {
	e.mu.Lock()
	if e.closed || !fresh && update.GetVersion() <= e.version {
		e.mu.Unlock()
		return
	}
	e.version = update.GetVersion()
	u := &e.update
	if fresh || update.GetFull() {
		*u = updates{listed: map[uint32]bool{}, older: map[uint32]bool{}}
	}
	e.applyLists(update)
	if update.GetMore() {
		e.mu.Unlock()
		return
	}
	if u.listed != nil {
		for _, st := range slices.Clone(e.streams.byNumber) {
			if !u.listed[st.number] {
				st.revoke()
				e.settle(st)
			}
		}
		u.listed = nil
	}
	e.applyCarry(update)
	e.waiting, e.noWorkers = update.GetWaiting(), update.GetNoWorkers()
	if update.GetStreamsFinal() {
		e.final, e.total = true, update.GetTotalStreams()
	}
	e.noMoreStreams = e.delivered || update.GetNoMoreStreams()
	if detail := update.GetError(); detail != nil && e.err == nil {
		e.err = reason.FromDetail(detail)
	}
	e.stale = len(u.older) > 0 || update.GetDelivered() < e.deliveredStreams && !e.Consumer.RestartsStreams()
	e.deliveredStreams = max(e.deliveredStreams, update.GetDelivered())
	ahead := e.nearlyDone()
	e.mu.Unlock()
	e.Consumer.noteCacheDecision(update.GetCacheDecision())
	if trouble := update.GetCacheProblem(); trouble != "" {
		e.Consumer.warnOfCache(trouble)
	}
	e.wake(ahead)
}

// applyLists takes over the lists of an update. e.mu is held.
func (e *Epoch) applyLists(update *pecanv1.EpochUpdate) {
	u := &e.update
	if update.GetFull() {
		e.markResumed()
	}
	u.workers = append(u.workers, update.GetWorkers()...)
	for _, one := range update.GetStreams() {
		number := one.GetStream()
		if u.listed != nil {
			u.listed[number] = true
		}
		delete(u.older, number)
		switch lease, assignment := e.leaseOf(number); {
		case outdated(one.GetLease(), lease) || one.GetAssignment() < assignment:
			u.older[number] = true
		case e.streams.isPast(number) && one.GetLease() == lease && one.GetAssignment() == assignment:
		default:
			st := e.streamOf(number)
			e.applyStream(st, one)
			e.settle(st)
		}
	}
	for _, number := range update.GetRevoked() {
		if st := e.streams.find(number); st != nil {
			st.revoke()
			e.settle(st)
		}
	}
}

// leaseOf returns the newest lease and assignment of a stream. e.mu is held.
func (e *Epoch) leaseOf(number uint32) (lease, assignment uint64) {
	if st := e.streams.find(number); st != nil {
		return st.lease, st.assignment
	}
	if e.streams.isPast(number) {
		return e.streams.past[number].lease, e.streams.past[number].assignment
	}
	return 0, 0
}

// markResumed takes over the streams that ended before the start position. Differences do not list them. e.mu is held.
func (e *Epoch) markResumed() {
	if e.marked || e.ResumeAt == nil {
		return
	}
	e.marked = true
	ended, err := e.ResumeAt.EndedStreams(e.Consumer.Plan.TotalStreams())
	if err != nil {
		// The dispatcher refuses such a position.
		return
	}
	for stream := range uint32(len(ended)) * 8 {
		if !Bitmap(ended).Has(stream) || e.streams.find(stream) != nil || e.streams.isPast(stream) {
			continue
		}
		var next uint64
		if list := e.ResumeAt.GetNext(); int(stream) < len(list) {
			next = list[stream]
		}
		delete(e.streams.resumed, stream)
		e.streams.putPast(stream, pastStream{next: next, count: next, counted: true, ended: true, finished: true})
	}
}

// staleHeartbeats is after how many heartbeats in a row an old update is no late message any more.
const staleHeartbeats = 3

// WentBack reports whether the dispatcher has lost records that it had sent of the epoch. The dispatcher's updates
// arrive in order and show durable state. If the updates show an older state for several heartbeats, the dispatcher
// restarted from a stale store. This client cannot accept what that store offers.
func (e *Epoch) WentBack() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.staleHeartbeats++; !e.stale || e.closed {
		e.staleHeartbeats = 0
	}
	return e.staleHeartbeats >= staleHeartbeats
}

// applyStream takes over one stream of an update. e.mu is held.
func (e *Epoch) applyStream(st *stream, update *pecanv1.ConsumerStream) {
	if update.GetAssignment() > st.assignment {
		// The stream is assigned for the first time, or again after others had it. The state of an earlier
		// assignment does not apply.
		st.assignment = update.GetAssignment()
		st.released, st.finished, st.ended, st.abandoned = false, false, false, false
	}
	again := update.GetLease() > st.lease && st.lease > 0
	if update.GetLease() > st.lease {
		if again && e.Consumer.RestartsStreams() {
			// The new run may produce other elements in another order. The stream restarts from its first
			// index, and the queue is dropped because its elements come again.
			st.drop()
			st.clean = 0
			st.next, st.ended, st.finished, st.released = update.GetStartIndex(), false, false, false
		}
		st.lease, st.worker = update.GetLease(), nil
		st.failures, st.lastError, st.denied, st.retryAt = 0, nil, false, time.Time{}
		st.pause.Reset()
		st.closeChannel()
	}
	// Without a new address the last one stays: the dispatcher may have lost a worker that this client still
	// reaches.
	if worker := e.workerOf(update); worker != nil && !proto.Equal(worker, st.worker) {
		st.worker, st.denied, st.retryAt = worker, false, time.Time{}
		st.closeChannel()
	}
	if update.GetStartIndex() > st.next {
		st.closeChannel()
		st.next = update.GetStartIndex()
	}
	// A dispatcher that did not know that the stream had begun may run it again. Elements of the first run
	// must then not appear twice, neither here nor at another trainer.
	mustNotComeTwice := e.Consumer.AbandonsStreams() && again && st.next > update.GetStartIndex() && !st.released
	if mustNotComeTwice && st.ended {
		// All elements have arrived, and nobody else gets the queued ones.
		st.finish()
	}
	if (update.GetTruncated() && !st.released || mustNotComeTwice) && !st.ended {
		st.closeChannel()
		st.abandoned = true
		st.end()
		if !update.GetTruncated() {
			// The dispatcher would assign the stream to another trainer with a new run, and nobody else has
			// the queued elements.
			st.finish()
		}
		e.link.Log().Warn(fmt.Sprintf("stream %d of epoch %d ended early, at element %d: its worker was lost, and the rest of the stream with it, %d elements at least (mode at_most_once)",
			st.number, e.id, st.next, max(update.GetProduced(), st.next)-st.next), "job", e.Consumer.JobID)
		return
	}
	if update.GetRelease() {
		// A later update replaces an earlier one, so this may be the first one with the assignment. The stream is then
		// released at its start index.
		st.release()
		return
	}
	if update.GetEnded() && st.next >= update.GetCount() && !st.ended {
		// All elements have arrived; only the END frame was lost.
		st.end()
	}
}

// workerOf returns the worker of a stream; nil if none holds the lease.
func (e *Epoch) workerOf(update *pecanv1.ConsumerStream) *pecanv1.WorkerAddress {
	if n := update.GetWorkerNumber(); n > 0 && int(n) <= len(e.update.workers) {
		return e.update.workers[n-1]
	}
	return nil
}

// wake wakes all goroutines that may have something to do now.
func (e *Epoch) wake(openAhead bool) {
	wait.Signal(e.Notify)
	wait.Signal(e.kick)
	if openAhead {
		e.Consumer.Job.Prefetch(e)
	}
}

// pump keeps a channel open for every stream that can be read, until the epoch is closed.
func (e *Epoch) pump() {
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

// reconcile opens all channels that can be opened. It returns when to look again; 0 means only after an
// event.
func (e *Epoch) reconcile(now time.Time) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.active || e.closed || e.err != nil {
		return 0
	}
	var next time.Duration
	for at := e.streams.pending.Front(); at != nil; {
		st := at.Value.(*stream)
		at = at.Next()
		if pause := st.retryAt.Sub(now); pause > 0 {
			if next == 0 || pause < next {
				next = pause
			}
			continue
		}
		open, steady := e.mayOpen(st)
		if !open {
			continue
		}
		st.rotates = !steady
		err := e.openChannel(st)
		e.settle(st)
		if err != nil {
			e.err = err
			wait.Signal(e.Notify)
			return 0
		}
	}
	e.promote()
	return next
}

// promote gives steady credit to streams that rotate: to those that are read in turn, and to others while few channels
// have it. e.mu is held.
func (e *Epoch) promote() {
	s := &e.streams
	for _, st := range s.byNumber {
		if s.open == s.steady {
			return
		}
		room := s.steady < e.steadyAhead()
		if !room && !e.options.Deterministic {
			return
		}
		if st.receiver != nil && st.rotates && (room || e.options.Deterministic && e.inTurn(st.number)) {
			e.steady(st)
		}
	}
}

// maxBegun bounds the streams that have begun and of which something is left, so that positions stay small.
const maxBegun = 4096

// mayOpen reports whether another channel may be opened, and whether it has steady credit. A stream that is read in turn
// may always be opened: nothing else can be dequeued before it. e.mu is held.
func (e *Epoch) mayOpen(st *stream) (open, steady bool) {
	if e.options.Deterministic && e.inTurn(st.number) {
		return true, true
	}
	begun := e.streams.begun + len(e.streams.resumed)
	return st.tally.begun || begun < maxBegun, e.streams.steady < e.steadyAhead()
}

// openChannel requests the stream from its worker. An error is final: no other try can succeed. e.mu is held.
func (e *Epoch) openChannel(st *stream) error {
	c, err := e.Consumer.Workers.Connect(st.worker, e.options.Protocol)
	if err != nil {
		return err
	}
	if c == nil {
		return nil
	}
	if e.acknowledgesDequeued() {
		// A worker counts elements below the first requested index as acknowledged. If this trainer died, nobody
		// else would get the queued ones. The queue is therefore dropped and requested again.
		st.drop()
	}
	r := &receiver{stream: st, lease: st.lease, opened: time.Now(), acked: st.next, granted: st.grantable()}
	open := &pecanv1.OpenStream{
		Id: st.id(), Lease: st.lease, StartIndex: st.next, CleanBelow: st.clean, Credit: r.granted, Compression: e.options.Compression, PayloadChecksum: e.Consumer.Options.GetPayloadChecksum(),
	}
	channel, ended := c.Open(r, open, e.Consumer.maxElement())
	if ended != nil {
		// The connection ended before it knew this receiver, so it reports the end to nobody else.
		st.disconnected(ended.Err, ended.Unreachable)
		return nil
	}
	r.channel = channel
	st.receiver, st.opened, st.parked = r, true, false
	if st.failures > 0 {
		e.reopened++
	}
	return nil
}
