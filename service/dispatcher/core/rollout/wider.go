package rollout

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
)

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
