package rollout

import (
	"fmt"
	"strings"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

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
