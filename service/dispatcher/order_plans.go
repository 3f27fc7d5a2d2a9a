package dispatcher

import (
	"fmt"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/dispatcher/core/rollout"
	"github.com/pecan-ml/pecan/service/dispatcher/ordering"
	"github.com/pecan-ml/pecan/service/graph"
)

// planOrder plans an order in the background, because planning parses a graph. Graphs may be large, so one is planned at
// a time.
func (d *Dispatcher) planOrder(asked rollout.PlanRequest) {
	d.inBackground(backgroundWork{
		one: &d.planningMu, compute: func() any { return d.planOrderNow(asked) },
		afterPanic: rollout.Planned{Number: asked.Number, Why: "no order could be planned; the dispatcher's log has details"},
		failed:     "planning an order failed", about: []any{"fingerprint", asked.Fingerprint},
	})
}

func (d *Dispatcher) planOrderNow(asked rollout.PlanRequest) rollout.Planned {
	planned := rollout.Planned{Number: asked.Number}
	graph, err := d.deps.Store.Graph(asked.Fingerprint)
	if err != nil {
		planned.Retry = fmt.Sprintf("the graph could not be read: %v", d.storeError(err))
		return planned
	}
	proposal, err := d.deps.Graphs.Order(graph, asked.Plan, asked.Options, ordering.Measured{Nodes: asked.Nodes, Other: asked.Other})
	if err != nil {
		planned.Why = fmt.Sprintf("no order could be planned: %v", err)
		return planned
	}
	planned.Order, planned.Steps, planned.Why = proposal.Order, proposal.Steps, proposal.Why
	planned.PredictedBefore, planned.PredictedAfter = proposal.PredictedBefore, proposal.PredictedAfter
	d.planWider(graph, asked, &planned)
	return planned
}

// planWider adds the order of the next wider tolerance that would save much more. The search for it has failed harmlessly if a
// plan fails.
func (d *Dispatcher) planWider(graph []byte, asked rollout.PlanRequest, planned *rollout.Planned) {
	for tolerance := asked.Options.GetOrderTolerance() + 1; tolerance <= pecanv1.OrderTolerance_ORDER_TOLERANCE_ANY; tolerance++ {
		options := clone(asked.Options)
		options.OrderTolerance = tolerance
		wider, err := d.deps.Graphs.Order(graph, asked.Plan, options, ordering.Measured{Nodes: asked.Nodes, Other: asked.Other})
		if err != nil || len(wider.Order) == 0 || !(planned.PredictedAfter-wider.PredictedAfter >= rollout.WiderGain*planned.PredictedBefore) {
			continue
		}
		planned.Wider, planned.WiderTolerance = &rollout.Planned{
			Order: wider.Order, Steps: wider.Steps, Why: wider.Why, PredictedBefore: wider.PredictedBefore, PredictedAfter: wider.PredictedAfter,
		}, tolerance
		return
	}
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
		return nil, reason.New(reason.BadArgument, "open epoch at a position: the steps of job %q may not run in the order that the position names: %w. Resume with the order, the order_tolerance and the version of Pecan with which the state was saved, or begin without this state", req.JobId, err)
	}
	return order, nil
}

// Order implements Graphs.
func (p *graphPlanner) Order(data []byte, plan *pecanv1.Plan, options *pecanv1.JobOptions, measured ordering.Measured) (*ordering.Proposal, error) {
	g, err := graph.Parse(data, p.limits)
	if err != nil {
		return nil, err
	}
	return ordering.Propose(g, plan, options, measured)
}

// Named implements Graphs.
func (p *graphPlanner) Named(data []byte, plan *pecanv1.Plan, options *pecanv1.JobOptions, named *pecanv1.EpochOrder) ([]string, error) {
	g, err := graph.Parse(data, p.limits)
	if err != nil {
		return nil, err
	}
	return ordering.Named(g, plan, options, named)
}
