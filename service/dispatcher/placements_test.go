package dispatcher_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pecan-ml/pecan/policies/autoscale"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher"
	"github.com/pecan-ml/pecan/service/dispatcher/core/measure"
	"github.com/pecan-ml/pecan/service/dispatcher/placing"
	"github.com/pecan-ml/pecan/service/prices"
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

// windowOf is what a job shows whose trainer takes an element in 0.07 s or more, and whose workers give 10 per second each.
func windowOf(workers int, end time.Duration) *measure.Window {
	capacity := 10 * float64(workers)
	each := max(0.07, 1/capacity)
	w := &measure.Window{End: end, Length: 3 * time.Second, Remote: workers}
	trainer := measure.Trainer{Host: "trainer"}
	for n := range 4 {
		begin := end - time.Duration(4-n)*700*time.Millisecond
		sub := measure.SubWindow{Begin: begin, End: begin + 700*time.Millisecond, Elements: uint64(0.7/each + 0.5)}
		sub.Waited = 0.7 - 0.07*float64(sub.Elements)
		trainer.Subs = append(trainer.Subs, sub)
	}
	w.Trainers = append(w.Trainers, trainer)
	for range workers {
		w.Fleet = append(w.Fleet, measure.Serving{Host: "other", Cores: 1, Rates: measure.Rates{Busy: 1 / each / capacity, Elements: 1 / each / float64(workers), Share: 1}})
	}
	return w
}

// priced starts a service with a table of prices. write changes the price of a worker in it; that of the trainer is 1 per hour.
func priced(t *testing.T) (s *service, write func(worker string)) {
	path := filepath.Join(t.TempDir(), "prices.yaml")
	write = func(worker string) {
		table := "currency: EUR\ntrainers: {host: {per_hour: 1.0}}\nworkers: {small: {per_hour: " + worker + "}}\n"
		if err := os.WriteFile(path, []byte(table), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("0.1")
	file, err := prices.Open(path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return startService(t, serviceOptions{deps: func(d *dispatcher.Deps) {
		d.Prices = func(trainer string) (autoscale.Prices, string, error) { return file.Of(trainer, "") }
	}}), write
}

// decide lets a service decide from windows of a job with the workers that are wanted, and returns the reasons.
func decide(s *service, r *placing.Request, placed **pecanv1.Placement, windows int) (whys []string) {
	for range windows {
		r.Now += 4 * time.Second
		r.Window = windowOf(int((*placed).Remote), r.Now)
		*placed = s.d.PlaceNow(*r)
		whys = append(whys, (*placed).Why)
	}
	return whys
}

func TestAChangedTableOfPricesStartsANewSearch(t *testing.T) {
	s, write := priced(t)
	r := placing.Request{JobID: "j", Options: &pecanv1.PlacementOptions{Objective: "cost"}, Remote: 4, Registered: 4}
	placed := s.d.PlaceNow(r)
	// With the trainer at 1 per hour, an element costs 0.11 with one worker and 0.084 with two.
	if whys := decide(s, &r, &placed, 10); placed.Remote != 2 || !placed.Converged {
		t.Fatalf("ends at %d workers: %q", placed.Remote, whys)
	}
	// Now it costs 0.3 with one and 0.35 with two.
	write("2.00")
	if whys := decide(s, &r, &placed, 10); placed.Remote != 1 || !placed.Converged || !strings.Contains(whys[0], "the goal changed") {
		t.Errorf("after the change, ends at %d workers: %q", placed.Remote, whys)
	}
}

// Two workers are the fastest. With the trainer, they cost 1.2 per hour, and one costs 1.1.
func TestABudgetBoundsTheWorkersOfAJob(t *testing.T) {
	s, write := priced(t)
	for budget, want := range map[float64]uint32{1.25: 2, 1.15: 1} {
		r := placing.Request{JobID: fmt.Sprint(budget), Options: &pecanv1.PlacementOptions{Objective: "budget", BudgetPerHour: budget}, Remote: 4, Registered: 4}
		placed := s.d.PlaceNow(r)
		if whys := decide(s, &r, &placed, 10); placed.Remote != want || !placed.Converged {
			t.Errorf("%v per hour: ends at %d workers, want %d: %q", budget, placed.Remote, want, whys)
		}
		// Workers become cheap, and expensive again.
		for _, price := range []string{"0.01", "0.1"} {
			write(price)
			whys := decide(s, &r, &placed, 10)
			if most := map[string]uint32{"0.01": 2, "0.1": want}[price]; placed.Remote != most || !placed.Converged {
				t.Errorf("%v per hour, workers at %s: ends at %d workers, want %d: %q", budget, price, placed.Remote, most, whys)
			}
		}
	}
	unpriced := startService(t, serviceOptions{})
	placed := unpriced.d.PlaceNow(placing.Request{JobID: "j", Options: &pecanv1.PlacementOptions{Objective: "budget", BudgetPerHour: 2}, Remote: 4, Registered: 3})
	if placed.Remote != 3 || !strings.Contains(placed.Why, "--prices") {
		t.Errorf("without prices: %v", placed)
	}
}
