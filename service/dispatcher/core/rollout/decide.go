package rollout

import (
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
)

// needsProof reports whether an order needs a trial, a pilot and a comparison in production.
func needsProof(policy pecanv1.Order) bool { return policy != pecanv1.Order_ORDER_PAPER_UNGUARDED }

// decide ends the search for an order. The planned order is piloted if its trial succeeded. Otherwise the registered order
// stays. An order that needs no proof is adopted at once.
func (r *Rollouts) decide(key durable.OrderKey, planned *Planned, trial *pecanv1.OrderTrial, why string) {
	decided := &pecanv1.StoredOrder{
		Fingerprint: key.Fingerprint, Policy: key.Policy, Tolerance: key.Tolerance, PlanHash: key.PlanHash, Trial: trial, Why: why,
	}
	if planned.PredictedBefore > 0 && planned.PredictedAfter >= 0 {
		decided.PredictedBeforeS, decided.PredictedAfterS = planned.PredictedBefore, planned.PredictedAfter
	}
	if !needsProof(key.Policy) || trial != nil && trial.Refused == "" {
		decided.Order = planned.Order
	}
	if len(decided.Order) > 0 {
		decided.Covers, decided.ByStream = planned.covers(), planned.byStream()
	}
	if len(decided.Order) > 0 && needsProof(key.Policy) {
		decided.Stage = pecanv1.OrderStage_ORDER_STAGE_PILOTED
	}
	kept := r.state.Profile(key.Fingerprint)
	if o := r.open[key]; !slices.Equal(o.metrics, kept.GetNodes()) {
		r.storeProfile(&pecanv1.StoredProfile{Fingerprint: key.Fingerprint, Nodes: o.metrics, EpochsBegun: o.epochs, EpochElements: kept.GetEpochElements(), Other: kept.GetOther()})
	}
	r.host.Emit(&pecanv1.Record{Kind: &pecanv1.Record_OrderDecided{OrderDecided: &pecanv1.OrderDecided{Decided: decided}}})
	if planned.Wider != nil {
		o := r.open[key]
		r.wider[key] = &rollout{planned: planned.Wider, metrics: o.metrics, epochs: o.epochs, cost: o.cost + trial.GetCpuS(), asked: map[uint64]bool{}, due: r.host.Now(), tolerance: planned.WiderTolerance}
	}
	delete(r.open, key)
	if !needsProof(key.Policy) && len(decided.Order) > 0 {
		r.spreadAdopted(key, decided)
	}
	r.host.Log(false, "order of steps decided", "dataset", key.Fingerprint, "policy", key.Policy.String(), "tolerance", key.Tolerance.String(),
		"state", decided.State(), "why", why)
}
