package rollout

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/dispatcher/core/jobmetrics"
)

// A piloted order passed its trial. The next epoch has it in one stream, in the same epoch as others in the registered
// order, and workers report both separately. If one stream cannot be compared, the whole epoch has the order and is compared
// with earlier metrics. The order is rolled back if it costs more by a margin, or has cost what it may cost. It is also rolled
// back if elements fail only in it. It is adopted if it costs less, and compared with earlier metrics from then on.
//
// Decisions are durable, and so are the ordered streams of an epoch. The metrics are not: after a restart the
// comparison begins with the next epoch that is opened.

// judgePilots judges the pilots that are due.
func (r *Rollouts) judgePilots() {
	var due []durable.OrderKey
	for key, p := range r.pilots {
		if r.host.Now() >= p.due {
			due = append(due, key)
		}
	}
	if len(due) == 0 {
		return
	}
	jobs := map[durable.OrderKey][]*durable.Job{}
	for _, job := range r.state.Jobs() {
		if key, off := r.state.OrderKey(job); off == "" {
			jobs[key] = append(jobs[key], job)
		}
	}
	slices.SortFunc(due, durable.OrderKey.Compare)
	for _, key := range due {
		decided, p := r.state.Decision(key), r.pilots[key]
		if decided.GetStage() == pecanv1.OrderStage_ORDER_STAGE_ROLLED_BACK || len(decided.GetOrder()) == 0 || len(jobs[key]) == 0 {
			delete(r.pilots, key)
			delete(r.lost, key)
			continue
		}
		p.due = r.host.Now() + checkEvery
		r.judge(key, decided, p, jobs[key])
	}
}

// judge adopts a piloted order or rolls it back, if the metrics suffice. An order that seems to cost a little more stays in as
// many streams until it has cost what it may cost. If that was seen against earlier epochs only, the host may have got slower,
// so the order gets another pilot beside the registered order, once.
func (r *Rollouts) judge(key durable.OrderKey, decided *pecanv1.StoredOrder, p *pilot, jobs []*durable.Job) {
	s := r.compare(key, decided, p, jobs)
	if s.failed != "" {
		r.rollBack(key, &pecanv1.OrderJudged{Why: s.failed, ElementsFailed: true})
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
		if decided.Stage == pecanv1.OrderStage_ORDER_STAGE_PILOTED {
			r.extendPilot(decided, jobs)
		}
		return
	}
	production := &pecanv1.OrderProduction{
		RegisteredElements: registered.elements, RegisteredS: registered.perElement, OrderedElements: s.ordered.elements, OrderedS: s.ordered.perElement, SameEpochs: !p.wholeEpochs,
	}
	r.keepOther(key, decided, s)
	costs := fmt.Sprintf("in production its steps take %.4g ms per element, and %.4g ms in %s", 1000*s.ordered.perElement, 1000*registered.perElement, against)
	p.loss = max(0, s.ordered.cpu()-float64(s.ordered.elements)*registered.perElement)
	p.doubtful = p.loss > 0
	lost, allowed := r.lost[key]+p.loss, r.allowedLoss(key, decided, jobs)
	switch {
	case s.ordered.perElement > margin*registered.perElement:
		why := fmt.Sprintf("%s: %.3g times as much, and chance explains at most %.1f times", costs, s.ordered.perElement/registered.perElement, margin)
		r.rollBack(key, &pecanv1.OrderJudged{Production: production, Why: why})
	case p.doubtful && lost > allowed:
		why := fmt.Sprintf("%s: it has cost %.3g s of CPU more, and may cost %.3g s, which is %.0f %% of the work of its jobs", costs, lost, allowed, 100*lossShare)
		again := p.wholeEpochs && !slices.ContainsFunc(jobs, func(job *durable.Job) bool { return !mixes(job, decided) })
		r.rollBack(key, &pecanv1.OrderJudged{Production: production, Why: why, Suspected: again})
	case p.doubtful && decided.Stage == pecanv1.OrderStage_ORDER_STAGE_PILOTED:
		p.waitsFor = fmt.Sprintf("%s: it has cost %.3g s of CPU more, and may cost %.3g s", costs, lost, allowed)
		r.extendPilot(decided, jobs)
	case decided.Stage == pecanv1.OrderStage_ORDER_STAGE_PILOTED:
		r.setStage(key, &pecanv1.OrderJudged{Production: production, Why: strings.TrimSuffix(decided.Why, ".") + "; " + costs})
	default:
		p.checked, p.waitsFor = true, costs
	}
}

// keepOther keeps what the steps cost in another order, once for each order. Some steps read elements of other sizes there.
func (r *Rollouts) keepOther(key durable.OrderKey, decided *pecanv1.StoredOrder, s comparison) {
	kept := r.state.Profile(key.Fingerprint)
	if kept == nil || slices.Equal(kept.GetOther().GetOrder(), decided.Order) {
		return
	}
	kept = proto.CloneOf(kept)
	kept.Other = &pecanv1.MeasuredOrder{Order: slices.Clone(decided.Order), Nodes: s.orderedNodes}
	r.storeProfile(kept)
}

