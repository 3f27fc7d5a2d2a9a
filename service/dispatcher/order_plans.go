package dispatcher

import (
	"context"
	"fmt"
	"runtime/debug"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/dispatcher/core/rollout"
)

// planOrder plans an order in the background and passes the result to the core. Planning parses a graph, and the
// store must not wait for that. If the dispatcher stops meanwhile, the next one asks again.
func (d *Dispatcher) planOrder(asked rollout.PlanRequest) {
	d.planning.Add(1)
	go func() {
		defer d.planning.Done()
		planned := d.planOrderNow(asked)
		if d.waitForDisk(context.Background()) {
			d.decide(planned)
		}
	}()
}

// planOrderNow answers requests one at a time, because graphs may be large. A panic is an answer too: the
// registered order stays right, so the dispatcher need not end.
func (d *Dispatcher) planOrderNow(asked rollout.PlanRequest) (planned rollout.Planned) {
	d.planningMu.Lock()
	defer d.planningMu.Unlock()
	planned.Number = asked.Number
	defer func() {
		if p := recover(); p != nil {
			d.deps.Log.Error("planning an order failed", "fingerprint", asked.Fingerprint, "panic", p, "stack", string(debug.Stack()))
			planned = rollout.Planned{Number: asked.Number, Why: "no order could be planned; the dispatcher's log has details"}
		}
	}()
	graph, err := d.deps.Store.Graph(asked.Fingerprint)
	if err != nil {
		planned.Retry = fmt.Sprintf("the graph could not be read: %v", d.storeError(err))
		return planned
	}
	proposal, err := d.deps.Graphs.Order(graph, asked.Plan, asked.Options, asked.Nodes)
	if err != nil {
		planned.Why = fmt.Sprintf("no order could be planned: %v", err)
		return planned
	}
	planned.Order, planned.Steps, planned.Why = proposal.Order, proposal.Steps, proposal.Why
	planned.PredictedBefore, planned.PredictedAfter = proposal.PredictedBefore, proposal.PredictedAfter
	return planned
}

// orderOfPosition finds the order that a position names, if the core has not decided on it. It reads one graph at
// a time.
func (d *Dispatcher) orderOfPosition(req *pecanv1.OpenEpochRequest) ([]string, error) {
	d.mu.Lock()
	asked := d.core.OrderToFind(req)
	d.mu.Unlock()
	if asked == nil {
		return nil, nil
	}
	graph, err := d.deps.Store.Graph(asked.Fingerprint)
	if err != nil {
		return nil, d.storeError(err)
	}
	d.planningMu.Lock()
	defer d.planningMu.Unlock()
	order, err := d.deps.Graphs.Named(graph, asked.Plan, asked.Options, asked.Order)
	if err != nil {
		return nil, reason.New(reason.BadArgument, "open epoch at a position: the steps of job %q may not run in the named order: %w", req.JobId, err)
	}
	return order, nil
}
