package dispatcher

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime/debug"

	"github.com/pecan-ml/pecan/policies/autoscale"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core"
	"github.com/pecan-ml/pecan/service/dispatcher/placing"
)

// place decides on the workers of a job in the background, because a decision compares many configurations. If the
// dispatcher stops meanwhile, the next one asks again.
func (d *Dispatcher) place(asked core.PlacementRequest) {
	d.planning.Add(1)
	go func() {
		defer d.planning.Done()
		placed := d.placeNow(asked)
		if d.waitForDisk(context.Background()) {
			d.decide(placed)
		}
	}()
}

// placeNow decides on one job at a time. A panic leaves the workers as they are.
func (d *Dispatcher) placeNow(asked core.PlacementRequest) (placed core.Placed) {
	d.placingMu.Lock()
	defer d.placingMu.Unlock()
	placed = core.Placed{Number: asked.Number, JobID: asked.JobID}
	request := placing.Request{
		JobID: asked.JobID, Options: asked.Options, Known: asked.Known, Remote: asked.Remote, Registered: asked.Registered, Local: asked.Local,
		RegisteredLocal: asked.RegisteredLocal, Window: asked.Window, Plan: asked.Plan, Now: asked.Now,
	}
	defer func() {
		if p := recover(); p != nil {
			d.deps.Log.Error("deciding on workers failed", "job", asked.JobID, "panic", p, "stack", string(debug.Stack()))
			placed.Placement = placing.Unchanged(request, "no decision was possible; the dispatcher's log has details")
		}
	}()
	note := ""
	if d.deps.Prices != nil {
		var err error
		if request.Prices, err = d.deps.Prices(asked.Options.GetTrainerType()); err != nil {
			note = fmt.Sprintf("; without prices: %v", err)
		}
	}
	placed.Placement, placed.Known = d.placer.Decide(request)
	placed.Placement.Why += note
	d.logPlacement(request, placed.Placement)
	return placed
}

// addPrices adds the prices of a job with some options to its fleet.
func (d *Dispatcher) addPrices(fleet *pecanv1.JobFleet, options *pecanv1.PlacementOptions) {
	if d.deps.Prices == nil {
		return
	}
	p, err := d.deps.Prices(options.GetTrainerType())
	if err != nil {
		fleet.PricesProblem = err.Error()
		return
	}
	fleet.Prices = &pecanv1.JobPrices{
		Currency: d.deps.Currency, Trainer: p.Trainer, Remote: p.Remote, Local: p.Local,
		Job: p.Trainer*float64(fleet.Trainers) + p.Remote*float64(fleet.Remote) + p.Local*float64(fleet.Local),
	}
}

// placementEvent is one line of the log of decisions. Its measurements are those that the policy decided from.
type placementEvent struct {
	// AtS is in seconds of the dispatcher's clock.
	AtS       float64          `json:"at_s"`
	Job       string           `json:"job"`
	Objective string           `json:"objective"`
	Budget    float64          `json:"budget"`
	Prices    autoscale.Prices `json:"prices"`
	Limits    autoscale.Limits `json:"limits"`
	// Plan changes with what determines the cost of an element.
	Plan uint64 `json:"plan"`
	// Seconds is the length of the measurement window, Trainers the number of trainers that read; 0 without a window.
	Seconds  float64 `json:"seconds"`
	Trainers int     `json:"trainers"`
	Remote   int     `json:"remote"`
	Local    int     `json:"local"`
	ElementS float64 `json:"element_s"`
	Wait     float64 `json:"wait"`
	// Busy is the mean busy share of the workers, ProducedS the elements that they produced per second. LocalBusy and
	// LocalProducedS are those of the local workers alone.
	Busy           float64 `json:"busy"`
	ProducedS      float64 `json:"produced_s"`
	LocalBusy      float64 `json:"local_busy"`
	LocalProducedS float64 `json:"local_produced_s"`
	// Load is the load of the most loaded host of a trainer.
	Load float64 `json:"load"`
	// Share is the least share of a worker's elements that were the job's. Disturbed: other jobs changed it, so the window does
	// not count.
	Share      float64                       `json:"share"`
	Disturbed  bool                          `json:"disturbed"`
	Target     map[string]uint32             `json:"target"`
	State      string                        `json:"state"`
	Why        string                        `json:"why"`
	SearchCost float64                       `json:"search_cost"`
	Candidates []*pecanv1.PlacementCandidate `json:"candidates"`
}

// logPlacement writes a decision to the log of decisions.
func (d *Dispatcher) logPlacement(r placing.Request, p *pecanv1.Placement) {
	if d.deps.Decisions == nil {
		return
	}
	goal, w := d.placer.Seen(r)
	event := placementEvent{
		AtS: r.Now.Seconds(), Job: r.JobID, Objective: string(goal.Objective), Budget: goal.Budget, Prices: goal.Prices, Limits: goal.Limits,
		Plan: w.Plan, Seconds: w.Seconds, Trainers: len(w.Consumers), Remote: w.Workers.Remote, Local: w.Workers.Local, ElementS: w.ElementTime(),
		Wait: w.Wait(), Target: map[string]uint32{"remote": p.Remote, "local": p.Local},
		State: p.State, Why: p.Why, SearchCost: p.SearchCost, Candidates: p.Candidates,
	}
	remote, remoteBusy, remotes := w.Produced(false)
	local, localBusy, locals := w.Produced(true)
	event.LocalBusy, event.LocalProducedS, event.ProducedS = localBusy, local, remote+local
	if all := float64(remotes + locals); all > 0 {
		event.Busy = (remoteBusy*float64(remotes) + localBusy*float64(locals)) / all
	}
	for _, host := range w.Hosts {
		for _, c := range w.Consumers {
			if c.Host == host.ID {
				event.Load = max(event.Load, host.Load)
			}
		}
	}
	if w := r.Window; w != nil {
		event.Share, event.Disturbed = 1, w.Disturbed
		for _, worker := range w.Fleet {
			event.Share = min(event.Share, worker.Share)
		}
	}
	line, err := json.Marshal(event)
	if err == nil {
		_, err = d.deps.Decisions.Write(append(line, '\n'))
	}
	if err != nil {
		d.deps.Log.Warn("the log of decisions could not be written", "error", err)
	}
}