// setStage records the new stage of an order, and brings it to open epochs.
func (r *Rollouts) setStage(key durable.OrderKey, judged *pecanv1.OrderJudged) {
	judged.Fingerprint, judged.Policy, judged.Tolerance, judged.PlanHash = key.Fingerprint, key.Policy, key.Tolerance, key.PlanHash
	r.host.Emit(&pecanv1.Record{Kind: &pecanv1.Record_OrderJudged{OrderJudged: judged}})
	r.endPilot(key)
	decided := r.state.Decision(key)
	switch decided.Stage {
	case pecanv1.OrderStage_ORDER_STAGE_ROLLED_BACK:
		r.withdraw(key, decided, judged.Production != nil)
	case pecanv1.OrderStage_ORDER_STAGE_UNSPECIFIED:
		r.spreadAdopted(key, decided)
	}
	r.host.Log(false, "order of steps "+decided.State(), "dataset", key.Fingerprint, "policy", key.Policy.String(), "tolerance", key.Tolerance.String(), "why", judged.Why)
}

// Refused rolls the decided order of a job back, because its steps may not run in it.
func (r *Rollouts) Refused(jobID, why string) {
	job := r.state.Job(jobID)
	if job != nil && len(r.state.OrderFor(job)) > 0 {
		r.rollBack(durable.KeyOf(r.state.DecisionFor(job)), &pecanv1.OrderJudged{Why: why})
	}
}

// rollBack takes an order out of production. EpochEnded says what brings it back.
func (r *Rollouts) rollBack(key durable.OrderKey, judged *pecanv1.OrderJudged) {
	judged.Stage = pecanv1.OrderStage_ORDER_STAGE_ROLLED_BACK
	r.setStage(key, judged)
}

// StreamFailed notes that a stream has failed for good. If the stream runs in another order, the order is rolled back, unless
// the registered order has just failed too. The failure may have another cause, but a rollback costs only time.
func (r *Rollouts) StreamFailed(job *durable.Job, epochNumber uint64, stream uint32, why string) {
	epoch, decided := durable.FindEpoch(job, epochNumber), r.state.DecisionFor(job)
	if epoch == nil || !needsProof(decided.GetPolicy()) || !durable.HasOrder(epoch, stream) || !slices.Equal(r.state.OrderFor(job), epoch.Order) {
		return
	}
	if !registeredFailed(job, epoch) {
		r.rollBack(durable.KeyOf(decided), &pecanv1.OrderJudged{Why: fmt.Sprintf("a stream in the order failed: %s", why), Suspected: true})
	}
}

// registeredFailed reports whether the newest other epoch of a job that has ended failed in the registered order. Then the
// cause may still last. Earlier epochs do not count. Otherwise one old failure would protect an order that fails in each
// epoch.
func registeredFailed(job *durable.Job, except *durable.Epoch) bool {
	var last *pecanv1.ClosedEpoch
	for _, closed := range job.Closed {
		if closed.Delivered || closed.Error != nil {
			last = closed
		}
	}
	for _, epoch := range job.Epochs {
		if epoch != except && (epoch.Delivered() || epoch.Error != nil) && epoch.Epoch >= last.GetEpoch() {
			last = &pecanv1.ClosedEpoch{Epoch: epoch.Epoch, Error: epoch.Error, FailedInOrder: epoch.FailedInOrder}
		}
	}
	return last.GetError() != nil && !last.GetFailedInOrder()
}

// EpochEnded looks for failed elements a last time, because the metrics of the job may go with the epoch. It pilots an
// order again that was rolled back because of a failed stream, once an epoch in the registered order has ended without one.
// The failure may have had another cause, such as a missing file. A second failure is final. An order that was rolled back
// because elements failed gets another pilot if elements fail in the registered order too. Elements that fail in both orders
// fail because of the data.
func (r *Rollouts) EpochEnded(job *durable.Job, epoch *durable.Epoch) {
	decided := r.state.DecisionFor(job)
	key := durable.KeyOf(decided)
	if p := r.pilots[key]; p != nil {
		if failed := r.failedInOrder(decided, job, p.baseline[job.JobId]); failed != "" {
			r.rollBack(key, &pecanv1.OrderJudged{Why: failed, ElementsFailed: true})
			return
		}
	}
	if decided.MayBeExcused() && r.host.Metrics(job.JobId).FailsInRegisteredOrder() {
		why := fmt.Sprintf("it runs again, because elements of job %s failed in the registered order too; it was rolled back before: %s", job.JobId, decided.Why)
		r.setStage(key, &pecanv1.OrderJudged{Stage: pecanv1.OrderStage_ORDER_STAGE_PILOTED, Why: why})
		return
	}
	if !decided.MayReturn() || !epoch.Delivered() || epoch.Error != nil || len(epoch.Order) > 0 {
		return
	}
	why := fmt.Sprintf("it runs again, because epoch %d of job %s has ended in the registered order without a failure; it was rolled back before: %s", epoch.Epoch, job.JobId, decided.Why)
	r.setStage(key, &pecanv1.OrderJudged{Stage: pecanv1.OrderStage_ORDER_STAGE_PILOTED, Why: why})
}

