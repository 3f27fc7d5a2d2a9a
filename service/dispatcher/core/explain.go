package core

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// Explained is what the core knows of the order of a job's steps.
type Explained struct {
	// Response has all but the steps and what is predicted of them, which follow from the graph.
	Response *pecanv1.ExplainResponse
	// Fingerprint, Plan, Options and Nodes are what an order is planned from; Nodes has figures of steps in the registered order.
	Fingerprint string
	Plan        *pecanv1.Plan
	Options     *pecanv1.JobOptions
	Nodes       []*pecanv1.NodeMetrics
	// Order is the one that was decided, or is tried, also where it was rolled back; empty: the registered one.
	Order []string
}

// Explain says in which order the steps of a job run, and why. The job is given by its id or its name.
func (c *Core) Explain(name string) (*Explained, error) {
	job := c.state.jobs[name]
	if job == nil {
		job = c.state.jobs[c.state.named[name]]
	}
	if job == nil {
		return nil, reason.New(reason.JobUnknown, "explain: there is no job with the id or name %q", name)
	}
	key, off := c.state.orderAsked(job)
	state, why := c.orderState(job)
	e := &Explained{
		Response:    &pecanv1.ExplainResponse{JobId: job.JobId, Order: key.policy, Tolerance: key.tolerance, State: state, Why: why},
		Fingerprint: c.state.datasets[job.DatasetId].GetFingerprint(), Plan: job.Plan, Options: proto.Clone(job.Options).(*pecanv1.JobOptions),
		Nodes: c.measured([]*pecanv1.StoredJob{job}),
	}
	if off != "" {
		e.Response.Order, e.Response.Tolerance = pecanv1.Order_ORDER_OFF, pecanv1.OrderTolerance_ORDER_TOLERANCE_UNSPECIFIED
		return e, nil
	}
	e.Options.OrderTolerance = key.tolerance
	kept := c.state.profiles[key.fingerprint].GetNodes()
	if o := c.orderings[key]; o != nil && o.planned != nil {
		e.Order, e.Nodes = o.planned.Order, o.figures
	} else if elements, cpu := busiest(e.Nodes); kept != nil && (elements < leastElements || cpu < leastCPU) {
		e.Nodes = kept
	}
	if decided := c.state.orders[key]; decided != nil {
		e.Order, e.Response.Trial, e.Response.Production = decided.Order, decided.Trial, decided.Production
		if kept != nil {
			// The job's own may be of the other order.
			e.Nodes = kept
		}
	}
	return e, nil
}

// stateOf is the word for a decision.
func stateOf(decided *pecanv1.StoredOrder) string {
	switch {
	case decided.Stage == pecanv1.OrderStage_ORDER_STAGE_PILOTED:
		return "piloted"
	case decided.Stage == pecanv1.OrderStage_ORDER_STAGE_ROLLED_BACK:
		return "rolled back"
	case len(decided.Order) > 0:
		return "adopted"
	case decided.Trial != nil:
		return "refused"
	}
	return "kept"
}

// orderState is the word for how far a job is on its way to another order of its steps, and why.
func (c *Core) orderState(job *pecanv1.StoredJob) (state, why string) {
	key, off := c.state.orderAsked(job)
	if off != "" {
		return "off", off
	}
	if decided := c.state.orders[key]; decided != nil {
		why = strings.TrimSuffix(decided.Why, ".")
		if decided.Stage == pecanv1.OrderStage_ORDER_STAGE_PILOTED {
			why += c.pilotWords(decided)
		}
		return stateOf(decided), why + otherEpochs(job, decided)
	}
	switch o := c.orderings[key]; {
	case job.Error != nil:
		return "off", "the job has failed"
	case o == nil:
		return "measuring", "nothing is known yet of what its steps cost"
	case o.planned == nil:
		return "measuring", o.waits
	case o.losses > 0:
		return "proposed", fmt.Sprintf("%s; %s; trials lost so far: %d, the last time: %s", strings.TrimSuffix(o.planned.Why, "."), o.waits, o.losses, o.lastLoss)
	default:
		return "proposed", strings.TrimSuffix(o.planned.Why, ".") + "; " + o.waits
	}
}

// otherEpochs says how many open epochs were opened before what is decided now.
func otherEpochs(job *pecanv1.StoredJob, decided *pecanv1.StoredOrder) string {
	registered, ordered := 0, 0
	for _, epoch := range job.Epochs {
		if len(epoch.Order) == 0 {
			registered++
		} else {
			ordered++
		}
	}
	switch back := decided.Stage == pecanv1.OrderStage_ORDER_STAGE_ROLLED_BACK; {
	case back && ordered > 0:
		return fmt.Sprintf("; epochs that were open before keep the order that they have: %d", ordered)
	case !back && registered > 0 && len(decided.Order) > 0:
		return fmt.Sprintf("; epochs that were open before keep the registered order: %d", registered)
	}
	return ""
}

// orderStatus is what an operator sees of it at a glance; nil where nobody asked.
func (c *Core) orderStatus(job *pecanv1.StoredJob) *pecanv1.OrderStatus {
	switch job.Options.GetOrder() {
	case pecanv1.Order_ORDER_UNSPECIFIED, pecanv1.Order_ORDER_OFF:
		return nil
	}
	state, why := c.orderState(job)
	return &pecanv1.OrderStatus{State: state, Why: why}
}
