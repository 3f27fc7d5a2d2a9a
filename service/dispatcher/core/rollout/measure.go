package rollout

import (
	"fmt"
	"math"
	"slices"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/dispatcher/core/jobmetrics"
)

// measure asks for a plan once the costs of the steps are known, from these jobs or from earlier ones.
func (r *Rollouts) measure(u *undecidedOrder, o *rollout) {
	o.due = r.host.Now() + checkEvery
	nodes := r.measured(u.jobs)
	if elements, cpu := busiest(nodes); !isEnough(elements, cpu) {
		o.waitsFor = fmt.Sprintf("measured %d of %d elements of the busiest step and %.1f of %.0f s of CPU", min(elements, minElements), minElements, min(cpu, minCPU), minCPU)
		nodes = r.state.Profile(u.key.Fingerprint).GetNodes()
		if !isEnough(busiest(nodes)) {
			return
		}
	}
	r.plans++
	o.planNumber, o.metrics, o.waitsFor = r.plans, nodes, "an order is being planned"
	r.host.Plan(PlanRequest{Number: o.planNumber, Fingerprint: u.key.Fingerprint, Plan: u.jobs[0].Plan, Options: optionsFor(u), Nodes: nodes})
}

// KeepProfile keeps what an epoch's steps cost for the plans of later jobs. It writes no profile that says nearly the same
// as the one before, and keeps the one on which a decision rests: an explanation needs it.
func (r *Rollouts) KeepProfile(job *durable.Job) {
	fingerprint := r.state.Dataset(job.DatasetId).GetFingerprint()
	if fingerprint == "" || r.state.HasDecision(fingerprint) {
		return
	}
	nodes := r.measured([]*durable.Job{job})
	elements, cpu := busiest(nodes)
	if elements == 0 || cpu < minKeptCPU {
		return
	}
	if known, spent := busiest(r.state.Profile(fingerprint).GetNodes()); known > 0 {
		if ratio := cpu / float64(elements) / (spent / float64(known)); ratio < keptRatio && 1/ratio < keptRatio {
			return
		}
	}
	r.storeProfile(fingerprint, nodes)
}

func (r *Rollouts) storeProfile(fingerprint string, nodes []*pecanv1.NodeMetrics) {
	r.host.Emit(&pecanv1.Record{Kind: &pecanv1.Record_ProfileKept{ProfileKept: &pecanv1.ProfileKept{
		Profile: &pecanv1.StoredProfile{Fingerprint: fingerprint, Nodes: nodes},
	}}})
}

// optionsFor returns the options of a decision's jobs with the effective tolerance.
func optionsFor(u *undecidedOrder) *pecanv1.JobOptions {
	options := proto.Clone(u.jobs[0].Options).(*pecanv1.JobOptions)
	options.OrderTolerance = u.key.Tolerance
	return options
}

// measured sums the metrics of jobs' streams in the registered order.
func (r *Rollouts) measured(jobs []*durable.Job) []*pecanv1.NodeMetrics {
	sum := jobmetrics.Profile{}
	for _, job := range jobs {
		sum.Add(r.host.Metrics(job.JobId).Registered())
	}
	// A node without a name belongs to nobody. An invalid time would make all others worthless.
	return slices.DeleteFunc(sum.List(), func(n *pecanv1.NodeMetrics) bool {
		return n.Node == "" || !(n.SelfCpuS >= 0) || math.IsInf(n.SelfCpuS, 0)
	})
}

// busiest returns the elements of the most expensive node, and the CPU seconds of all nodes.
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

// isEnough reports whether an order can be planned from metrics with so many elements and CPU seconds.
func isEnough(elements uint64, cpu float64) bool { return elements >= minElements && cpu >= minCPU }

// PlanRequest asks for an order of the steps of a graph, from metrics of their costs. Planned answers it in any
// case.
type PlanRequest struct {
	Number      uint64
	Fingerprint string
	Plan        *pecanv1.Plan
	Options     *pecanv1.JobOptions
	Nodes       []*pecanv1.NodeMetrics
}
