package client

import (
	"context"

	"github.com/pecan-ml/pecan/native/client/control"
	"github.com/pecan-ml/pecan/native/client/epoch"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// ClientUnknown is called when the dispatcher does not know this client, and settles whether it still has the job. What waits here of a
// shared one is gone in any case.
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

// reattach asks for the same job again after the dispatcher has forgotten this client. A dispatcher that still has
// the job finds it by the request's id; one that lost it gives another job, and this one is over. It tells whether the client is known again.
func (j *Job) reattach(ctx context.Context) bool {
	answer, err := j.session.link.API().CreateJob(ctx, j.consumer.Request)
	if err != nil && (control.IsOutage(err) || ctx.Err() != nil) {
		return false
	}
	if err == nil && answer.GetJobId() == j.consumer.JobID && answer.GetPlan().GetHash() == j.consumer.Plan.GetHash() {
		j.setTimeout(answer.GetClientTimeoutS())
		return true
	}
	j.Lose("")
	return false
}

// setTimeout takes over a timeout that the dispatcher told: one that was restarted may have another.
func (j *Job) setTimeout(seconds float64) {
	if seconds <= 0 {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.timeoutS = seconds
}

// timeout is how many seconds without a heartbeat the dispatcher forgets this consumer after.
func (j *Job) timeout() float64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.timeoutS
}

// Lose ends everything of a job that the dispatcher does not know any more.
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
	// Whoever sees the error may begin with another dataset at once, whose job is probably lost as well.
	j.session.verify(j)
}

// isLost is true when the dispatcher does not know the job any more.
func (j *Job) isLost() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.lost != nil
}

// retire lets go of a lost job that another one took the place of. Its iterations stay: each has its own error to tell, and
// what had arrived for it to hand out.
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
	// A dispatcher that goes on with an older store has the job all the same, and its streams would be run for nobody.
	j.sendGoodbye()
}

// sendGoodbye lets the dispatcher forget this consumer at once, after everything else it is told of it.
func (j *Job) sendGoodbye() {
	api, request := j.session.link.API(), &pecanv1.ClientGoodbyeRequest{ClientId: j.consumer.ClientID}
	j.session.link.Deliver(func(ctx context.Context) error {
		_, err := api.ClientGoodbye(ctx, request)
		return err
	})
}
