package core

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// An order that a trial bore out is piloted: the next epoch that is opened has it for one stream, beside others in the registered order, and
// workers tell the figures of both apart. If the steps that move take more for an element in it than beside it, or elements fail in it where
// none did, the order is rolled back for good; else it is adopted, and held against the figures of before from then on. Where one
// stream can tell nothing the whole epoch has the order, and is held against those figures, too.
//
// What is decided is durable, and so is which streams of an epoch have the order. The figures are not: a dispatcher that starts anew
// begins to look with the next epoch that is opened.

const (
	// Steps' times in two streams of one order differ by up to a tenth: each has threads, and with them allocators, of its own (design note
	// 0010, Trial). So two streams of an epoch are told apart by more than a tenth on either side.
	besideMargin = 1.2
	// What a step takes is the time in it, which grows when its host has other work, and figures of two times are of two loads. A host
	// that is twice as busy as it was is nothing unusual, so only more than that contradicts; and there have to be more figures.
	laterMargin, laterCPU = 2.0, 5.0
)

// pilot is how an order does in production, since an epoch was opened that has it.
type pilot struct {
	// lookAt is when it is looked at next.
	lookAt time.Duration
	// from has what is known of jobs when they opened their first epoch in the order, and epochs the number of their last one.
	from   map[string]*totals
	epochs map[string]uint64
	// alone: there is an epoch whose streams have nothing beside them.
	alone bool
	// held: it was held against other figures, and is right.
	held bool
	// waits says in words what it waits for.
	waits string
}

// registered is the registered order of the steps; nil where the plan does not say all of them.
func (in *OrderPlanned) registered() (names []string) {
	for _, step := range in.Steps {
		names = append(names, step.GetNode())
	}
	if !slices.Equal(slices.Sorted(slices.Values(names)), slices.Sorted(slices.Values(in.Order))) {
		return nil
	}
	return names
}

// covers are the steps from the lowest that moves to the highest, in the registered order; all, where that is not known.
func (in *OrderPlanned) covers() []string {
	registered := in.registered()
	if registered == nil {
		return slices.Clone(in.Order)
	}
	low, high := 0, len(registered)
	for low < high && registered[low] == in.Order[low] {
		low++
	}
	for low < high && registered[high-1] == in.Order[high-1] {
		high--
	}
	return registered[low:high]
}

// byStream tells whether one stream may have the order while another one has not. Elements are the same in both; but what a batch keeps back
// for the closing stream is joined with that of other streams, and is only the same where no step has passed the batch.
func (in *OrderPlanned) byStream() bool {
	registered := in.registered()
	for i, step := range in.Steps {
		if registered == nil || strings.Contains(step.GetOp(), "Batch") && !sameBelow(registered, in.Order, i) {
			return false
		}
	}
	return registered != nil
}

// sameBelow tells whether a step of an order has the same steps below it in another one.
func sameBelow(a, b []string, at int) bool {
	return b[at] == a[at] && !slices.ContainsFunc(b[:at], func(name string) bool { return !slices.Contains(a[:at], name) })
}

// hasOrder tells whether a stream runs in the order of its epoch.
func hasOrder(epoch *pecanv1.StoredEpoch, stream uint32) bool {
	return len(epoch.Order) > 0 && (len(epoch.OrderStreams) == 0 || slices.Contains(epoch.OrderStreams, stream))
}

// beginPilot gives the streams that have the order of an epoch that a job opens now; none: all of them. An order that nobody decided on
// here, but a position names, is no pilot.
func (c *Core) beginPilot(job *pecanv1.StoredJob, number uint64, position *pecanv1.Position, order []string) (streams []uint32) {
	if len(order) == 0 || !slices.Equal(order, c.state.orderOf(job)) {
		return nil
	}
	decided := c.state.decisionOf(job)
	key := keyOfDecision(decided)
	if p := c.pilots[key]; p == nil || p.held {
		// Every epoch is held against others by itself.
		c.pilots[key] = &pilot{from: map[string]*totals{}, epochs: map[string]uint64{}}
	}
	p := c.pilots[key]
	if decided.Stage == pecanv1.OrderStage_ORDER_STAGE_PILOTED && p.tellsBeside(job, decided) {
		streams = firstStream(job, position)
	}
	p.alone = p.alone || len(streams) == 0
	p.epochs[job.JobId] = number
	if p.from[job.JobId] == nil {
		p.from[job.JobId] = c.totals(job.JobId)
	}
	return streams
}

