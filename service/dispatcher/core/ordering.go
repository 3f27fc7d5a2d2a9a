package core

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// The way to another order of a dataset's steps: the workers' figures show what each step costs (measuring); the caller, who has the
// graph, plans an order (PlanOrder, OrderPlanned); a worker that runs the dataset tries it on some elements that nobody gets (proposed);
// and one record says which order is piloted from then on (pilot.go), or why the registered one stays. Nothing before that record is durable: a
// dispatcher that starts anew measures and tries again. Epochs that are opened from then on have the order, or one of their streams has; those
// that are open keep theirs. Jobs of one dataset share all of this where policy, tolerance and plan are the same.

const (
	// leastElements of the busiest step, and leastCPU seconds in all, are what an order is planned from.
	leastElements = 200
	leastCPU      = 1.0
	// trialShare is what a trial may cost, in the share of an epoch; an order that would save less is not tried.
	trialShare = 0.02
	// leastTried and mostTried are how many elements a trial may cost beside trialOpening, the seconds of CPU in which it opens the
	// dataset: twice what it needs to be sure, and as many as it takes at most.
	leastTried, mostTried = 60, 2000
	trialOpening          = 0.25
	// trialSilence is how long a worker may take for the answer. It gives up before.
	trialSilence = time.Minute
	// mostLosses of workers in a trial refuse the order: it may be what ends them.
	mostLosses = 3
	// lookAgain is how often figures are looked at, planAgain when a plan is asked for again that could not be made.
	lookAgain = time.Second
	planAgain = time.Minute
)

// ordering is the way to a decision on the order of steps, as far as it has come.
type ordering struct {
	// lookAt is when it is gone on with.
	lookAt time.Duration
	// asked numbers the plan that is being made; 0: none is.
	asked uint64
	// planned is the order that is tried; nil before there is one.
	planned *OrderPlanned
	// figures are those that it was planned from.
	figures []*pecanv1.NodeMetrics
	trial   *orderTrial
	// cost is what trials took that were too short, and least what the next one may take at least, in seconds of CPU.
	cost, least float64
	// losses of workers that were trying, what became of the last one, and the connections that are not asked again.
	losses   int
	lastLoss string
	tried    map[SessionID]bool
	// waits says in words what it waits for.
	waits string
}

// orderTrial is under way on a worker.
type orderTrial struct {
	id, worker string
	session    SessionID
	until      time.Duration
	// budget is the CPU that it may spend, in seconds.
	budget float64
}

// ordered is a decision that is to be made, and the jobs that wait for it.
type ordered struct {
	key  orderKey
	jobs []*pecanv1.StoredJob
}

// undecided lists the decisions that are to be made, in the order of their first jobs.
func (c *Core) undecided() []*ordered {
	var list []*ordered
	at := map[orderKey]*ordered{}
	for _, job := range c.state.ordered {
		key, off := c.state.orderAsked(job)
		if off != "" || job.Error != nil || c.state.orders[key] != nil {
			continue
		}
		if at[key] == nil {
			at[key] = &ordered{key: key}
			list = append(list, at[key])
		}
		at[key].jobs = append(at[key].jobs, job)
	}
	return list
}

// goOnOrdering takes every order a step further for which the time has come.
func (c *Core) goOnOrdering() {
	list, before := c.undecided(), c.orderings
	// What nobody waits for any more is left out.
	c.orderings = map[orderKey]*ordering{}
	for _, u := range list {
		if c.orderings[u.key] = before[u.key]; before[u.key] == nil {
			c.orderings[u.key] = &ordering{tried: map[SessionID]bool{}}
		}
	}
	for _, u := range list {
		switch o := c.orderings[u.key]; {
		case o.asked > 0 || c.now < o.lookAt:
		case o.planned == nil:
			c.measure(u, o)
		case o.trial == nil:
			c.tryOrder(u, o)
		case c.now >= o.trial.until:
			c.loseTrial(u.key, o, fmt.Sprintf("worker %s gave no answer in time", o.trial.worker), true)
		}
	}
}

