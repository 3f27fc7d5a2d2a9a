package epoch

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/google/uuid"
	"github.com/pecan-ml/pecan/native/client/control"
	"github.com/pecan-ml/pecan/native/client/transport"
	"github.com/pecan-ml/pecan/native/client/wait"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// Options say how one epoch is read; client.IterOptions explains them.
type Options struct {
	MaxOutstandingBytes int64
	Compression         pecanv1.Compression
	Protocol            transport.Protocol
	Deterministic       bool
	NoPrefetch          bool
}

// Open begins a pass over the job in the background: the pass with this number, or the next one if pass is nil. earlier
// is closed when the preceding epoch is open or never will be; it may be nil. ahead says that the epoch is prefetched.
//
// The batches of the epoch after continue in this one. If after is nil, this epoch begins with its own rows, or with the
// rows of start.
func Open(c *Consumer, earlier chan struct{}, pass *uint64, ahead bool, start *pecanv1.Position, after *Epoch) *Epoch {
	e := &Epoch{
		carryState: newCarryState(after, start),
		Consumer:   c, link: c.Link, Pass: pass, prefetch: ahead, ResumeAt: start, requestID: uuid.NewString(), cursor: start.GetTurn(),
		previous: earlier, Answered: make(chan struct{}), Notify: make(chan struct{}, 1), kick: make(chan struct{}, 1),
	}
	e.streams.resumed = e.StartProgress().Next
	e.ctx, e.cancel = context.WithCancel(c.Link.Context())
	c.Link.Go(e.run)
	return e
}

// Activate starts reading. If the epoch was prefetched, it also sends the dispatcher an adoption, and does
// not wait for the answer.
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

// warnEmpty logs that a pass has no elements because trainers with the same job name read all of them.
// Without the warning the pass looks like an empty dataset.
func (e *Epoch) warnEmpty() {
	e.link.Log().Warn(fmt.Sprintf("epoch %d has no elements left: other trainers of the job have read all of it, "+
		"so this pass is empty. The next pass reads the next epoch; give another job_name to read everything from the start", e.Number()),
		"job_name", e.Consumer.Request.GetJobName())
}

// adopt reports that a prefetched epoch is read from now on. Until then workers compute hardly anything for
// it. The call bypasses the queue of background calls, where the ends of all streams of the previous epoch
// may be waiting.
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
			// If the dispatcher does not know the epoch, the watch returns that error too.
			return
		}
		if !pause.Wait(e.ctx) {
			return
		}
	}
}

// run opens the epoch at the dispatcher and watches its updates until the epoch is closed.
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
			// An epoch that failed is not watched again.
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

// open repeats the call until the dispatcher answers. It returns false when there is nothing to watch. Where
// the dispatcher could be left with an open epoch that blocks others, it waits for the answer even after the
// epoch was closed.
func (e *Epoch) open(pause *wait.Backoff) (follow bool) {
	ctx := e.ctx
	if e.opensInTurn() {
		if !e.awaitTurn() {
			return false
		}
		ctx = e.link.Context()
	}
	request := &pecanv1.OpenEpochRequest{
		RequestId: e.requestID, ClientId: e.Consumer.ClientID, JobId: e.Consumer.JobID, Pass: e.Consumer.Job.NumberPass(e), Prefetch: e.prefetch, Position: e.ResumeAt,
		HeartbeatNumber: e.Consumer.Heartbeats.Load(), After: e.afterNumber,
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

// Unanswered reports whether the dispatcher has not yet answered the opening of an epoch with this Answered
// channel.
func Unanswered(answered <-chan struct{}) bool {
	select {
	case <-answered:
		return false
	default:
		return answered != nil
	}
}

// overFiles reports whether the epoch must not overlap another one. Two epochs that write the same cache
// files would disturb each other. An epoch that begins at a position may be the same epoch that was abandoned
// there, which is open only once.
func (e *Epoch) overFiles() bool { return e.Consumer.Plan.GetWritesFiles() || e.ResumeAt != nil }

// opensInTurn reports whether the epochs of the job are opened one after the other. The passes of a shared job are numbered,
// and the order of a deterministic epoch follows from its number.
func (e *Epoch) opensInTurn() bool {
	return e.Consumer.Shared() || e.overFiles() || e.Consumer.Options.GetMode() == pecanv1.Mode_MODE_DETERMINISTIC
}

// awaitTurn waits until the epochs before this one are opened. Where passes write files, it also waits until the dispatcher
// knows that they are closed. It returns false if the epoch was closed meanwhile; the dispatcher then never receives it.
func (e *Epoch) awaitTurn() bool {
	wait := func(ctx context.Context, c <-chan struct{}) {
		select {
		case <-c:
		case <-ctx.Done():
		}
	}
	if e.previous != nil {
		// A closed epoch waits too, because its successors wait for it in place of its predecessor.
		wait(e.link.Context(), e.previous)
	}
	if e.overFiles() {
		wait(e.ctx, e.link.Delivered())
	}
	return e.ctx.Err() == nil
}

// noteOpened takes over the dispatcher's answer. It returns false when there is nothing to watch.
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
		// The warning comes before the end is visible, because a short script exits shortly after it.
		e.warnEmpty()
	}
	e.Consumer.Job.NoteOpened(answer.GetEpoch(), begun)
	wait.Signal(e.Notify)
	if delivered {
		// The dispatcher does not count this client as a reader of the epoch, so there is nothing to watch.
		return false
	}
	if adopt {
		// An iteration requested the epoch before the dispatcher answered the prefetch.
		e.link.Go(e.adopt)
	}
	return true
}

// refused ends the epoch if the dispatcher's answer is final. It returns false when another try may succeed.
func (e *Epoch) refused(err error) bool {
	if control.IsOutage(err) {
		return false
	}
	own := reason.From(err)
	switch own.Reason {
	case reason.ClientUnknown:
		// A restarted dispatcher may not know this client. ClientUnknown finds out whether the job still
		// exists.
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
		// Nobody else closes the passes of a private job, so the dispatcher restarted from a stale store.
		if !e.Consumer.Shared() {
			e.Consumer.Job.Lose(own.Message)
			return true
		}
		e.Disown()
	}
	e.Abort(own)
	return true
}
