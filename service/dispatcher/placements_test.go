package dispatcher_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pecan-ml/pecan/policies/autoscale"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher"
	"github.com/pecan-ml/pecan/service/dispatcher/placing"
)

// decisions is a log that tests read while it is written.
type decisions struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (d *decisions) Write(p []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.text.Write(p)
}

func (d *decisions) first() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	line, _, _ := strings.Cut(d.text.String(), "\n")
	return line
}

func TestAJobShowsItsWorkersAndTheirPrices(t *testing.T) {
	log := &decisions{}
	s := startService(t, serviceOptions{deps: func(d *dispatcher.Deps) {
		d.Decisions = log
		d.Prices = func(trainer string) (autoscale.Prices, string, error) {
			if trainer != "big" {
				return autoscale.Prices{}, "", fmt.Errorf("the table has no trainers.%s", trainer)
			}
			return autoscale.Prices{Trainer: 5, Remote: 0.5, Local: 0.1}, "EUR", nil
		}
	}})
	w := s.worker(workerHello("w1", 4))
	dataset := s.register(&pecanv1.Plan{NumStreams: 2})
	placement := &pecanv1.PlacementOptions{Objective: "cost", TrainerType: "big", MaxRemote: 3}
	sharded := func(p *pecanv1.PlacementOptions) *pecanv1.JobOptions {
		return &pecanv1.JobOptions{Sharding: pecanv1.Sharding_SHARDING_DYNAMIC, Placement: p}
	}
	job := s.job("c1", "placed", dataset, sharded(placement))
	if e := s.explain(job.JobId); e.Placement.GetState() != "start" || e.PlacementOptions.GetMaxRemote() != 3 || e.Fleet.GetPrices().GetJob() != 0 {
		t.Errorf("before anybody reads: %v", e)
	}
	s.open("c1", job.JobId, 0)
	var status *pecanv1.StatusResponse
	for end := time.Now().Add(wait); status == nil || status.Jobs[0].Placement == nil; {
		if time.Now().After(end) {
			t.Fatalf("no decision: %v", status)
		}
		s.advance(500*time.Millisecond, w)
		var err error
		if status, err = s.client.Status(s.ctx(), &pecanv1.StatusRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, fleet := range []*pecanv1.JobFleet{status.Jobs[0].Fleet, s.explain("placed").Fleet} {
		p := fleet.GetPrices()
		if fleet.Remote != 1 || fleet.Local != 0 || p.GetCurrency() != "EUR" || p.GetTrainer() != 5 || p.GetLocal() != 0.1 || p.GetJob() != 0.5 {
			t.Errorf("the fleet is %v", fleet)
		}
	}
	if e := s.explain("placed"); e.Placement.GetRemote() != 1 || e.PlacementOptions.GetObjective() != "cost" {
		t.Errorf("the placement is %v of %v", e.Placement, e.PlacementOptions)
	}
	answer, err := s.client.ClientHeartbeat(s.ctx(), &pecanv1.ClientHeartbeatRequest{ClientId: "c1", JobIds: []string{job.JobId}})
	if err != nil || answer.GetPlacement().GetRemote() != 1 || answer.GetPlacement().GetWhy() == "" {
		t.Errorf("the trainer hears %v %v", answer, err)
	}
	var event placing.Event
	if err := json.Unmarshal([]byte(log.first()), &event); err != nil || event.Job != job.JobId || event.Objective != "cost" || event.Prices.Trainer != 5 || event.Limits.Max.Remote != 1 || event.Target.Remote != 1 {
		t.Errorf("the log of decisions begins with %q: %v", log.first(), err)
	}
	other := s.job("c2", "unpriced", dataset, sharded(nil))
	if e := s.explain(other.JobId); e.PlacementOptions != nil || e.Placement != nil || e.Fleet.GetPricesProblem() != "the table has no trainers." {
		t.Errorf("a job without an objective: %v", e)
	}
}

// broken is a log of decisions whose writes panic.
type broken struct{}

func (broken) Write([]byte) (int, error) { panic("no paper") }

func TestAPanicLeavesTheWorkersOfAJobAsTheyAre(t *testing.T) {
	s := startService(t, serviceOptions{deps: func(d *dispatcher.Deps) { d.Decisions = broken{} }})
	w := s.worker(workerHello("w1", 4))
	job := s.job("c1", "placed", s.register(&pecanv1.Plan{NumStreams: 2}), &pecanv1.JobOptions{
		Sharding: pecanv1.Sharding_SHARDING_DYNAMIC, Placement: &pecanv1.PlacementOptions{Objective: "time"},
	})
	s.open("c1", job.JobId, 0)
	placed := s.explain(job.JobId).Placement
	for end := time.Now().Add(wait); placed.GetWhy() != "no decision was possible; the dispatcher's log has details"; placed = s.explain(job.JobId).Placement {
		if time.Now().After(end) {
			t.Fatalf("the panic has another answer: %v", placed)
		}
		s.advance(500*time.Millisecond, w)
	}
	if placed.Remote != 1 || placed.Local != 0 {
		t.Errorf("%v", placed)
	}
}
