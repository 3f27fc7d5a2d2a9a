package epoch

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/pecan-ml/pecan/native/client/control"
	"github.com/pecan-ml/pecan/native/client/wait"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// warnEmpty tells people of a pass that is read and gives nothing, since trainers of one name have had all of it: without a word
// it looks like a dataset that has no elements.
func (e *Epoch) warnEmpty() {
	e.link.Log().Warn(fmt.Sprintf("nothing is left of epoch %d: the trainers that share the job by its name have had all of it before this one asked, "+
		"so this pass is empty. The next pass reads the next epoch; give another job_name to read everything from the start", e.Number()),
		"job_name", e.Consumer.Request.GetJobName())
}

// adopt tells the dispatcher that the epoch is read from now on: until it knows, workers make hardly anything of it. This
// does not stand in the queue of calls, where the ends of all streams of the epoch before may be waiting.
func (e *Epoch) adopt() {
	request := &pecanv1.AdoptEpochRequest{ClientId: e.Consumer.ClientID, JobId: e.Consumer.JobID, Epoch: e.id}
	var pause wait.Backoff
	for {
		ctx, cancel := context.WithTimeout(e.ctx, control.CallTimeout)
		_, err := e.link.API().AdoptEpoch(ctx, request)
		cancel()
		if e.ctx.Err() != nil {
			return
		}
		e.link.Observe(err)
		if err == nil || !control.IsOutage(err) {
			// A dispatcher that knows nothing of the epoch says so where it is followed, too.
			return
		}
		if !pause.Wait(e.ctx) {
			return
		}
	}
}

// run opens the epoch at the dispatcher and follows its snapshots until the epoch is closed.
func (e *Epoch) run() {
	var pause wait.Backoff
	follow := e.open(&pause)
	close(e.Answered)
	if !follow {
		return
	}
	pause.Reset()
	for {
		err := e.watch(&pause)
		if e.ctx.Err() != nil || e.Failure() != nil {
			// An epoch that failed stays so.
			return
		}
		if !errors.Is(err, io.EOF) {
			e.link.Observe(err)
			if e.refused(err) {
				return
			}
		}
		if !pause.Wait(e.ctx) {
			return
		}
	}
}

// open asks until the dispatcher answers; false when there is nothing to follow. Where the dispatcher would miss an epoch that it may have
// opened, the answer is awaited even if the epoch is closed meanwhile.
func (e *Epoch) open(pause *wait.Backoff) (follow bool) {
	ctx := e.ctx
	if e.Consumer.Shared() || e.overFiles() {
		if !e.awaitTurn() {
			return false
		}
		ctx = e.link.Context()
	}
	request := &pecanv1.OpenEpochRequest{
		RequestId: e.requestID, ClientId: e.Consumer.ClientID, JobId: e.Consumer.JobID, Pass: e.Consumer.Job.NumberPass(e), Prefetch: e.prefetch, Position: e.ResumeAt,
		HeartbeatNumber: e.Consumer.Heartbeats.Load(),
	}
	for {
		limited, cancel := context.WithTimeout(ctx, control.CallTimeout)
		answer, err := e.link.API().OpenEpoch(limited, request)
		cancel()
		if ctx.Err() != nil {
			return false
		}
		e.link.Observe(err)
		if err == nil {
			return e.noteOpened(answer)
		}
		if e.refused(err) || e.ctx.Err() != nil && !control.IsOutage(err) || !pause.Wait(ctx) {
			return false
		}
	}
}

// Unanswered tells of an epoch's answered whether the dispatcher is still to say that it is open.
func Unanswered(answered <-chan struct{}) bool {
	select {
	case <-answered:
		return false
	default:
		return answered != nil
	}
}

// overFiles: two epochs that write the same files of a cache would be in each other's way, and an epoch that begins at a place may be the
// one that was left there, which is open once.
func (e *Epoch) overFiles() bool { return e.Consumer.Plan.GetWritesFiles() || e.ResumeAt != nil }

// awaitTurn has epochs open one after the other: the passes of a shared job are numbered, and over files the dispatcher has to know that
// earlier ones are closed. False when the epoch was closed meanwhile, which the dispatcher then never hears of.
func (e *Epoch) awaitTurn() bool {
	wait := func(ctx context.Context, c <-chan struct{}) {
		select {
		case <-c:
		case <-ctx.Done():
		}
	}
	if e.previous != nil {
		// Also where this one was closed: those behind it wait for the one before it, too.
		wait(e.link.Context(), e.previous)
	}
	if e.overFiles() {
		wait(e.ctx, e.link.Delivered())
	}
	return e.ctx.Err() == nil
}

// noteOpened takes over the dispatcher's answer; false when there is nothing to follow.
func (e *Epoch) noteOpened(answer *pecanv1.OpenEpochResponse) bool {
	e.Consumer.Job.CountPass(e)
	e.mu.Lock()
	e.opened, e.id, e.order = true, answer.GetEpoch(), answer.GetOrder()
	begun, delivered, closed := e.active, answer.GetAlreadyDelivered(), e.closed
	e.delivered, e.noMoreStreams = delivered, delivered
	adopt := e.prefetch && e.active
	if closed && !delivered {
		e.Consumer.Leaving.add(e)
	}
	e.mu.Unlock()
	if closed {
		if !delivered {
			e.reportClosed(answer.GetEpoch())
		}
		return false
	}
	if delivered && begun {
		// Before the end is seen: a short script is over a moment later.
		e.warnEmpty()
	}
	e.Consumer.Job.NoteOpened(answer.GetEpoch(), begun)
	wait.Signal(e.Notify)
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
func (e *Epoch) refused(err error) bool {
	if control.IsOutage(err) {
		return false
	}
	own := reason.From(err)
	switch own.Reason {
	case reason.ClientUnknown:
		// A dispatcher that was restarted may have to be told of this client; that settles whether the job is there.
		ctx, cancel := context.WithTimeout(e.ctx, control.CallTimeout)
		defer cancel()
		e.Consumer.Job.ClientUnknown(ctx, own)
		return e.Failure() != nil
	case reason.JobUnknown:
		e.Consumer.Job.Lose(own.Message)
		return true
	case reason.Unavailable, reason.NoWorkers:
		return false
	case reason.EpochUnknown:
		// Nobody else closes the passes of a private job: the dispatcher goes on with an older store.
		if !e.Consumer.Shared() {
			e.Consumer.Job.Lose(own.Message)
			return true
		}
		e.Disown()
	}
	e.Abort(own)
	return true
}
