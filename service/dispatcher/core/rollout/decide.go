package rollout

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

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
		r.storeProfile(&pecanv1.StoredProfile{Fingerprint: key.Fingerprint, Nodes: o.metrics, EpochsBegun: o.epochs, EpochElements: kept.GetEpochElements(), Other: kept.GetOther(), CpuWait: o.cpuWait})
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

// loseTrial ends a trial whose worker is lost or silent. A worker that left in good order says nothing about the
// order.
func (r *Rollouts) loseTrial(u *undecidedOrder, o *rollout, why string, counts bool) {
	// Nobody knows what the trial has cost. Its time is an upper bound of its CPU, because it runs in one thread.
	o.cost += min(o.trial.budget, (r.host.Now() - o.trial.begun).Seconds())
	o.trial, o.due, o.lastLoss = nil, r.host.Now(), why
	if counts {
		o.losses++
	}
	r.host.Log(true, "trial of an order lost", "dataset", u.key.Fingerprint, "why", why, "losses", o.losses)
	if o.losses < maxLosses {
		return
	}
	why = fmt.Sprintf("%d workers were lost or silent during trials of the order, the last one: %s", o.losses, why)
	r.conclude(u.key, o, &pecanv1.OrderTrial{Refused: why}, why)
}

// LoseTrials ends the trials on a session that has ended.
func (r *Rollouts) LoseTrials(session uint64, why string, counts bool) {
	for u, o := range r.searches() {
		if o.trial != nil && o.trial.session == session {
			r.loseTrial(u, o, why, counts)
		}
	}
}

// Tried takes a worker's answer. It ignores answers to a trial that has ended, or that an earlier process
// started.
func (r *Rollouts) Tried(session uint64, report *pecanv1.OrderTried, leaving bool) {
	for u, o := range r.searches() {
		if o.trial == nil || o.trial.session != session || o.trial.id != report.GetId() {
			continue
		}
		trial := report.GetTrial()
		switch {
		case trial == nil:
			r.loseTrial(u, o, fmt.Sprintf("worker %s gave no result", o.trial.worker), true)
		case trial.Refused != "" && leaving:
			// The worker had to stop.
			r.loseTrial(u, o, fmt.Sprintf("worker %s leaves", o.trial.worker), false)
		case trial.Inconclusive && trial.CpuS >= o.trial.budget/2:
			// The same worker continues with what it has measured, if the budget allows as much again.
			o.cost, o.least = o.cost+trial.CpuS, o.trial.budget
			delete(o.asked, session)
			o.inconclusive, o.trial, o.waitsFor = o.trial, nil, "a trial was inconclusive: "+trial.Refused
			r.host.Log(false, "trial of an order inconclusive", "dataset", u.key.Fingerprint, "elements", trial.Elements, "cpu_s", trial.CpuS, "why", trial.Refused)
		case trial.Refused != "":
			r.conclude(u.key, o, trial, trial.Refused)
		default:
			r.conclude(u.key, o, trial, fmt.Sprintf("%s; in a trial of %d elements, %.4g ms of CPU each instead of %.4g ms",
				strings.TrimSuffix(o.planned.Why, "."), trial.Elements, 1000*trial.OrderedS, 1000*trial.OriginalS))
		}
		return
	}
}

// A wider tolerance may allow a much cheaper order. Users learn of it once, with the difference that it would make to the
// values. After the decision on the order of the request, a trial under that tolerance measures the gain and the difference.
// The trial counts among the trials of the jobs, and no stream runs in its order.

// searches returns the open searches with their jobs. Some are for an order, and some for what a wider tolerance saves.
func (r *Rollouts) searches() iter.Seq2[*undecidedOrder, *rollout] {
	return func(yield func(*undecidedOrder, *rollout) bool) {
		for _, u := range r.undecided() {
			if o := r.open[u.key]; o != nil && !yield(u, o) {
				return
			}
		}
		for _, key := range slices.SortedFunc(maps.Keys(r.wider), durable.OrderKey.Compare) {
			if o := r.wider[key]; !yield(&undecidedOrder{key, r.jobsOf(key)}, o) {
				return
			}
		}
	}
}

// tryWider continues the trials of wider tolerances that are due. They end with the last job.
func (r *Rollouts) tryWider() {
	for _, key := range slices.SortedFunc(maps.Keys(r.wider), durable.OrderKey.Compare) {
		u, o := &undecidedOrder{key, r.jobsOf(key)}, r.wider[key]
		switch {
		case len(u.jobs) == 0:
			delete(r.wider, key)
		case r.host.Now() < o.due:
		case o.trial == nil:
			r.startTrial(u, o)
		case r.host.Now() >= o.trial.until:
			r.loseTrial(u, o, fmt.Sprintf("worker %s did not answer in time", o.trial.worker), true)
		}
	}
}

// conclude ends a search with the result of its trial.
func (r *Rollouts) conclude(key durable.OrderKey, o *rollout, trial *pecanv1.OrderTrial, why string) {
	if o.tolerance == 0 {
		r.decide(key, o.planned, trial, why)
		return
	}
	delete(r.wider, key)
	if trial.GetRefused() != "" {
		r.host.Log(false, "trial of a wider tolerance refused", "dataset", key.Fingerprint, "tolerance", o.tolerance.String(), "why", why)
		return
	}
	if r.state.Decision(key).GetWider() != nil {
		return
	}
	wider := &pecanv1.WiderTolerance{Tolerance: o.tolerance, PredictedBeforeS: o.planned.PredictedBefore, PredictedAfterS: o.planned.PredictedAfter, Trial: trial}
	r.host.Emit(&pecanv1.Record{Kind: &pecanv1.Record_OrderWidened{OrderWidened: &pecanv1.OrderWidened{
		Fingerprint: key.Fingerprint, Policy: key.Policy, Tolerance: key.Tolerance, PlanHash: key.PlanHash, Wider: wider,
	}}})
	r.host.Log(false, "a wider tolerance would save CPU", "dataset", key.Fingerprint, "tolerance", o.tolerance.String(), "advice", wider.Advice())
}

// Advice says what a wider tolerance would save for the first of some jobs that has a decision; empty if it would save little.
func (r *Rollouts) Advice(jobIDs []string) (advice string) {
	for _, id := range jobIDs {
		if job := r.state.Job(id); job != nil {
			advice = cmp.Or(advice, r.state.DecisionFor(job).GetWider().Advice())
		}
	}
	return advice
}
