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
	kept := r.state.Profile(key.Fingerprint)
	if o := r.open[key]; !slices.Equal(o.metrics, kept.GetNodes()) {
		r.storeProfile(&pecanv1.StoredProfile{Fingerprint: key.Fingerprint, Nodes: o.metrics, EpochsBegun: o.epochs, EpochElements: kept.GetEpochElements()})
	}
	r.host.Emit(&pecanv1.Record{Kind: &pecanv1.Record_OrderDecided{OrderDecided: &pecanv1.OrderDecided{Decided: decided}}})
	delete(r.open, key)
	r.host.Log(false, "order of steps decided", "dataset", key.Fingerprint, "policy", key.Policy.String(), "tolerance", key.Tolerance.String(),
		"state", decided.State(), "why", why)
}
