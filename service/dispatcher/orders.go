package dispatcher

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/dispatcher/core/rollout"
)

// planOrder plans an order of steps beside everything else, and tells the core what came of it: it parses a graph, for which the store
// must not wait. What is under way when the dispatcher stops is asked for again by the next one.
func (d *Dispatcher) planOrder(asked rollout.PlanRequest) {
	d.planning.Add(1)
	go func() {
		defer d.planning.Done()
		planned := d.orderFor(asked)
		if d.pass(context.Background()) {
			d.decide(planned)
		}
	}()
}

// orderFor answers the core's question, one after the other: a graph may be large. A panic is an answer, too: the registered order is
// right, and no reason to end.
func (d *Dispatcher) orderFor(asked rollout.PlanRequest) (planned rollout.Planned) {
	d.planMu.Lock()
	defer d.planMu.Unlock()
	planned.Number = asked.Number
	defer func() {
		if p := recover(); p != nil {
			d.deps.Log.Error("planning an order failed", "fingerprint", asked.Fingerprint, "panic", p, "stack", string(debug.Stack()))
			planned = rollout.Planned{Number: asked.Number, Why: "no order could be planned; the dispatcher's log says more"}
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

// orderNamed finds the order of the steps in the epoch of a position, where the core has not decided on it. One graph at a time is looked
// at, as for plans.
func (d *Dispatcher) orderNamed(req *pecanv1.OpenEpochRequest) ([]string, error) {
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
	d.planMu.Lock()
	defer d.planMu.Unlock()
	order, err := d.deps.Graphs.Named(graph, asked.Plan, asked.Options, asked.Order)
	if err != nil {
		return nil, reason.New(reason.BadArgument, "open epoch at a position: the steps of job %q may not run in the order that it names: %w", req.JobId, err)
	}
	return order, nil
}

// Explain implements the service. What the steps do and what is predicted of them is found anew: it follows from the graph and the
// figures.
func (d *Dispatcher) Explain(_ context.Context, req *pecanv1.ExplainRequest) (*pecanv1.ExplainResponse, error) {
	if err := d.check.required("job", req.Job); err != nil {
		return nil, err
	}
	d.mu.Lock()
	// Names and ids are in small letters.
	explained, err := d.core.Explain(strings.ToLower(req.Job))
	d.mu.Unlock()
	if err != nil {
		return nil, err
	}
	response := explained.Response
	graph, err := d.deps.Store.Graph(explained.Fingerprint)
	if err != nil {
		return nil, d.storeError(err)
	}
	proposal, err := d.deps.Graphs.Order(graph, explained.Plan, explained.Options, explained.Nodes)
	if err != nil {
		return nil, reason.New(reason.Internal, "explain: the order of job %q cannot be explained: %w", req.Job, err)
	}
	response.Steps = proposal.Steps
	if response.Order == pecanv1.Order_ORDER_OFF {
		// What could be planned is nobody's order.
		for i, step := range response.Steps {
			step.Place, step.Reason = uint32(i), "its author's order"
		}
		return response, nil
	}
	if len(explained.Order) == 0 || slices.Equal(explained.Order, proposal.Order) {
		response.PredictedBeforeS, response.PredictedAfterS = proposal.PredictedBefore, proposal.PredictedAfter
		return response, nil
	}
	// Another version of the policy decided.
	for _, step := range response.Steps {
		step.Place = uint32(max(0, slices.Index(explained.Order, step.Node)))
	}
	return response, nil
}
