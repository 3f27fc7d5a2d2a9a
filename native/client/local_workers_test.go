package client

import (
	"testing"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// The dispatcher hears where a trainer is before the job has an epoch, and of its local workers with each heartbeat.
func TestHeartbeatsCarryLocalWorkers(t *testing.T) {
	d := startDispatcher(t)
	job := open(t, d, func(c *Config) { c.HostID, c.TrainerID = "here", "t1" })
	first := look(d, func() *pecanv1.ClientHeartbeatRequest { return d.heartbeats[0] })
	if first.GetHostId() != "here" || first.GetTrainerId() != "t1" || first.GetLocalWorkers() != nil {
		t.Errorf("the first heartbeat is %v", first)
	}
	s := job.session
	if w := s.LocalWorkers(0, 4); w.Jobs != 0 || w.Number != -1 {
		t.Errorf("without a job that the dispatcher decides for, %+v is wanted", w)
	}
	sized, err := s.CreateJob(t.Context(), JobSpec{DatasetID: "dataset", LocalWorkers: true})
	if err != nil {
		t.Fatal(err)
	}
	if w := s.LocalWorkers(1, 4); w.Jobs != 1 || w.Number != -1 {
		t.Errorf("before the dispatcher has decided, %+v is wanted", w)
	}
	d.update(func() { d.wanted = &pecanv1.WantedLocalWorkers{Number: 2, Why: "probe"} })
	eventually(t, "two local workers are wanted", func() bool { return s.LocalWorkers(1, 4) == WantedLocalWorkers{Jobs: 1, Number: 2, Why: "probe"} })
	last := look(d, func() (newest *pecanv1.LocalWorkers) {
		for _, heartbeat := range d.heartbeats {
			if heartbeat.GetLocalWorkers() != nil {
				newest = heartbeat.GetLocalWorkers()
			}
		}
		return newest
	})
	if last.GetMost() != 4 || last.GetRunning() != 1 {
		t.Errorf("the heartbeat has %v", last)
	}
	// A dispatcher that does not decide, as after a restart, changes nothing.
	d.update(func() { d.wanted = nil })
	heartbeats := look(d, func() int { return len(d.heartbeats) })
	eventually(t, "more heartbeats", func() bool { return look(d, func() int { return len(d.heartbeats) }) > heartbeats+4 })
	if w := s.LocalWorkers(2, 4); w.Number != 2 {
		t.Errorf("%+v is wanted", w)
	}
	if err := sized.Close(); err != nil {
		t.Fatal(err)
	}
	if w := s.LocalWorkers(2, 4); w.Jobs != 0 {
		t.Errorf("after the end of the job, %+v is wanted", w)
	}
}
