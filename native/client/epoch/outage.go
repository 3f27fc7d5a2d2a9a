package epoch

import (
	"fmt"
	"time"

	"github.com/pecan-ml/pecan/proto/reason"
)

// pausedAfter is how long no consumer has waited before the wait is taken for interrupted.
const pausedAfter = 2 * time.Second

// DenialTime is the time after which a worker that denied a stream, and was asked again, is taken to have it.
// A worker waits up to 5 s for the dispatcher's command before it denies a stream.
const DenialTime = 10 * time.Second

// Outage returns an error if a consumer has waited for longer than limit while nothing could produce its next element. That
// is so if the dispatcher is away and no worker is connected, if no worker is registered, or if none is reachable. A
// connected worker may take any time, unless it denies the stream: a worker that lost only the dispatcher answers its
// readers indefinitely. In deterministic mode only the worker of the stream in turn counts.
func (e *Epoch) Outage(now time.Time, limit time.Duration) error {
	away, why := e.link.Away()
	e.mu.Lock()
	defer e.mu.Unlock()
	if now.Sub(e.asked) > pausedAfter {
		// No consumer has waited in between.
		e.stranded = time.Time{}
	}
	e.asked = now
	connected, unreached := e.connections(now)
	switch {
	case connected || away == 0 && !e.noWorkers && unreached == nil:
		// While nothing is known, for example while a stream moves to another worker, the time continues to
		// count.
		if connected || !e.assigned() {
			e.stranded = time.Time{}
		}
		return nil
	case e.stranded.IsZero():
		e.stranded = now
	}
	since := e.stranded
	if e.reported.After(since) {
		since = e.reported
	}
	lasted := now.Sub(since)
	if lasted <= limit {
		return nil
	}
	e.reported = now
	wait := fmt.Sprintf("wait for elements of job %s", e.Consumer.JobID)
	switch {
	case away > 0:
		return reason.New(reason.Unavailable, "%s: the dispatcher at %s has not answered for %.1f s (%s) and no worker that could give the "+
			"next one is connected: see that pecan-dispatcher runs there; the iteration goes on when it answers", wait, e.link.Target(), away.Seconds(), why)
	case e.noWorkers:
		return reason.New(reason.NoWorkers, "%s: no worker was available for %.1f s (the dispatcher at %s: %s): start workers, or give a longer "+
			"dispatcher timeout; the iteration goes on when one registers", wait, lasted.Seconds(), e.link.Target(), e.waiting)
	}
	return reason.New(reason.Unavailable, "%s: no worker that has its streams could be reached for %.1f s (stream %d, worker %s at %s: %v): see that "+
		"the address by which it was started (pecan-worker --advertise HOST:PORT) can be reached from this host; the iteration goes on when it can",
		wait, lasted.Seconds(), unreached.number, unreached.worker.GetWorkerId(), unreached.worker.GetTcp(), unreached.lastError)
}

// connections reports whether a worker with an awaited stream is connected. If not, it returns an awaited
// stream whose worker is unreachable, if there is one. e.mu is held.
func (e *Epoch) connections(now time.Time) (connected bool, unreached *stream) {
	for _, st := range e.awaited() {
		switch {
		case !st.reading():
		case st.receiver != nil && st.receiver.channel.Connected() && (!st.denied || now.Sub(st.receiver.opened) > DenialTime):
			return true, nil
		case st.worker != nil && st.lastError != nil && unreached == nil:
			unreached = st
		}
	}
	return false, unreached
}

// assigned reports whether an awaited stream has a worker for which no connection attempt has ended. e.mu is
// held.
func (e *Epoch) assigned() bool {
	for _, st := range e.awaited() {
		if st.reading() && st.worker != nil && st.lastError == nil {
			return true
		}
	}
	return false
}

// Waiting says for people what the epoch waits for. computing is true if workers are only computing the next element.
func (e *Epoch) Waiting() (why string, computing bool) {
	away, reasonAway := e.link.Away()
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
		return fmt.Sprintf("the dispatcher at %s has not answered for %.1f s: %s", e.link.Target(), away.Seconds(), reasonAway), false
	}
	if e.waiting != "" {
		return e.waiting, false
	}
	for _, st := range awaited {
		if st.lastError != nil && !st.ended {
			return fmt.Sprintf("stream %d of job %s epoch %d: %v", st.number, e.Consumer.JobID, e.id, st.lastError), false
		}
	}
	switch {
	case !e.opened:
		return "the dispatcher has not opened the epoch yet", false
	case len(awaited) == 0:
		return "the dispatcher has not assigned a stream yet", false
	}
	return fmt.Sprintf("%d of %d streams have ended, the others' next elements are being computed", e.streams.ended, max(int(e.total), e.streams.known())), true
}