// tellsBeside tells whether one stream of a job's next epoch shall have the order. It tells nothing where it is the only one or must not
// differ from others, and an epoch that is over without a decision was too short. In mode deterministic an epoch has one order.
func (p *pilot) tellsBeside(job *pecanv1.StoredJob, decided *pecanv1.StoredOrder) bool {
	if last, any := p.epochs[job.JobId]; any {
		if epoch := findEpoch(job, last); epoch == nil || len(epoch.Passes) == 0 || delivered(epoch) {
			return false
		}
	}
	return job.Plan.GetNumStreams() > 1 && (decided.ByStream || !job.Plan.HasClosing()) && job.Options.GetMode() != pecanv1.Mode_MODE_DETERMINISTIC
}

// firstStream is the one that is leased first, so that the others run beside it for as long as may be; none where all have ended.
func firstStream(job *pecanv1.StoredJob, position *pecanv1.Position) []uint32 {
	for stream := range uint32(job.Plan.GetNumStreams()) {
		if !slices.Contains(position.GetEnded(), stream) {
			return []uint32{stream}
		}
	}
	return nil
}

// goOnPilots holds orders that run against the registered one.
func (c *Core) goOnPilots() {
	var due []orderKey
	for key, p := range c.pilots {
		if c.now >= p.lookAt {
			due = append(due, key)
		}
	}
	if len(due) == 0 {
		return
	}
	jobs := map[orderKey][]*pecanv1.StoredJob{}
	for _, job := range c.state.ordered {
		if key, off := c.state.orderAsked(job); off == "" {
			jobs[key] = append(jobs[key], job)
		}
	}
	slices.SortFunc(due, orderKey.compare)
	for _, key := range due {
		decided, p := c.state.orders[key], c.pilots[key]
		if decided.GetStage() == pecanv1.OrderStage_ORDER_STAGE_ROLLED_BACK || len(decided.GetOrder()) == 0 || len(jobs[key]) == 0 {
			delete(c.pilots, key)
			continue
		}
		p.lookAt = c.now + lookAgain
		c.judge(key, decided, p, jobs[key])
	}
}

// sides are what the steps that an order covers took since it is looked at: in it, beside it, and at any time in the registered order.
type sides struct {
	ordered, beside, before took
	// failed says that elements failed in the order, and none in the other.
	failed string
}

// took is how many elements came from the highest of some steps, and what each took in all of these.
type took struct {
	elements uint64
	each     float64
	// most elements that one of the steps gave.
	most uint64
}

func (t took) cpu() float64 { return float64(t.elements) * t.each }

// tookOf sums up the figures of steps, the highest of which is the last.
func tookOf(steps []string, nodes []*pecanv1.NodeMetrics) (t took) {
	cpu := 0.0
	for _, node := range nodes {
		if at := slices.Index(steps, node.Node); at >= 0 && node.SelfCpuS >= 0 && !math.IsInf(node.SelfCpuS, 0) {
			cpu += node.SelfCpuS
			t.most = max(t.most, node.Elements)
			if at == len(steps)-1 {
				t.elements = node.Elements
			}
		}
	}
	if t.elements > 0 {
		t.each = cpu / float64(t.elements)
	}
	return t
}

// sidesOf sums up the figures of the jobs that run in an order.
func (c *Core) sidesOf(key orderKey, decided *pecanv1.StoredOrder, p *pilot, jobs []*pecanv1.StoredJob) (s sides) {
	ordered, beside, before := profile{}, profile{}, profile{}
	for _, job := range jobs {
		now, from := c.totals(job.JobId), p.from[job.JobId]
		registered := now.registered()
		before.add(registered)
		if from == nil {
			continue
		}
		since := profile{}
		since.add(registered)
		since.less(from.registered())
		beside.add(since.list())
		now.ordered.less(from.ordered.list())
		ordered.add(now.ordered.list())
		if now.orderedFailed > from.orderedFailed && now.failed <= now.orderedFailed {
			s.failed = fmt.Sprintf("elements of job %s failed in streams that run in the order, and none in the others: %d", job.JobId, now.orderedFailed-from.orderedFailed)
		}
	}
	highest := slices.DeleteFunc(slices.Clone(decided.Order), func(name string) bool { return !slices.Contains(decided.Covers, name) })
	s.ordered, s.beside, s.before = tookOf(highest, ordered.list()), tookOf(decided.Covers, beside.list()), tookOf(decided.Covers, before.list())
	if s.before.most < leastElements || s.before.cpu() < leastCPU {
		s.before = tookOf(decided.Covers, c.state.profiles[key.fingerprint].GetNodes())
	}
	return s
}

