package rollout

import (
	"fmt"
	"slices"
	"strings"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/dispatcher/core/jobmetrics"
)

// Planned answers the PlanRequest with the same number.
type Planned struct {
	Number uint64
	// Order names all steps from the source on; empty if the registered order stays.
	Order []string
	// Steps are in the registered order.
	Steps []*pecanv1.ExplainedStep
	// PredictedBefore and PredictedAfter are CPU seconds per element of the source.
	PredictedBefore, PredictedAfter float64
	// Why says what the order gains, or why the registered order stays.
	Why string
	// Retry, if set, says why no plan was possible now.
	Retry string
	// Wider is the plan under WiderTolerance, the next wider tolerance that would save WiderGain more; nil without one.
	Wider          *Planned
	WiderTolerance pecanv1.OrderTolerance
}

// WiderGain is the share of CPU that a wider tolerance must be predicted to save to be worth a trial and a sentence.
const WiderGain = 0.2

// Planned takes a requested plan. It ignores answers to older requests.
func (r *Rollouts) Planned(in Planned) {
	for _, u := range r.undecided() {
		o := r.open[u.key]
		if o == nil || o.planNumber == 0 || o.planNumber != in.Number {
			continue
		}
		o.planNumber = 0
		switch gain, err := in.gain(), durable.CheckSteps(in.Order); {
		case in.Retry != "":
			o.waitsFor, o.due = in.Retry, r.host.Now()+planRetryAfter
		case len(in.Order) == 0:
			r.decide(u.key, &in, nil, in.Why)
		case err != nil:
			in.Order = nil
			r.decide(u.key, &in, nil, "no order could be planned: "+err.Error())
		case !needsProof(u.key.Policy):
			r.decide(u.key, &in, nil, in.Why)
		case gain < trialShare:
			r.decide(u.key, &in, nil, fmt.Sprintf("another order would save at most %.1f %% of an epoch's CPU, and a trial may cost %.0f %% (%s)", 100*max(gain, 0), 100*trialShare, strings.TrimSuffix(in.Why, ".")))
		default:
			o.planned, o.due = &in, r.host.Now()
			r.host.Log(false, "order of steps planned", "dataset", u.key.Fingerprint, "policy", u.key.Policy.String(), "why", in.Why)
			r.startTrial(u, o)
		}
		return
	}
}

// lastDifferent returns the last step that differs, in both orders: downstream of it, the orders are equal. It returns ""
// if the plan lists no steps, or if they have branches. A step in a function counts as the step that calls the function.
func (p *Planned) lastDifferent() (registered, ordered string) {
	if slices.ContainsFunc(p.Steps, (*pecanv1.ExplainedStep).GetBegins) {
		return "", ""
	}
	for i, step := range slices.Backward(p.Steps) {
		if len(p.Steps) == len(p.Order) && step.GetNode() != p.Order[i] {
			for i+1 < len(p.Steps) && p.Steps[i].GetInside() != "" {
				i++
			}
			return p.Steps[i].GetNode(), p.Order[i]
		}
	}
	return "", ""
}

// produced returns the elements of a step and the CPU of the steps downstream of it. If the step has no metrics, the next
// step upstream with metrics counts. "" is the last step.
func (p *Planned) produced(step string, nodes []*pecanv1.NodeMetrics) (elements uint64, downstream float64) {
	reached := step == ""
	for _, s := range slices.Backward(p.Steps) {
		reached = reached || s.GetNode() == step
		at := slices.IndexFunc(nodes, func(n *pecanv1.NodeMetrics) bool { return n.Node == s.GetNode() })
		switch {
		case at < 0:
		case !reached:
			downstream += nodes[at].SelfCpuS
		case nodes[at].Elements > 0:
			return nodes[at].Elements, downstream
		}
	}
	return 0, downstream
}

// gain returns the share of CPU that a planned order saves.
func (p *Planned) gain() float64 {
	if !(p.PredictedBefore > 0 && p.PredictedAfter >= 0) {
		return 0
	}
	return 1 - p.PredictedAfter/p.PredictedBefore
}

// registered returns the registered order of the steps; nil if the plan does not list all of them.
func (p *Planned) registered() (names []string) {
	for _, step := range p.Steps {
		names = append(names, step.GetNode())
	}
	if !slices.Equal(slices.Sorted(slices.Values(names)), slices.Sorted(slices.Values(p.Order))) {
		return nil
	}
	return names
}

// covers returns the steps from the first that moves to the last, in the registered order. It returns all steps if the
// registered order is unknown.
func (p *Planned) covers() []string {
	registered := p.registered()
	if registered == nil {
		return slices.Clone(p.Order)
	}
	first, end := 0, len(registered)
	for first < end && registered[first] == p.Order[first] {
		first++
	}
	for first < end && registered[end-1] == p.Order[end-1] {
		end--
	}
	return registered[first:end]
}

// byStream reports whether one stream may run in the order while other streams run in the registered one. Both orders
// give the same elements. But the closing stream joins the remainders of batches, and these are the same only if no
// step has moved past a batch.
func (p *Planned) byStream() bool {
	registered := p.registered()
	for i, step := range p.Steps {
		if registered == nil || strings.Contains(step.GetOp(), "Batch") && !sameUpstream(registered, p.Order, i) {
			return false
		}
	}
	return registered != nil
}

// sameUpstream reports whether a step has the same steps upstream of it in both orders.
func sameUpstream(a, b []string, at int) bool {
	return b[at] == a[at] && !slices.ContainsFunc(b[:at], func(name string) bool { return !slices.Contains(a[:at], name) })
}

// startTrial starts a trial of the planned order, once the budget suffices and a worker runs the dataset.
func (r *Rollouts) startTrial(u *undecidedOrder, o *rollout) {
	o.due, o.blocked = r.host.Now()+checkEvery, true
	if last := o.inconclusive; last != nil {
		if session, _ := r.host.Worker(last.worker); session != last.session {
			// Another worker begins again. It needs a larger budget than the inconclusive trial had.
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
	gain := o.planned.gain()
	produced, _ := o.planned.produced("", nodes)
	all = r.workOf(u.jobs, r.epochCost(u.key, u.jobs, spent, produced))
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
