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

// urgentAfter is how long a trainer has waited when the session sends a heartbeat before the next one is due.
const urgentAfter = 50 * time.Millisecond

// keepIdle is how much memory a session without readers keeps.
const keepIdle = 16 << 20

// sendHeartbeats sends heartbeats until the session ends, and closes unused connections.
func (s *Session) sendHeartbeats() {
	for {
		timer := time.NewTimer(s.heartbeatInterval())
		select {
		case <-s.link.Context().Done():
			timer.Stop()
			return
		case <-timer.C:
		case <-s.link.HeartbeatRequested():
			timer.Stop()
			// A wait that ends within this time is no reason for a heartbeat.
			if !wait.Sleep(s.link.Context(), urgentAfter) {
				return
			}
		}
		s.sweep()
		s.heartbeatOnce()
	}
}

// heartbeatInterval returns the configured interval, or less when the dispatcher's client timeout requires it.
func (s *Session) heartbeatInterval() time.Duration {
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

func (s *Session) heartbeatOnce() {
	jobs := s.allJobs()
	for _, job := range jobs {
		if !job.sendHeartbeat() {
			return
		}
	}
	if away, _ := s.link.Away(); len(jobs) == 0 && away > 0 {
		// No job needs a heartbeat, but the session has to notice the end of an outage.
		ctx, cancel := context.WithTimeout(s.link.Context(), control.CallTimeout)
		defer cancel()
		_, err := s.link.API().Status(ctx, &pecanv1.StatusRequest{})
		s.link.Observe(err)
	}
}

// verify sends heartbeats of all jobs except one, to learn whether the dispatcher still knows them. It does
// nothing while another verify runs.
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
		if !job.sendHeartbeat() {
			break
		}
	}
	s.mu.Lock()
	s.verifying = false
	s.mu.Unlock()
}

// sendHeartbeat sends one heartbeat of the job. It returns false if the dispatcher does not answer.
func (j *Job) sendHeartbeat() bool {
	if j.isLost() {
		return true
	}
	s := j.session
	ctx, cancel := context.WithTimeout(s.link.Context(), control.CallTimeout)
	defer cancel()
	began := wait.Now()
	// The number is drawn before the passes are listed. A pass that is requested in between is then not taken
	// for a pass that this heartbeat covers.
	number := j.consumer.Heartbeats.Add(1)
	passes, opening := j.passes()
	answer, err := s.link.API().ClientHeartbeat(ctx, &pecanv1.ClientHeartbeatRequest{
		ClientId: j.consumer.ClientID, JobIds: []string{j.consumer.JobID}, Passes: passes, ClientTimeoutS: j.timeout(), Number: number, Opening: opening,
		HostId: s.config.HostID, Host: s.host.Report(), SubWindows: j.pace.Report(time.Now()),
		TrainerId: s.config.TrainerID, LocalWorkers: j.localReport(),
	})
	if s.link.Context().Err() != nil {
		return false
	}
	s.link.Observe(err)
	j.setTimeout(answer.GetClientTimeoutS())
	j.wantLocal(answer.GetLocalWorkers())
	j.notePlacement(ctx, number, answer.GetPlacement())
	j.noteAdvice(ctx, answer.GetOrderAdvice())
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
		j.Lose("it reports leases that are older than those of this trainer, as after an old copy of its work directory was restored")
	}
	return err == nil || !control.IsOutage(err)
}

// sweep closes connections that have had no reader for a while.
func (s *Session) sweep() {
	if s.workers.Sweep(idleConnTime) {
		s.pool.Trim(keepIdle)
	}
}
