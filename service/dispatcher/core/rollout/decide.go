package rollout

import (
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
)

// decide ends the search for an order. The planned order is piloted if its trial succeeded; otherwise the
// registered one stays.
func (r *Rollouts) decide(key durable.OrderKey, planned *Planned, trial *pecanv1.OrderTrial, why string) {
	decided := &pecanv1.StoredOrder{
		Fingerprint: key.Fingerprint, Policy: key.Policy, Tolerance: key.Tolerance, PlanHash: key.PlanHash, Trial: trial, Why: why,
	}
	if trial != nil && trial.Refused == "" {
		decided.Order, decided.Covers, decided.ByStream = planned.Order, planned.covers(), planned.byStream()
		decided.Stage = pecanv1.OrderStage_ORDER_STAGE_PILOTED
	}
	if nodes := r.open[key].metrics; !slices.Equal(nodes, r.state.Profile(key.Fingerprint).GetNodes()) {
		r.storeProfile(key.Fingerprint, nodes)
	}
	r.host.Emit(&pecanv1.Record{Kind: &pecanv1.Record_OrderDecided{OrderDecided: &pecanv1.OrderDecided{Decided: decided}}})
	delete(r.open, key)
	r.host.Log(false, "order of steps decided", "dataset", key.Fingerprint, "policy", key.Policy.String(), "tolerance", key.Tolerance.String(),
		"state", stageName(decided), "why", why)
}

// stageName names the stage of a decision.
func stageName(decided *pecanv1.StoredOrder) string {
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