// measure asks for a plan when it is known what the steps cost: from these jobs, or from earlier ones.
func (c *Core) measure(u *ordered, o *ordering) {
	o.lookAt = c.now + lookAgain
	nodes := c.measured(u.jobs)
	elements, cpu := busiest(nodes)
	if elements < leastElements || cpu < leastCPU {
		o.waits = fmt.Sprintf("%d of %d elements of the busiest step and %.1f of %.0f s of CPU have been seen", min(elements, leastElements), leastElements, min(cpu, leastCPU), leastCPU)
		if c.state.profiles[u.key.fingerprint] == nil {
			return
		}
		nodes = c.state.profiles[u.key.fingerprint].Nodes
	}
	c.ordersAsked++
	o.asked, o.figures, o.waits = c.ordersAsked, nodes, "an order is being planned"
	c.effect(PlanOrder{Asked: o.asked, Fingerprint: u.key.fingerprint, Plan: u.jobs[0].Plan, Options: optionsFor(u), Nodes: nodes})
}

// optionsFor gives the options of a decision's jobs with the tolerance that is meant.
func optionsFor(u *ordered) *pecanv1.JobOptions {
	options := proto.Clone(u.jobs[0].Options).(*pecanv1.JobOptions)
	options.OrderTolerance = u.key.tolerance
	return options
}

// measured sums up the figures of jobs' streams that run in the registered order.
func (c *Core) measured(jobs []*pecanv1.StoredJob) []*pecanv1.NodeMetrics {
	sum := profile{}
	for _, job := range jobs {
		sum.add(c.totals(job.JobId).registered())
	}
	// A node without a name is nobody's, and a time that is none would make all others worth nothing.
	return slices.DeleteFunc(sum.list(), func(n *pecanv1.NodeMetrics) bool {
		return n.Node == "" || !(n.SelfCpuS >= 0) || math.IsInf(n.SelfCpuS, 0)
	})
}

// busiest gives the elements of the node that took most time, and the time of all.
func busiest(nodes []*pecanv1.NodeMetrics) (elements uint64, cpu float64) {
	most := 0.0
	for _, node := range nodes {
		cpu += node.SelfCpuS
		if node.SelfCpuS > most {
			most, elements = node.SelfCpuS, node.Elements
		}
	}
	return elements, cpu
}

// orderPlanned takes the plan that was asked for. Another answer is to a question that nobody has any more.
func (c *Core) orderPlanned(in OrderPlanned) {
	for _, u := range c.undecided() {
		o := c.orderings[u.key]
		if o == nil || o.asked == 0 || o.asked != in.Asked {
			continue
		}
		o.asked = 0
		switch gain := in.gain(); {
		case in.Again != "":
			o.waits, o.lookAt = in.Again, c.now+planAgain
		case len(in.Order) == 0:
			c.decideOrder(u.key, &in, nil, in.Why)
		case checkSteps(in.Order) != nil:
			c.decideOrder(u.key, &in, nil, "no order could be planned: "+checkSteps(in.Order).Error())
		case gain < trialShare:
			c.decideOrder(u.key, &in, nil, fmt.Sprintf("another order would save %.1f %% of an epoch's CPU at most, and to try it may cost %.0f %% (%s)", 100*max(gain, 0), 100*trialShare, strings.TrimSuffix(in.Why, ".")))
		default:
			o.planned, o.lookAt = &in, c.now
			c.event("order of steps planned", "dataset", u.key.fingerprint, "policy", u.key.policy.String(), "why", in.Why)
			c.tryOrder(u, o)
		}
		return
	}
}

// tops are the steps of the registered and of the planned order above which nothing differs; empty where it does not say its steps.
func (in *OrderPlanned) tops() (registered, ordered string) {
	for i, step := range slices.Backward(in.Steps) {
		if len(in.Steps) == len(in.Order) && step.GetNode() != in.Order[i] {
			return step.GetNode(), in.Order[i]
		}
	}
	return "", ""
}

// made gives the elements that have come from a step, or from the highest below it of which that is known, and the CPU of the steps above;
// "" is the highest step.
func (in *OrderPlanned) made(step string, nodes []*pecanv1.NodeMetrics) (elements uint64, above float64) {
	reached := step == ""
	for _, s := range slices.Backward(in.Steps) {
		reached = reached || s.GetNode() == step
		at := slices.IndexFunc(nodes, func(n *pecanv1.NodeMetrics) bool { return n.Node == s.GetNode() })
		switch {
		case at < 0:
		case !reached:
			above += nodes[at].SelfCpuS
		case nodes[at].Elements > 0:
			return nodes[at].Elements, above
		}
	}
	return 0, above
}

