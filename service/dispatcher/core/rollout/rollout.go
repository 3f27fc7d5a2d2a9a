package rollout

import (
	"fmt"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/dispatcher/core/jobmetrics"
)

const (
	// A plan needs planElements of the busiest step, and planCPU seconds in all.
	planElements = 100
	planCPU      = 0.5
	// A judgement needs minElements and minCPU seconds of each side.
	minElements = 200
	minCPU      = 1.0
	// A profile of less than minKeptCPU seconds is not kept. A newer one replaces it if cost, size or number of elements differ
	// by keptRatio.
	minKeptCPU = 0.1
	keptRatio  = 1.3
	// All trials of an order may cost trialShare of the jobs' work, done and left. An order that would save a smaller
	// share is not tried.
	trialShare = 0.02
	// One trial may cost gainShare of what the order is predicted to save in the work that is left.
	gainShare = 0.25
	// A trial may cost trialOpeningCPU seconds to open the dataset, plus the CPU of minTrialElements to
	// maxTrialElements elements. The minimum is twice what a clear result needs. An order that saves largeGain needs
	// half of the openings, with the fewest elements (service/worker/trial).
	minTrialElements, fewTrialElements, maxTrialElements = 60, 20, 2000
	trialOpeningCPU, fewOpeningsCPU                      = 0.25, 0.125
	largeGain                                            = 0.3
	// In production, an order may cost lossShare of the jobs' work more than the registered order.
	lossShare = 0.01
	// trialTimeout is how long a worker may take to answer. The worker gives up earlier.
	trialTimeout = time.Minute
	// An order is refused after maxLosses lost workers in its trials, because it may have killed them.
	maxLosses = 3
	// checkEvery is the period in which metrics are checked. planRetryAfter is the time after a failed plan.
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
	// Plan asks the caller for a plan. The answer is Planned.
	Plan(asked PlanRequest)
	// Worker returns the session of a worker, and whether the worker can try an order now.
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
	// open has the rollouts without a decision. plans and trials number the requests.
	open map[durable.OrderKey]*rollout
	// wider has the orders of wider tolerances. They are tried to say what they would save, and no stream runs in them.
	wider         map[durable.OrderKey]*rollout
	plans, trials uint64
	// pilots has the orders in production. lost has the CPU seconds that each cost beyond the registered order before its pilot.
	pilots map[durable.OrderKey]*pilot
	lost   map[durable.OrderKey]float64
	// take takes a stream from its worker. It returns false if the stream cannot continue at once in another order.
	take func(epoch *durable.Epoch, stream *pecanv1.StoredStream, why string) bool
}

// NewRollouts returns the rollouts over a state.
func NewRollouts(host Host, state *durable.State, take func(*durable.Epoch, *pecanv1.StoredStream, string) bool) *Rollouts {
	return &Rollouts{
		host: host, state: state, open: map[durable.OrderKey]*rollout{}, wider: map[durable.OrderKey]*rollout{}, pilots: map[durable.OrderKey]*pilot{},
		lost: map[durable.OrderKey]float64{}, take: take,
	}
}

// Tick continues every rollout that is due.
func (r *Rollouts) Tick() {
	r.stepOpen()
	r.tryWider()
	r.pilotOpenEpochs()
	r.judgePilots()
}

// rollout is a search for an order before its decision.
type rollout struct {
	// due is when the rollout continues.
	due time.Duration
	// measuredParallel is set if enough elements were measured in streams that do not run inline.
	measuredParallel bool
	// planNumber is the number of the open PlanRequest, 0 without one.
	planNumber uint64
	// planned is the planned order; nil before there is one.
	planned *Planned
	// metrics are the metrics of the plan, summed over epochs.
	metrics []*pecanv1.NodeMetrics
	// cpuWait is the share of their time in which threads waited for a core.
	cpuWait float64
	epochs  uint64
	trial   *trial
	// blocked is set if the next trial has no budget, or no worker that runs the dataset is free.
	blocked bool
	// cost is the CPU of earlier trials. least is the minimum of the next one, in seconds.
	cost, least float64
	// inconclusive is the last trial, if its worker has measurements that another trial can continue; nil without one.
	inconclusive *trial
	// losses counts workers lost in trials, and lastLoss describes the last loss. asked has the sessions that are not asked
	// again.
	losses   int
	lastLoss string
	asked    map[uint64]bool
	// waitsFor says what the rollout waits for.
	waitsFor string
	// tolerance is the tolerance of a wider order; 0 for the order of the request.
	tolerance pecanv1.OrderTolerance
}

// trial is a trial on a worker.
type trial struct {
	id, worker string
	session    uint64
	begun      time.Duration
	until      time.Duration
	// budget is the CPU that the trial may spend, in seconds.
	budget float64
}

// undecidedOrder is an open decision, and the jobs that wait for it.
type undecidedOrder struct {
	key  durable.OrderKey
	jobs []*durable.Job
}

// undecided lists the open decisions in the order of their first jobs.
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

// stepOpen continues every open rollout that is due.
func (r *Rollouts) stepOpen() {
	list, before := r.undecided(), r.open
	// Rollouts that no job waits for are dropped.
	r.open = map[durable.OrderKey]*rollout{}
	for _, u := range list {
		if r.open[u.key] = before[u.key]; before[u.key] == nil {
			r.open[u.key] = &rollout{asked: map[uint64]bool{}}
		}
	}
	for _, u := range list {
		o := r.open[u.key]
		if o.planNumber > 0 || r.host.Now() < o.due {
			continue
		}
		if !o.measuredParallel {
			elements, _ := jobmetrics.Busiest(r.sum(u.jobs, (*jobmetrics.Totals).Parallel))
			o.measuredParallel = elements >= minElements
		}
		switch {
		case o.planned == nil:
			r.measure(u, o)
		case o.trial == nil:
			r.startTrial(u, o)
		case r.host.Now() >= o.trial.until:
			r.loseTrial(u, o, fmt.Sprintf("worker %s did not answer in time", o.trial.worker), true)
		}
	}
}
