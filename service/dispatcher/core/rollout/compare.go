package rollout

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/dispatcher/core/jobmetrics"
)

// A piloted order passed its trial. The next epoch has it in one stream, in the same epoch as others in the registered
// order, and workers report both separately. The order is rolled back for good if its steps cost more per element than in
// the other streams. It is also rolled back for good if elements fail only in it. Otherwise it is adopted, and compared
// with earlier metrics from then on. If one stream cannot be compared, the whole epoch has the order and is compared with
// earlier metrics.
//
// Decisions are durable, and so are the ordered streams of an epoch. The metrics are not: after a restart the
// comparison begins with the next epoch that is opened.

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
