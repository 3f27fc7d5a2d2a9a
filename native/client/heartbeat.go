package client

import (
	"context"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// beat shows the dispatcher that the session and its jobs are wanted, and sweeps what is not used any more.
func (s *Session) beat() {
	for {
		timer := time.NewTimer(s.beatInterval())
		select {
		case <-s.ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		s.sweep()
		s.beatOnce()
	}
}

// beatInterval is the configured one, or less when the dispatcher forgets sooner.
func (s *Session) beatInterval() time.Duration {
	interval := s.config.Heartbeat
	s.mu.Lock()
	defer s.mu.Unlock()
	for job := range s.jobs {
		if job.clientTimeout > 0 {
			interval = min(interval, job.clientTimeout/5)
		}
	}
	return max(interval, time.Millisecond)
}

func (s *Session) beatOnce() {
	s.mu.Lock()
	jobs := make([]*Job, 0, len(s.jobs))
	for job := range s.jobs {
		jobs = append(jobs, job)
	}
	s.mu.Unlock()
	request := &pecanv1.ClientHeartbeatRequest{ClientId: s.clientID}
	for _, job := range jobs {
		request.JobIds = append(request.JobIds, job.id)
		request.Passes = append(request.Passes, job.passes()...)
	}
	ctx, cancel := context.WithTimeout(s.ctx, callTimeout)
	defer cancel()
	_, err := s.api.ClientHeartbeat(ctx, request)
	if s.ctx.Err() != nil {
		return
	}
	s.observe(err)
	if reason.Is(err, reason.ClientUnknown) {
		for _, job := range jobs {
			job.reattach(ctx)
		}
	}
}

// sweep closes connections that nobody has read for a while.
func (s *Session) sweep() {
	s.mu.Lock()
	var idle []*conn
	for _, c := range s.conns {
		if c.idleFor() > idleConnTime {
			idle = append(idle, c)
		}
	}
	s.mu.Unlock()
	for _, c := range idle {
		c.fail(reason.New(reason.Closed, "nobody reads from this worker any more"))
	}
}