// judge decides what becomes of an order by what workers have told so far.
func (c *Core) judge(key orderKey, decided *pecanv1.StoredOrder, p *pilot, jobs []*pecanv1.StoredJob) {
	s := c.sidesOf(key, decided, p, jobs)
	if s.failed != "" {
		c.judged(key, pecanv1.OrderStage_ORDER_STAGE_ROLLED_BACK, nil, s.failed)
		return
	}
	registered, margin, cpu, against, enough := s.beside, besideMargin, leastCPU, "streams beside it", s.beside.cpu() >= leastCPU
	if p.alone {
		registered, margin, cpu, against, enough = s.before, laterMargin, laterCPU, "epochs before it", s.before.elements > 0
	}
	// An order may take next to nothing for what took long before.
	seen := float64(s.ordered.elements) * max(s.ordered.each, registered.each)
	if !enough || min(registered.most, s.ordered.most) < leastElements || seen < cpu {
		p.waits = fmt.Sprintf("%d elements in it and %d in %s have been seen; %d of each are needed, and what takes %.0f s of CPU",
			s.ordered.most, registered.most, against, leastElements, cpu)
		return
	}
	production := &pecanv1.OrderProduction{
		RegisteredElements: registered.elements, RegisteredS: registered.each, OrderedElements: s.ordered.elements, OrderedS: s.ordered.each, SameEpochs: !p.alone,
	}
	figures := fmt.Sprintf("in production its steps take %.4g ms for an element, and %.4g ms in %s", 1000*s.ordered.each, 1000*registered.each, against)
	switch {
	case s.ordered.each > margin*registered.each:
		c.judged(key, pecanv1.OrderStage_ORDER_STAGE_ROLLED_BACK, production, fmt.Sprintf("%s: %.3g times as much, and what may be chance is %.1f times", figures, s.ordered.each/registered.each, margin))
	case decided.Stage == pecanv1.OrderStage_ORDER_STAGE_PILOTED:
		c.judged(key, pecanv1.OrderStage_ORDER_STAGE_UNSPECIFIED, production, strings.TrimSuffix(decided.Why, ".")+"; "+figures)
	default:
		p.held, p.waits = true, figures
	}
}

// judged makes durable what becomes of an order.
func (c *Core) judged(key orderKey, stage pecanv1.OrderStage, production *pecanv1.OrderProduction, why string) {
	c.emit(&pecanv1.Record{Kind: &pecanv1.Record_OrderJudged{OrderJudged: &pecanv1.OrderJudged{
		Fingerprint: key.fingerprint, Policy: key.policy, Tolerance: key.tolerance, PlanHash: key.plan, Stage: stage, Production: production, Why: why,
	}}})
	delete(c.pilots, key)
	text := "an order of steps is adopted"
	if stage == pecanv1.OrderStage_ORDER_STAGE_ROLLED_BACK {
		text = "an order of steps is rolled back"
	}
	c.event(text, "dataset", key.fingerprint, "policy", key.policy.String(), "tolerance", key.tolerance.String(), "why", why)
}

// failedIn notes that a stream has failed for good. Where it runs in an order, and no epoch of its job has failed before, that counts
// against the order: the registered one is right by definition. Whether it is the order's doing nobody can tell, and a rollback costs no more than time.
func (c *Core) failedIn(job *pecanv1.StoredJob, key streamKey, why string) {
	epoch, decided := findEpoch(job, key.epoch), c.state.decisionOf(job)
	if epoch == nil || !hasOrder(epoch, key.stream) || !slices.Equal(c.state.orderOf(job), epoch.Order) {
		return
	}
	failed := slices.ContainsFunc(job.Closed, func(e *pecanv1.ClosedEpoch) bool { return e.Error != nil }) ||
		slices.ContainsFunc(job.Epochs, func(e *pecanv1.StoredEpoch) bool { return e.Error != nil })
	if !failed {
		c.judged(keyOfDecision(decided), pecanv1.OrderStage_ORDER_STAGE_ROLLED_BACK, nil, fmt.Sprintf("a stream that runs in the order has failed: %s", cmp.Or(why, describe(key))))
	}
}

// pilotWords say what a piloted order waits for.
func (c *Core) pilotWords(decided *pecanv1.StoredOrder) string {
	p := c.pilots[keyOfDecision(decided)]
	switch {
	case p == nil:
		return "; the next epoch that is opened has it for one stream first, where that can tell"
	case p.waits == "":
		return "; an epoch is open that has it, and nothing has been seen yet"
	}
	return "; " + p.waits
}
