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

// watch applies snapshots until the call ends.
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

// apply takes over a snapshot.
func (e *Epoch) apply(update *pecanv1.EpochUpdate, fresh bool) {
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
	e.noMoreStreams = e.delivered || update.GetNoMoreStreams()
	if detail := update.GetError(); detail != nil && e.err == nil {
		e.err = reason.FromDetail(detail)
	}
	listed := map[uint32]bool{}
	e.stale = slices.ContainsFunc(update.GetStreams(), e.isOlder)
	for _, one := range update.GetStreams() {
		listed[one.GetStream()] = true
		e.applyStream(one)
	}
	for _, st := range e.list {
		if !listed[st.number] {
			st.revoke()
		}
	}
	e.countLive()
	ahead := e.nearlyDone()
	e.mu.Unlock()
	if trouble := update.GetCacheProblem(); trouble != "" {
		e.Consumer.warnOfCache(trouble)
	}
	e.wake(ahead)
}

// staleHeartbeats is after how many heartbeats in a row an old snapshot is no late message any more.
const staleHeartbeats = 3

// WentBack reports whether the dispatcher has lost records that it had sent of the epoch. Its snapshots
// arrive in order and show durable state. If they show an older state for several heartbeats, the dispatcher
// restarted from a stale store, and this client cannot accept what it offers.
func (e *Epoch) WentBack() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.staleHeartbeats++; !e.stale || e.closed {
		e.staleHeartbeats = 0
	}
	return e.staleHeartbeats >= staleHeartbeats
}

// streamOf finds or creates a stream. e.mu is held.
func (e *Epoch) streamOf(number uint32) *stream {
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

// isOlder reports whether a snapshot has an older lease or assignment of a stream than this client had. e.mu
// is held.
func (e *Epoch) isOlder(update *pecanv1.ConsumerStream) bool {
	st := e.streamOf(update.GetStream())
	return outdated(update.GetLease(), st.lease) || update.GetAssignment() < st.assignment
}

// applyStream takes over one stream of a snapshot. e.mu is held.
func (e *Epoch) applyStream(update *pecanv1.ConsumerStream) {
	if e.isOlder(update) {
		return
	}
	st := e.streamOf(update.GetStream())
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
	if worker := update.GetWorker(); worker != nil && !proto.Equal(worker, st.worker) {
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
		// Snapshots replace each other, so this may be the first one with the assignment. The stream is then
		// released at its start index.
		st.release()
		return
	}
	if update.GetEnded() && st.next >= update.GetCount() && !st.ended {
		// All elements have arrived; only the END frame was lost.
		st.end()
	}
}
