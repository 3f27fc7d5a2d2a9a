package dispatcher

import (
	"encoding/json"
	"fmt"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/placement"
	"github.com/pecan-ml/pecan/service/dispatcher/placing"
)

// place decides on the workers of a job in the background, because a decision compares many configurations.
func (d *Dispatcher) place(asked placement.Request) {
	request := placing.Request{
		JobID: asked.JobID, Options: asked.Options, Known: asked.Known, Remote: asked.Remote, Registered: asked.Registered, Local: asked.Local,
		RegisteredLocal: asked.RegisteredLocal, Running: asked.Running, Window: asked.Window, Plan: asked.Plan, Left: asked.Left, Predicted: asked.Predicted,
		Now: asked.Now,
	}
	placed := placement.Placed{Number: asked.Number, JobID: asked.JobID}
	unchanged := placed
	unchanged.Placement = placing.Unchanged(request, "no decision was possible; the dispatcher's log has details")
	d.inBackground(backgroundWork{
		one: &d.placingMu, compute: func() any { return d.placeNow(request, placed) },
		afterPanic: unchanged,
		failed:     "deciding on workers failed", about: []any{"job", asked.JobID},
	})
}

// placeNow completes the answer to a request.
func (d *Dispatcher) placeNow(request placing.Request, placed placement.Placed) placement.Placed {
	note := ""
	if d.deps.Prices != nil {
		var err error
		if request.Prices, _, err = d.deps.Prices(request.Options.GetTrainerType()); err != nil {
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
	p, currency, err := d.deps.Prices(options.GetTrainerType())
	if err != nil {
		fleet.PricesProblem = err.Error()
		return
	}
	fleet.Prices = &pecanv1.JobPrices{
		Currency: currency, Trainer: p.Trainer, Remote: p.Remote, Local: p.Local,
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
