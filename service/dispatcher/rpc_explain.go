package dispatcher

import (
	"context"
	"slices"
	"strings"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/dispatcher/ordering"
)

// Explain implements the service. The steps are computed again, because they follow from the graph and the metrics. A decision
// keeps its prediction, because later metrics are of other work.
func (d *Dispatcher) Explain(_ context.Context, req *pecanv1.ExplainRequest) (*pecanv1.ExplainResponse, error) {
	if err := d.check.Required("job", req.Job); err != nil {
		return nil, err
	}
	d.mu.Lock()
	// Names and ids are in lower case.
	explained, err := d.core.Explain(strings.ToLower(req.Job))
	d.mu.Unlock()
	if err != nil {
		return nil, err
	}
	response := explained.Response
	d.addPrices(response.Fleet, explained.Options.GetPlacement())
	graph, err := d.deps.Store.Graph(explained.Fingerprint)
	if err != nil {
		return nil, d.storeError(err)
	}
	proposal, err := d.deps.Graphs.Order(graph, explained.Plan, explained.Options, ordering.Measured{Nodes: explained.Nodes, Other: explained.Other})
	if err != nil {
		return nil, reason.New(reason.Internal, "explain: the order of job %q cannot be explained: %w", req.Job, err)
	}
	response.Steps = proposal.Steps
	if response.Order == pecanv1.Order_ORDER_OFF {
		// Nobody asked for an order, so none is shown.
		for i, step := range response.Steps {
			step.Place, step.Reason = uint32(i), "the author's order"
		}
		return response, nil
	}
	current := len(explained.Order) == 0 || slices.Equal(explained.Order, proposal.Order)
	if current && response.PredictedBeforeS == 0 {
		// Nothing is decided yet, or an earlier version decided.
		response.PredictedBeforeS, response.PredictedAfterS = proposal.PredictedBefore, proposal.PredictedAfter
	}
	if current {
		return response, nil
	}
	// The decision came from other measurements, or from an earlier version of the policy.
	for _, step := range response.Steps {
		step.Place = uint32(max(0, slices.Index(explained.Order, step.Node)))
	}
	return response, nil
}