// gain is the share of CPU that a planned order saves.
func (in *OrderPlanned) gain() float64 {
	if !(in.PredictedBefore > 0 && in.PredictedAfter >= 0) {
		return 0
	}
	return 1 - in.PredictedAfter/in.PredictedBefore
}

// tryOrder has a worker try the planned order, as soon as the trial costs no more than it may and a worker runs the dataset.
func (c *Core) tryOrder(u *ordered, o *ordering) {
	o.lookAt = c.now + lookAgain
	budget, least := c.trialBudget(u, o)
	if budget < least {
		o.waits = fmt.Sprintf("a trial takes %.3g s of CPU at least and may take %.3g s, %.0f %% of an epoch or of what was spent so far", least, budget, 100*trialShare)
		return
	}
	job, id := c.trialWorker(u, o)
	registered, ordered := o.planned.tops()
	if id == "" {
		o.waits = "no worker runs the dataset that can try the order"
		return
	}
	worker := c.workers[id]
	c.trials++
	o.trial = &orderTrial{id: fmt.Sprintf("%d-%d", c.state.incarnation, c.trials), worker: id, session: worker.session, until: c.now + trialSilence, budget: budget}
	o.tried[worker.session], worker.trying = true, true
	o.waits = "worker " + id + " is trying the order"
	c.command(id, &pecanv1.WorkerCommand{Kind: &pecanv1.WorkerCommand_TryOrder{TryOrder: &pecanv1.TryOrder{
		Id: o.trial.id, Fingerprint: u.key.fingerprint, Plan: job.Plan, Options: optionsFor(u), Order: o.planned.Order, CpuS: budget,
		Components: c.state.datasets[job.DatasetId].GetSpec().GetComponents(), RegisteredTop: registered, OrderedTop: ordered,
	}}})
	c.event("order of steps is tried", "dataset", u.key.fingerprint, "worker", id, "trial", o.trial.id, "cpu_s", budget)
}

// trialBudget is what a trial may cost in seconds of CPU, and what it costs at least. It may cost a share of an epoch, by what an
// element costs and how many there are; where that is not known, or more has been spent already, of what was spent.
func (c *Core) trialBudget(u *ordered, o *ordering) (budget, least float64) {
	nodes := c.measured(u.jobs)
	_, spent := busiest(nodes)
	if _, before := busiest(o.figures); before > spent {
		nodes, spent = o.figures, before
	}
	epoch := 0.0
	if all, _ := o.planned.made("", nodes); all > 0 {
		epoch = spent / float64(all) * float64(max(0, u.jobs[0].Plan.GetCardinality()))
	}
	top, _ := o.planned.tops()
	elements, above := o.planned.made(top, nodes)
	if elements == 0 {
		return trialShare*spent - o.cost, max(trialOpening, o.least)
	}
	each := (spent - above) / float64(elements)
	// An element is run in both orders.
	both := each * (2 - o.planned.gain())
	least = max(trialOpening+leastTried*both, o.least)
	return min(trialShare*max(spent, epoch)-o.cost, max(trialOpening+mostTried*both, least)), least
}

// trialWorker finds a connected worker that runs a stream of a job that waits for the order. One that was asked before is not asked
// again on the same connection, and none tries two orders at once.
func (c *Core) trialWorker(u *ordered, o *ordering) (*pecanv1.StoredJob, string) {
	for _, job := range u.jobs {
		for _, epoch := range job.Epochs {
			for _, stream := range epoch.Streams {
				id := stream.Worker.GetWorkerId()
				worker := c.workers[id]
				if stream.Worker == nil || worker == nil || worker.session == 0 || !c.usable(worker) {
					continue
				}
				if !o.tried[worker.session] && !worker.trying {
					return job, id
				}
			}
		}
	}
	return nil, ""
}

