package client

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/pecan-ml/pecan/native/client/control"
	"github.com/pecan-ml/pecan/native/client/epoch"
	"github.com/pecan-ml/pecan/native/client/wait"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// urgentAfter is how long a trainer has waited when the dispatcher is told out of turn.
const urgentAfter = 50 * time.Millisecond

// keepIdle is how much memory a session keeps that reads nothing.
const keepIdle = 16 << 20

// beat shows the dispatcher that the session and its jobs are wanted, and sweeps what is not used any more.
func (s *Session) beat() {
	for {
		timer := time.NewTimer(s.beatInterval())
		select {
		case <-s.link.Context().Done():
			timer.Stop()
			return
		case <-timer.C:
		case <-s.link.HeartbeatRequested():
			timer.Stop()
			// Not for every hiccup: one that is over in this time was none.
			if !wait.Sleep(s.link.Context(), urgentAfter) {
				return
			}
		}
		s.sweep()
		s.beatOnce()
	}
}

// beatInterval is the configured one, or less when the dispatcher forgets sooner.
func (s *Session) beatInterval() time.Duration {
	interval := s.config.Heartbeat
	for _, job := range s.allJobs() {
		if timeout := job.timeout(); timeout > 0 {
			interval = min(interval, time.Duration(timeout/5*float64(time.Second)))
		}
	}
	return max(interval, time.Millisecond)
}

func (s *Session) allJobs() []*Job {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.jobs))
}

func (s *Session) beatOnce() {
	jobs := s.allJobs()
	for _, job := range jobs {
		if !job.beat() {
			return
		}
	}
	if away, _ := s.link.Away(); len(jobs) == 0 && away > 0 {
		// There is nothing to keep alive, but the end of an outage has to be noticed.
		ctx, cancel := context.WithTimeout(s.link.Context(), control.CallTimeout)
		defer cancel()
		_, err := s.link.API().Status(ctx, &pecanv1.StatusRequest{})
		s.link.Observe(err)
	}
}

// verify asks for every job but one whether the dispatcher still knows it, unless that is being done already.
func (s *Session) verify(except *Job) {
	s.mu.Lock()
	if s.verifying || s.closed {
		s.mu.Unlock()
		return
	}
	s.verifying = true
	jobs := make([]*Job, 0, len(s.jobs))
	for job := range s.jobs {
		if job != except {
			jobs = append(jobs, job)
		}
	}
	s.mu.Unlock()
	for _, job := range jobs {
		if !job.beat() {
			break
		}
	}
	s.mu.Lock()
	s.verifying = false
	s.mu.Unlock()
}

// beat shows that the job is wanted; false when the dispatcher does not answer.
func (j *Job) beat() bool {
	if j.isLost() {
		return true
	}
	s := j.session
	ctx, cancel := context.WithTimeout(s.link.Context(), control.CallTimeout)
	defer cancel()
	began := wait.Now()
	// Numbered before it is looked at what there is: a pass that is asked for meanwhile is not one of which this heartbeat speaks.
	number := j.consumer.Heartbeats.Add(1)
	passes, opening := j.passes()
	answer, err := s.link.API().ClientHeartbeat(ctx, &pecanv1.ClientHeartbeatRequest{
		ClientId: j.consumer.ClientID, JobIds: []string{j.consumer.JobID}, Passes: passes, ClientTimeoutS: j.timeout(), Number: number, Opening: opening,
	})
	if s.link.Context().Err() != nil {
		return false
	}
	s.link.Observe(err)
	j.setTimeout(answer.GetClientTimeoutS())
	if err == nil {
		waits := !j.consumer.LeaseHolds()
		if j.consumer.RenewLease(began, j.timeout()); waits {
			for _, e := range j.epochs() {
				wait.Signal(e.Notify)
			}
		}
	}
	if reason.Is(err, reason.ClientUnknown) || reason.Is(err, reason.JobUnknown) {
		j.ClientUnknown(ctx, reason.From(err))
	}
	if err == nil && slices.ContainsFunc(j.epochs(), (*epoch.Epoch).WentBack) {
		j.Lose("it tells of leases that are older than those that this trainer has had, as after an old copy of its work directory was restored")
	}
	return err == nil || !control.IsOutage(err)
}

// sweep closes connections that nobody has read for a while.
func (s *Session) sweep() {
	if s.workers.Sweep(idleConnTime) {
		s.pool.Trim(keepIdle)
	}
}
