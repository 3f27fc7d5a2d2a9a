package client

import (
	"context"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// localWorkers says what this process does about its local workers. The owner of the session starts and stops them.
type localWorkers struct{ running, most int }

// WantedLocalWorkers is the number of local workers that the dispatcher wants of this process.
type WantedLocalWorkers struct {
	// Jobs is the number of open jobs for which the dispatcher decides.
	Jobs int
	// Number is how many local workers it wants, -1 before it has decided. The job that wants most counts.
	Number int
	// Why is one sentence.
	Why string
}

// LocalWorkers reports how many local workers run and how many may run at most, and returns how many are wanted. The
// dispatcher hears of it with the next heartbeat.
func (s *Session) LocalWorkers(running, most int) WantedLocalWorkers {
	s.mu.Lock()
	s.local = localWorkers{running, most}
	s.mu.Unlock()
	wanted := WantedLocalWorkers{Number: -1}
	for _, job := range s.allJobs() {
		if !job.sizesLocal || job.isLost() {
			continue
		}
		wanted.Jobs++
		job.mu.Lock()
		if w := job.wantedLocal; w != nil && int(w.Number) > wanted.Number {
			wanted.Number, wanted.Why = int(w.Number), w.Why
		}
		job.mu.Unlock()
	}
	return wanted
}

// localReport returns what a heartbeat says of local workers; nil if the dispatcher does not decide on them.
func (j *Job) localReport() *pecanv1.LocalWorkers {
	if !j.sizesLocal {
		return nil
	}
	j.session.mu.Lock()
	defer j.session.mu.Unlock()
	return &pecanv1.LocalWorkers{Most: uint32(max(j.session.local.most, 0)), Running: uint32(max(j.session.local.running, 0))}
}

// wantLocal takes over what the dispatcher has decided; nil changes nothing.
func (j *Job) wantLocal(wanted *pecanv1.WantedLocalWorkers) {
	if wanted == nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.wantedLocal = wanted
}

// RequireLocalWorker fails if no worker is registered on this host.
func (s *Session) RequireLocalWorker(ctx context.Context) error {
	status, err := s.Status(ctx)
	if err != nil {
		return err
	}
	for _, worker := range status.GetWorkers() {
		if id := worker.GetAddress().GetHostId(); id != "" && id == s.config.HostID {
			return nil
		}
	}
	return reason.New(reason.NoWorkers, "target_workers=\"LOCAL\" needs a worker on this host, and none of the %d workers of %s is here: give local_workers=1, start pecan-worker here with --kind local, or give target_workers=\"ANY\"",
		len(status.GetWorkers()), s.config.Target)
}
