package dispatcher

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime/debug"

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

// logPlacement writes a decision to the log of decisions.
func (d *Dispatcher) logPlacement(r placing.Request, p *pecanv1.Placement) {
	if d.deps.Decisions == nil {
		return
	}
	line, err := json.Marshal(d.placer.Event(r, p))
	if err == nil {
		_, err = d.deps.Decisions.Write(append(line, '\n'))
	}
	if err != nil {
		d.deps.Log.Warn("the log of decisions could not be written", "error", err)
	}
}
