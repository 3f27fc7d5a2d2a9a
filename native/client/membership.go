package client

import (
	"context"

	"github.com/pecan-ml/pecan/native/client/control"
	"github.com/pecan-ml/pecan/native/client/epoch"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// ClientUnknown is called when the dispatcher does not know this client. It finds out whether the dispatcher
// still has the job. The queue of a shared job is lost in either case, because others may have its elements
// by now.
func (j *Job) ClientUnknown(ctx context.Context, why *reason.Error) {
	var epochs []*epoch.Epoch
	if j.consumer.Shared() {
		epochs = j.epochs()
	}
	for _, e := range epochs {
		e.Disown()
	}
	if !j.reattach(ctx) {
		return
	}
	for _, e := range epochs {
		e.Abort(why)
	}
}

// reattach requests the same job again after the dispatcher removed this client. A dispatcher that still has
// the job finds it by the request's id. A dispatcher that lost it returns another job, and this one has
// ended. The result says whether the dispatcher knows the client again.
//
// The heartbeat of a closed job may reach the dispatcher after the goodbye, which is why the dispatcher does not know the
// client. Such a job must not come back, because nobody would close it again.
func (j *Job) reattach(ctx context.Context) bool {
	if j.isClosed() {
		return false
	}
	answer, err := j.session.link.API().CreateJob(ctx, j.consumer.Request)
	if err != nil && (control.IsOutage(err) || ctx.Err() != nil) {
		return false
	}
	if err == nil && answer.GetJobId() == j.consumer.JobID && answer.GetPlan().GetHash() == j.consumer.Plan.GetHash() {
		j.setTimeout(answer.GetClientTimeoutS())
		if j.isClosed() {
			j.sendGoodbye()
			return false
		}
		return true
	}
	j.Lose("")
	return false
}

// setTimeout takes over the client timeout that the dispatcher reported. A restarted dispatcher may have
// another one.
func (j *Job) setTimeout(seconds float64) {
	if seconds <= 0 {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.timeoutS = seconds
}

// timeout returns after how many seconds without a heartbeat the dispatcher removes this consumer.
func (j *Job) timeout() float64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.timeoutS
}

// Lose ends everything that belongs to a job that the dispatcher does not know any more.
func (j *Job) Lose(why string) {
	if why != "" {
		why = " (" + why + ")"
	}
	err := reason.New(reason.JobUnknown, "the dispatcher at %s does not know job %s any more%s: it was restarted without its work directory or with an older copy, or "+
		"has heard nothing of this trainer for more than %.0f s; make a new iterator, which starts a new job", j.session.link.Target(), j.consumer.JobID, why, j.timeout())
	j.mu.Lock()
	known := j.lost != nil
	if !known {
		j.lost = err
	}
	j.mu.Unlock()
	if known {
		return
	}
	for _, e := range j.epochs() {
		e.Abort(err)
	}
	// The caller that sees the error may start with another dataset at once, whose job is probably lost too.
	j.session.verify(j)
}

// isLost reports whether the dispatcher has lost the job.
func (j *Job) isLost() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.lost != nil
}

func (j *Job) isClosed() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.closed
}

// retire drops a lost job that another one replaced. Its iterations remain open, because each still has to
// return the elements that it received and its own error.
func (j *Job) retire() {
	j.session.mu.Lock()
	delete(j.session.jobs, j)
	j.session.mu.Unlock()
	j.mu.Lock()
	ahead := j.prefetched
	j.prefetched = nil
	j.mu.Unlock()
	if ahead != nil {
		ahead.Close()
	}
	// A dispatcher that restarted from a stale store still has the job, and would run its streams without a
	// reader.
	j.sendGoodbye()
}

// sendGoodbye lets the dispatcher remove this consumer at once, after all other calls for it.
func (j *Job) sendGoodbye() {
	api, request := j.session.link.API(), &pecanv1.ClientGoodbyeRequest{ClientId: j.consumer.ClientID}
	j.session.link.Deliver(func(ctx context.Context) error {
		_, err := api.ClientGoodbye(ctx, request)
		return err
	})
}
