package rollout

import (
	"fmt"
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/dispatcher/core/jobmetrics"
)

// startTrial starts a trial of the planned order, once the budget suffices and a worker runs the dataset.
func (r *Rollouts) startTrial(u *undecidedOrder, o *rollout) {
	o.due, o.blocked = r.host.Now()+checkEvery, true
	if last := o.inconclusive; last != nil {
		if session, _ := r.host.Worker(last.worker); session != last.session {
			// Another worker begins anew, and needs more than the trial that was not enough.
			o.inconclusive, o.least = nil, 2*o.least
		}
	}
	budget, least, work := r.trialBudget(u, o)
	if budget < least {
		o.waitsFor = fmt.Sprintf("a trial needs at least %.3g s of CPU and may cost %.3g s: %.0f %% of the work of its jobs, or %.0f %% of what it saves of the work that is left. %.3g s of CPU are done, and %.3g s are expected",
			least, max(0, budget), 100*trialShare, 100*gainShare, work.done, work.left)
		return
	}
	job, id, session := r.trialWorker(u, o)
	registered, ordered := o.planned.lastDifferent()
	if id == "" {
		o.waitsFor = "no worker that runs the dataset can try the order"
		// Before the first stream runs, the trial is near.
		o.blocked = slices.ContainsFunc(u.jobs, func(job *durable.Job) bool {
			return slices.ContainsFunc(job.Epochs, func(epoch *durable.Epoch) bool { return epoch.Held() > 0 })
		})
		return
	}
	r.trials++
	o.blocked = false
	o.trial = &trial{id: fmt.Sprintf("%d-%d", r.state.Incarnation(), r.trials), worker: id, session: session, begun: r.host.Now(), until: r.host.Now() + trialTimeout, budget: budget}
	o.asked[session] = true
	o.waitsFor = "worker " + id + " is trying the order"
	r.host.Try(id, &pecanv1.TryOrder{
		Id: o.trial.id, Fingerprint: u.key.Fingerprint, Plan: job.Plan, Options: optionsFor(u, o.tolerance), Order: o.planned.Order, CpuS: budget,
		Components: r.state.Dataset(job.DatasetId).GetSpec().GetComponents(), RegisteredLast: registered, OrderedLast: ordered,
	})
	r.host.Log(false, "trial of an order started", "dataset", u.key.Fingerprint, "worker", id, "trial", o.trial.id, "cpu_s", budget, "done_s", work.done, "left_s", work.left)
}

// trialBudget returns the CPU seconds that a trial may cost, its minimum, and the work of the jobs. What a trial costs must
// be a small share of what the order would save, and all trials together a small share of the work.
func (r *Rollouts) trialBudget(u *undecidedOrder, o *rollout) (budget, least float64, all work) {
	nodes := r.sum(u.jobs, (*jobmetrics.Totals).Registered)
	_, spent := jobmetrics.Busiest(nodes)
	if _, before := jobmetrics.Busiest(o.metrics); before > spent {
		nodes, spent = o.metrics, before
	}
	epoch, gain := 0.0, o.planned.gain()
	if produced, _ := o.planned.produced("", nodes); produced > 0 {
		epoch = spent / float64(produced) * r.epochElements(u.key, u.jobs)
	}
	all = r.workOf(u.jobs, epoch)
	share := trialShare * (all.done + all.left)
	budget = min(share-o.cost, gainShare*gain*all.left)
	last, _ := o.planned.lastDifferent()
	elements, downstream := o.planned.produced(last, nodes)
	if elements == 0 {
		return budget, max(trialOpeningCPU, o.least), all
	}
	// An element runs in both orders.
	both := (spent - downstream) / float64(elements) * (2 - gain)
	if least = trialOpeningCPU + minTrialElements*both; gain >= largeGain {
		least = fewOpeningsCPU + fewTrialElements*both
	}
	least = max(least, o.least)
	// If a trial is lost or inconclusive, another one follows.
	return min(budget, max(least, share/maxLosses), max(least, trialOpeningCPU+maxTrialElements*both)), least, all
}

// epochElements returns how many elements an epoch has, from the plan or from an earlier epoch; 0 if that is unknown.
func (r *Rollouts) epochElements(key durable.OrderKey, jobs []*durable.Job) float64 {
	if known := jobs[0].Plan.GetCardinality(); known > 0 {
		return float64(known)
	}
	return float64(r.state.Profile(key.Fingerprint).GetEpochElements())
}

// trialWorker finds a connected worker that runs a stream of a waiting job. It does not ask a session twice, and no worker
// tries two orders at once. After an inconclusive trial, only the worker that can continue it is asked.
func (r *Rollouts) trialWorker(u *undecidedOrder, o *rollout) (job *durable.Job, id string, session uint64) {
	if last := o.inconclusive; last != nil {
		if _, free := r.host.Worker(last.worker); free {
			return u.jobs[0], last.worker, last.session
		}
		return nil, "", 0
	}
	for _, job := range u.jobs {
		for _, epoch := range job.Epochs {
			for _, stream := range epoch.Active() {
				if stream.Worker == nil {
					continue
				}
				id := stream.Worker.WorkerId
				if session, free := r.host.Worker(id); free && !o.asked[session] {
					return job, id, session
				}
			}
		}
	}
	return nil, "", 0
}
