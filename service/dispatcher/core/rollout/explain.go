package rollout

import (
	"cmp"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/dispatcher/core/jobmetrics"
)

// Explained has the state of the order of a job's steps.
type Explained struct {
	// Response lacks the steps and predictions. They follow from the graph.
	Response *pecanv1.ExplainResponse
	// Fingerprint, Plan, Options and Nodes are the input of a plan. Nodes has metrics of steps in the registered
	// order.
	Fingerprint string
	Plan        *pecanv1.Plan
	Options     *pecanv1.JobOptions
	Nodes       []*pecanv1.NodeMetrics
	// Other has metrics in another order; nil without any.
	Other *pecanv1.MeasuredOrder
	// Order is the decided or planned order, also if it was rolled back; empty for the registered one.
	Order []string
}

// Explain says in which order the steps of a job run, and why. name is the job's id or name.
func (r *Rollouts) Explain(name string) (*Explained, error) {
	job := r.state.Job(name)
	if job == nil {
		job = r.state.JobNamed(name)
	}
	if job == nil {
		return nil, reason.New(reason.JobUnknown, "explain: there is no job with the id or name %q", name)
	}
	key, off := r.state.OrderKey(job)
	state, why := r.status(job)
	e := &Explained{
		Response:    &pecanv1.ExplainResponse{JobId: job.JobId, Order: key.Policy, Tolerance: key.Tolerance, State: state, Why: why},
		Fingerprint: r.state.Dataset(job.DatasetId).GetFingerprint(), Plan: job.Plan, Options: proto.Clone(job.Options).(*pecanv1.JobOptions),
		Nodes: r.sum([]*durable.Job{job}, (*jobmetrics.Totals).Registered), Other: r.state.Profile(r.state.Dataset(job.DatasetId).GetFingerprint()).GetOther(),
	}
	if off != "" {
		e.Response.Order, e.Response.Tolerance = pecanv1.Order_ORDER_OFF, pecanv1.OrderTolerance_ORDER_TOLERANCE_UNSPECIFIED
		return e, nil
	}
	e.Options.OrderTolerance = key.Tolerance
	kept := r.state.Profile(key.Fingerprint).GetNodes()
	if o := r.open[key]; o != nil && o.planned != nil {
		e.Order, e.Nodes = o.planned.Order, o.metrics
	} else if kept != nil && !isEnough(jobmetrics.Busiest(e.Nodes)) {
		e.Nodes = kept
	}
	if decided := r.state.Decision(key); decided != nil {
		e.Order, e.Response.Trial, e.Response.Production = decided.Order, decided.Trial, decided.Production
		e.Response.Wider, e.Response.OrderAdvice = decided.Wider, decided.Wider.Advice()
		e.Response.PredictedBeforeS, e.Response.PredictedAfterS = decided.PredictedBeforeS, decided.PredictedAfterS
		if kept != nil {
			// The job's own metrics may be of the other order.
			e.Nodes = kept
		}
	}
	return e, nil
}

// Awaited says what the decision on the order of a job's steps waits for. It does so while the decision is near: costs are
// measured, or an order is planned or tried. A trial without a budget or a worker may come late or never. Then the answer is
// empty.
func (r *Rollouts) Awaited(job *durable.Job) string {
	const unknown = "the costs of its steps are not known yet"
	key, off := r.state.OrderKey(job)
	switch o := r.open[key]; {
	case off != "" || r.state.Decision(key) != nil:
		return ""
	case o == nil:
		return unknown
	case o.blocked:
		return ""
	default:
		return cmp.Or(o.waitsFor, unknown)
	}
}

// status returns the stage of a job's rollout, and its reason.
func (r *Rollouts) status(job *durable.Job) (state, why string) {
	key, off := r.state.OrderKey(job)
	if off != "" {
		return "off", off
	}
	if decided := r.state.Decision(key); decided != nil {
		why = strings.TrimSuffix(decided.Why, ".")
		switch {
		case len(r.state.OrderFor(job)) > 0 && cachesOther(job, decided.Order):
			why += "; epochs do not have it, because the elements are cached in the order before it"
		case decided.Stage == pecanv1.OrderStage_ORDER_STAGE_PILOTED:
			why += r.pilotStatus(decided)
		}
		return decided.State(), why + otherEpochs(job, decided)
	}
	switch o := r.open[key]; {
	case job.Error != nil:
		return "off", "the job has failed"
	case o == nil:
		return "measuring", "the costs of its steps are not known yet"
	case o.planned == nil:
		return "measuring", o.waitsFor
	case o.losses > 0:
		return "proposed", fmt.Sprintf("%s; %s; lost trials: %d, the last one: %s", strings.TrimSuffix(o.planned.Why, "."), o.waitsFor, o.losses, o.lastLoss)
	default:
		return "proposed", strings.TrimSuffix(o.planned.Why, ".") + "; " + o.waitsFor
	}
}

// otherEpochs counts the open epochs that were opened before the decision.
func otherEpochs(job *durable.Job, decided *pecanv1.StoredOrder) string {
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
		return fmt.Sprintf("; open epochs that keep their order: %d", ordered)
	case !back && registered > 0 && len(decided.Order) > 0:
		return fmt.Sprintf("; open epochs that keep the registered order: %d", registered)
	}
	return ""
}

// Status returns the stage of a job's rollout for an operator; nil if nobody asked for another order.
func (r *Rollouts) Status(job *durable.Job) *pecanv1.OrderStatus {
	switch job.Options.GetOrder() {
	case pecanv1.Order_ORDER_UNSPECIFIED, pecanv1.Order_ORDER_OFF:
		return nil
	}
	state, why := r.status(job)
	return &pecanv1.OrderStatus{State: state, Why: why}
}

// pilotStatus says what a piloted order waits for.
func (r *Rollouts) pilotStatus(decided *pecanv1.StoredOrder) string {
	p := r.pilots[durable.KeyOf(decided)]
	switch {
	case p == nil:
		return "; the next epoch runs some streams in the order, if that can be compared"
	case p.waitsFor == "":
		return "; an open epoch has the order, and nothing was measured yet"
	}
	return "; " + p.waitsFor
}
