package rollout

import (
	"fmt"
	"slices"
	"strings"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
)

// judge adopts a piloted order or rolls it back, if the metrics suffice.
func (r *Rollouts) judge(key durable.OrderKey, decided *pecanv1.StoredOrder, p *pilot, jobs []*durable.Job) {
	s := r.compare(key, decided, p, jobs)
	if s.failed != "" {
		r.setStage(key, pecanv1.OrderStage_ORDER_STAGE_ROLLED_BACK, nil, s.failed)
		return
	}
	registered, margin, cpu, against, enough := s.sameEpochs, sameEpochsMargin, minCPU, "other streams of the same epochs", s.sameEpochs.cpu() >= minCPU
	if p.wholeEpochs {
		registered, margin, cpu, against, enough = s.before, otherEpochsMargin, otherEpochsCPU, "earlier epochs", s.before.elements > 0
	}
	// An order may make expensive steps almost free, so the larger cost counts.
	seen := float64(s.ordered.elements) * max(s.ordered.perElement, registered.perElement)
	if !enough || min(registered.maxElements, s.ordered.maxElements) < minElements || seen < cpu {
		p.waitsFor = fmt.Sprintf("%d elements in the order and %d in %s were measured; it needs %d of each and %.0f s of CPU",
			s.ordered.maxElements, registered.maxElements, against, minElements, cpu)
		return
	}
	production := &pecanv1.OrderProduction{
		RegisteredElements: registered.elements, RegisteredS: registered.perElement, OrderedElements: s.ordered.elements, OrderedS: s.ordered.perElement, SameEpochs: !p.wholeEpochs,
	}
	costs := fmt.Sprintf("in production its steps take %.4g ms per element, and %.4g ms in %s", 1000*s.ordered.perElement, 1000*registered.perElement, against)
	switch {
	case s.ordered.perElement > margin*registered.perElement:
		r.setStage(key, pecanv1.OrderStage_ORDER_STAGE_ROLLED_BACK, production, fmt.Sprintf("%s: %.3g times as much, and chance explains at most %.1f times", costs, s.ordered.perElement/registered.perElement, margin))
	case decided.Stage == pecanv1.OrderStage_ORDER_STAGE_PILOTED:
		r.setStage(key, pecanv1.OrderStage_ORDER_STAGE_UNSPECIFIED, production, strings.TrimSuffix(decided.Why, ".")+"; "+costs)
	default:
		p.checked, p.waitsFor = true, costs
	}
}

// setStage records the new stage of an order.
func (r *Rollouts) setStage(key durable.OrderKey, stage pecanv1.OrderStage, production *pecanv1.OrderProduction, why string) {
	r.host.Emit(&pecanv1.Record{Kind: &pecanv1.Record_OrderJudged{OrderJudged: &pecanv1.OrderJudged{
		Fingerprint: key.Fingerprint, Policy: key.Policy, Tolerance: key.Tolerance, PlanHash: key.PlanHash, Stage: stage, Production: production, Why: why,
	}}})
	delete(r.pilots, key)
	text := "order of steps adopted"
	if stage == pecanv1.OrderStage_ORDER_STAGE_ROLLED_BACK {
		text = "order of steps rolled back"
	}
	r.host.Log(false, text, "dataset", key.Fingerprint, "policy", key.Policy.String(), "tolerance", key.Tolerance.String(), "why", why)
}

// Refused rolls the decided order of a job back, because its steps may not run in it.
func (r *Rollouts) Refused(jobID, why string) {
	job := r.state.Job(jobID)
	if job != nil && len(r.state.OrderFor(job)) > 0 {
		r.setStage(durable.KeyOf(r.state.DecisionFor(job)), pecanv1.OrderStage_ORDER_STAGE_ROLLED_BACK, nil, why)
	}
}

// StreamFailed notes that a stream has failed for good. If the epoch runs in another order, and no epoch of its job has
// failed before, the order is rolled back. The registered order is right by definition. The order may be innocent, but a
// rollback costs only time.
func (r *Rollouts) StreamFailed(job *durable.Job, epochNumber uint64, stream uint32, why string) {
	epoch, decided := durable.FindEpoch(job, epochNumber), r.state.DecisionFor(job)
	if epoch == nil || !durable.HasOrder(epoch, stream) || !slices.Equal(r.state.OrderFor(job), epoch.Order) {
		return
	}
	failed := slices.ContainsFunc(job.Closed, func(e *pecanv1.ClosedEpoch) bool { return e.Error != nil }) ||
		slices.ContainsFunc(job.Epochs, func(e *durable.Epoch) bool { return e.Error != nil })
	if !failed {
		r.setStage(durable.KeyOf(decided), pecanv1.OrderStage_ORDER_STAGE_ROLLED_BACK, nil, fmt.Sprintf("a stream in the order failed: %s", why))
	}
}
