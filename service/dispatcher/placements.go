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
	defer func() {
		if p := recover(); p != nil {
			d.deps.Log.Error("deciding on workers failed", "job", asked.JobID, "panic", p, "stack", string(debug.Stack()))
			placed.Placement = &pecanv1.Placement{Remote: uint32(asked.Remote), Local: uint32(asked.Local), State: "start", Why: "no decision was possible; the dispatcher's log has details"}
		}
	}()
	request := placing.Request{
		JobID: asked.JobID, Options: asked.Options, Known: asked.Known, Remote: asked.Remote, Local: asked.Local, Window: asked.Window, Plan: asked.Plan, Now: asked.Now,
	}
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

// placementEvent is one line of the log of decisions.
type placementEvent struct {
	// AtS is in seconds of the dispatcher's clock.
	AtS       float64          `json:"at_s"`
	Job       string           `json:"job"`
	Objective string           `json:"objective"`
	Prices    autoscale.Prices `json:"prices"`
	Remote    int              `json:"remote"`
	Local     int              `json:"local"`
	ElementS  float64          `json:"element_s"`
	Wait      float64          `json:"wait"`
	// Busy is the mean busy share of the workers, ProducedS the elements that they produced per second.
	Busy      float64 `json:"busy"`
	ProducedS float64 `json:"produced_s"`
	// Load is the load of the most loaded host.
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
	event := placementEvent{
		AtS: r.Now.Seconds(), Job: r.JobID, Objective: r.Options.GetObjective(), Prices: r.Prices, Target: map[string]uint32{"remote": p.Remote, "local": p.Local},
		State: p.State, Why: p.Why, SearchCost: p.SearchCost, Candidates: p.Candidates,
	}
	if w := r.Window; w != nil {
		event.Remote, event.Local = w.Remote, w.Local
		event.ElementS, event.Wait = placing.Pace(w)
		event.Share, event.Disturbed = 1, w.Disturbed
		for _, worker := range w.Fleet {
			event.Share = min(event.Share, worker.Share)
			event.Busy += worker.Busy / float64(len(w.Fleet))
			event.ProducedS += worker.Elements
		}
		for _, host := range w.Hosts {
			event.Load = max(event.Load, host.GetLoad())
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
