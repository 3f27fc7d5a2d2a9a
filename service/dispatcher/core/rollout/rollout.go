package rollout

import (
	"fmt"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/dispatcher/core/jobmetrics"
)

// The way to another order of a dataset's steps: the workers' figures show what each step costs (measuring); the caller, who has the
// graph, plans an order (PlanOrder, OrderPlanned); a worker that runs the dataset tries it on some elements that nobody gets (proposed);
// and one record says which order is piloted from then on (pilot.go), or why the registered one stays. Nothing before that record is durable: a
// dispatcher that starts anew measures and tries again. Epochs that are opened from then on have the order, or one of their streams has; those
// that are open keep theirs. Jobs of one dataset share all of this where policy, tolerance and plan are the same.

const (
	// minElements of the busiest step, and leastCPU seconds in all, are what an order is planned from.
	minElements = 200
	minCPU      = 1.0
	// trialShare is what a trial may cost, in the share of an epoch; an order that would save less is not tried.
	trialShare = 0.02
	// minTrialElements and mostTried are how many elements a trial may cost beside trialOpening, the seconds of CPU in which it opens the
	// dataset: twice what it needs to be sure, and as many as it takes at most.
	minTrialElements, maxTrialElements = 60, 2000
	trialOpeningCPU                    = 0.25
	// trialTimeout is how long a worker may take for the answer. It gives up before.
	trialTimeout = time.Minute
	// maxLosses of workers in a trial refuse the order: it may be what ends them.
	maxLosses = 3
	// checkEvery is how often figures are looked at, planAgain when a plan is asked for again that could not be made.
	checkEvery     = time.Second
	planRetryAfter = time.Minute
)

// Host is the core as the rollouts see it.
type Host interface {
	// Now is the time of the decision.
	Now() time.Duration
	// Emit applies a record and makes it part of the decision.
	Emit(record *pecanv1.Record)
	// Metrics sums what workers reported for a job.
	Metrics(jobID string) *jobmetrics.Totals
	// Plan asks the caller for a plan. The answer is OrderPlanned.
	Plan(asked PlanRequest)
	// Worker gives the session of a worker, and whether the worker can try an order now.
	Worker(workerID string) (session uint64, free bool)
	// Try has a worker try an order.
	Try(workerID string, command *pecanv1.TryOrder)
	// Log writes an event, or a warning.
	Log(warn bool, text string, args ...any)
}

// Rollouts has the rollouts of all jobs of a dispatcher. Only the records are durable.
type Rollouts struct {
	host  Host
	state *durable.State
	// open has the rollouts without a decision. ordersAsked and trials number their questions.
	open          map[durable.OrderKey]*rollout
	plans, trials uint64
	// pilots has how orders do in production, from the first epoch that was opened with them.
	pilots map[durable.OrderKey]*pilot
}

// NewRollouts gives the rollouts over a state.
func NewRollouts(host Host, state *durable.State) *Rollouts {
	return &Rollouts{host: host, state: state, open: map[durable.OrderKey]*rollout{}, pilots: map[durable.OrderKey]*pilot{}}
}

// Tick takes every rollout a step further for which the time has come.
func (r *Rollouts) Tick() {
	r.stepOpen()
	r.judgePilots()
}

// rollout is the way to a decision on the order of steps, as far as it has come.
type rollout struct {
	// due is when it is gone on with.
	due time.Duration
	// planNumber numbers the plan that is being made; 0: none is.
	planNumber uint64
	// planned is the order that is tried; nil before there is one.
	planned *Planned
	// metrics are those that it was planned from.
	metrics []*pecanv1.NodeMetrics
	trial   *trial
	// cost is what trials took that were too short, and least what the next one may take at least, in seconds of CPU.
	cost, least float64
	// losses of workers that were trying, what became of the last one, and the connections that are not asked again.
	losses   int
	lastLoss string
	asked    map[uint64]bool
	// waitsFor says in words what it waits for.
	waitsFor string
}

// trial is under way on a worker.
type trial struct {
	id, worker string
	session    uint64
	until      time.Duration
	// budget is the CPU that it may spend, in seconds.
	budget float64
}

// undecidedOrder is a decision that is to be made, and the jobs that wait for it.
type undecidedOrder struct {
	key  durable.OrderKey
	jobs []*pecanv1.StoredJob
}

// undecided lists the decisions that are to be made, in the order of their first jobs.
func (r *Rollouts) undecided() []*undecidedOrder {
	var list []*undecidedOrder
	at := map[durable.OrderKey]*undecidedOrder{}
	for _, job := range r.state.Jobs() {
		key, off := r.state.OrderKey(job)
		if off != "" || job.Error != nil || r.state.Decision(key) != nil {
			continue
		}
		if at[key] == nil {
			at[key] = &undecidedOrder{key: key}
			list = append(list, at[key])
		}
		at[key].jobs = append(at[key].jobs, job)
	}
	return list
}

// stepOpen takes every order a step further for which the time has come.
func (r *Rollouts) stepOpen() {
	list, before := r.undecided(), r.open
	// What nobody waits for any more is left out.
	r.open = map[durable.OrderKey]*rollout{}
	for _, u := range list {
		if r.open[u.key] = before[u.key]; before[u.key] == nil {
			r.open[u.key] = &rollout{asked: map[uint64]bool{}}
		}
	}
	for _, u := range list {
		switch o := r.open[u.key]; {
		case o.planNumber > 0 || r.host.Now() < o.due:
		case o.planned == nil:
			r.measure(u, o)
		case o.trial == nil:
			r.startTrial(u, o)
		case r.host.Now() >= o.trial.until:
			r.loseTrial(u.key, o, fmt.Sprintf("worker %s gave no answer in time", o.trial.worker), true)
		}
	}
}