const (
	// Costs in two streams of one order differ by up to a tenth. Each stream has its own threads and allocators (design note
	// 0010, Trial). So two streams must differ by more than a tenth on either side.
	sameEpochsMargin = 1.2
	// A step's time grows when its host has other work, and earlier metrics come from another load. A host that
	// is twice as busy is nothing unusual, so only more than that counts, and it needs more samples.
	otherEpochsMargin, otherEpochsCPU = 2.0, 5.0
)

// comparison has the costs of the covered steps since the pilot began. There are three sums: in the order, in the same
// epochs, and at any time in the registered order.
type comparison struct {
	ordered, sameEpochs, before cost
	// orderedNodes are the metrics of all steps in the order.
	orderedNodes []*pecanv1.NodeMetrics
	// failed says that elements failed in the order, and none in the registered order. It is "" otherwise.
	failed string
}

// cost has the elements of the last of some steps, and the CPU seconds per element in all of them.
type cost struct {
	elements   uint64
	perElement float64
	// maxElements is the most elements of any of the steps.
	maxElements uint64
}

func (c cost) cpu() float64 { return float64(c.elements) * c.perElement }

// costOf sums the metrics of steps, also of those in functions. The steps are in the order in which data flow.
func costOf(steps []string, nodes []*pecanv1.NodeMetrics) (t cost) {
	cpu := 0.0
	for _, node := range pecanv1.WithInside(nodes) {
		if at := slices.Index(steps, node.Node); at >= 0 && node.SelfCpuS >= 0 && !math.IsInf(node.SelfCpuS, 0) {
			cpu += node.SelfCpuS
			t.maxElements = max(t.maxElements, node.Elements)
			if at == len(steps)-1 {
				t.elements = node.Elements
			}
		}
	}
	if t.elements > 0 {
		t.perElement = cpu / float64(t.elements)
	}
	return t
}

// MayRunInline reports whether new streams of a job may run inline. Orders are compared by streams that run in parallel.
// Enough of those come first, and all streams are such while an order is in production.
func (r *Rollouts) MayRunInline(job *durable.Job) bool {
	key, off := r.state.OrderKey(job)
	switch {
	case off != "":
		return true
	case r.state.Decision(key) != nil:
		return r.state.OrderFor(job) == nil
	}
	o := r.open[key]
	return o != nil && o.measuredParallel
}

// failedInOrder returns a reason if elements of a job failed in the order after from. It returns "" if elements failed in
// the registered order at any time, or if none failed. Failures in an order with ElementsExcused do
// not count. from is nil if the job has not had the order.
func (r *Rollouts) failedInOrder(decided *pecanv1.StoredOrder, job *durable.Job, from *jobmetrics.Totals) string {
	if from == nil || decided.GetElementsExcused() {
		return ""
	}
	now := r.host.Metrics(job.JobId)
	if now.OrderedFailed <= from.OrderedFailed || now.FailsInRegisteredOrder() {
		return ""
	}
	return fmt.Sprintf("elements of job %s failed only in streams that run in the order: %d", job.JobId, now.OrderedFailed-from.OrderedFailed)
}

// compare sums the metrics of the jobs that run in an order.
func (r *Rollouts) compare(key durable.OrderKey, decided *pecanv1.StoredOrder, p *pilot, jobs []*durable.Job) (s comparison) {
	ordered, beside, before := jobmetrics.Profile{}, jobmetrics.Profile{}, jobmetrics.Profile{}
	for _, job := range jobs {
		now, from := r.host.Metrics(job.JobId), p.baseline[job.JobId]
		registered := now.Parallel()
		before.Add(registered)
		if from == nil {
			continue
		}
		since := jobmetrics.Profile{}
		since.Add(registered)
		since.Subtract(from.Parallel())
		beside.Add(since.List())
		now.Ordered.Subtract(from.Ordered.List())
		ordered.Add(now.Ordered.List())
		s.failed = cmp.Or(s.failed, r.failedInOrder(decided, job, from))
	}
	covered := slices.DeleteFunc(slices.Clone(decided.Order), func(name string) bool { return !slices.Contains(decided.Covers, name) })
	s.orderedNodes = jobmetrics.Valid(ordered.List())
	s.ordered, s.sameEpochs, s.before = costOf(covered, ordered.List()), costOf(decided.Covers, beside.List()), costOf(decided.Covers, before.List())
	if s.before.maxElements < minElements || s.before.cpu() < minCPU {
		s.before = costOf(decided.Covers, r.state.Profile(key.Fingerprint).GetNodes())
	}
	return s
}