// loseTrial gives a trial up whose worker is lost or silent. One that left in good order says nothing about the order.
func (c *Core) loseTrial(key orderKey, o *ordering, why string, counts bool) {
	o.trial, o.lookAt, o.lastLoss = nil, c.now, why
	if counts {
		o.losses++
	}
	c.warn("a trial of an order was lost", "dataset", key.fingerprint, "why", why, "losses", o.losses)
	if o.losses < mostLosses {
		return
	}
	why = fmt.Sprintf("%d workers were lost or silent while they tried the order, the last time: %s", o.losses, why)
	c.decideOrder(key, o.planned, &pecanv1.OrderTrial{Refused: why}, why)
}

// loseTrialsOn gives up what was being tried over a connection that is gone.
func (c *Core) loseTrialsOn(session SessionID, why string, counts bool) {
	for _, u := range c.undecided() {
		if o := c.orderings[u.key]; o != nil && o.trial != nil && o.trial.session == session {
			c.loseTrial(u.key, o, why, counts)
		}
	}
}

// orderTried takes the answer of a worker. One to a trial that was given up, or of before this process, says nothing any more.
func (c *Core) orderTried(session SessionID, worker *workerState, told *pecanv1.OrderTried) {
	worker.trying = false
	for _, u := range c.undecided() {
		o := c.orderings[u.key]
		if o == nil || o.trial == nil || o.trial.session != session || o.trial.id != told.GetId() {
			continue
		}
		trial := told.GetTrial()
		switch {
		case trial == nil:
			c.loseTrial(u.key, o, fmt.Sprintf("worker %s gave no result", o.trial.worker), true)
		case trial.Refused != "" && worker.leaving:
			// It had to stop.
			c.loseTrial(u.key, o, fmt.Sprintf("worker %s leaves", o.trial.worker), false)
		case trial.Inconclusive && trial.CpuS >= o.trial.budget/2:
			// It was too short to tell anything: the next one may take twice as long, when that is no more than a trial may cost.
			o.cost, o.least = o.cost+trial.CpuS, 2*o.trial.budget
			delete(o.tried, session)
			o.trial, o.waits = nil, "a trial was too short: "+trial.Refused
			c.event("a trial of an order was too short", "dataset", u.key.fingerprint, "elements", trial.Elements, "cpu_s", trial.CpuS, "why", trial.Refused)
		case trial.Refused != "":
			c.decideOrder(u.key, o.planned, trial, trial.Refused)
		default:
			c.decideOrder(u.key, o.planned, trial, fmt.Sprintf("%s; tried on %d elements, %.4g ms of CPU each instead of %.4g ms",
				strings.TrimSuffix(o.planned.Why, "."), trial.Elements, 1000*trial.OrderedS, 1000*trial.OriginalS))
		}
		return
	}
}

// decideOrder makes an end of looking for an order: the planned one holds if a trial bears it out, else the registered one stays.
func (c *Core) decideOrder(key orderKey, planned *OrderPlanned, trial *pecanv1.OrderTrial, why string) {
	decided := &pecanv1.StoredOrder{
		Fingerprint: key.fingerprint, Policy: key.policy, Tolerance: key.tolerance, PlanHash: key.plan, Trial: trial, Why: why,
	}
	if trial != nil && trial.Refused == "" {
		decided.Order, decided.Covers, decided.ByStream = planned.Order, planned.covers(), planned.byStream()
		decided.Stage = pecanv1.OrderStage_ORDER_STAGE_PILOTED
	}
	if nodes := c.orderings[key].figures; !slices.Equal(nodes, c.state.profiles[key.fingerprint].GetNodes()) {
		c.emit(&pecanv1.Record{Kind: &pecanv1.Record_ProfileKept{ProfileKept: &pecanv1.ProfileKept{
			Profile: &pecanv1.StoredProfile{Fingerprint: key.fingerprint, Nodes: nodes},
		}}})
	}
	c.emit(&pecanv1.Record{Kind: &pecanv1.Record_OrderDecided{OrderDecided: &pecanv1.OrderDecided{Decided: decided}}})
	delete(c.orderings, key)
	c.event("order of steps decided", "dataset", key.fingerprint, "policy", key.policy.String(), "tolerance", key.tolerance.String(),
		"state", stateOf(decided), "why", why)
}
