package rollout

import (
	"fmt"
	"math"
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/dispatcher/core/jobmetrics"
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
	sameEpochsMargin = 1.2
	// What a step takes is the time in it, which grows when its host has other work, and figures of two times are of two loads. A host
	// that is twice as busy as it was is nothing unusual, so only more than that contradicts; and there have to be more figures.
	otherEpochsMargin, otherEpochsCPU = 2.0, 5.0
)

// comparison are what the steps that an order covers took since it is looked at: in it, beside it, and at any time in the registered order.
type comparison struct {
	ordered, sameEpochs, before cost
	// failed says that elements failed in the order, and none in the other.
	failed string
}

// cost is how many elements came from the highest of some steps, and what each took in all of these.
type cost struct {
	elements   uint64
	perElement float64
	// maxElements elements that one of the steps gave.
	maxElements uint64
}

func (t cost) cpu() float64 { return float64(t.elements) * t.perElement }

// costOf sums up the figures of steps, the highest of which is the last.
func costOf(steps []string, nodes []*pecanv1.NodeMetrics) (t cost) {
	cpu := 0.0
	for _, node := range nodes {
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

// compare sums up the figures of the jobs that run in an order.
func (r *Rollouts) compare(key durable.OrderKey, decided *pecanv1.StoredOrder, p *pilot, jobs []*pecanv1.StoredJob) (s comparison) {
	ordered, beside, before := jobmetrics.Profile{}, jobmetrics.Profile{}, jobmetrics.Profile{}
	for _, job := range jobs {
		now, from := r.host.Metrics(job.JobId), p.baseline[job.JobId]
		registered := now.Registered()
		before.Add(registered)
		if from == nil {
			continue
		}
		since := jobmetrics.Profile{}
		since.Add(registered)
		since.Subtract(from.Registered())
		beside.Add(since.List())
		now.Ordered.Subtract(from.Ordered.List())
		ordered.Add(now.Ordered.List())
		if now.OrderedFailed > from.OrderedFailed && now.Failed <= now.OrderedFailed {
			s.failed = fmt.Sprintf("elements of job %s failed in streams that run in the order, and none in the others: %d", job.JobId, now.OrderedFailed-from.OrderedFailed)
		}
	}
	highest := slices.DeleteFunc(slices.Clone(decided.Order), func(name string) bool { return !slices.Contains(decided.Covers, name) })
	s.ordered, s.sameEpochs, s.before = costOf(highest, ordered.List()), costOf(decided.Covers, beside.List()), costOf(decided.Covers, before.List())
	if s.before.maxElements < minElements || s.before.cpu() < minCPU {
		s.before = costOf(decided.Covers, r.state.Profile(key.Fingerprint).GetNodes())
	}
	return s
}
