package rollout

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/dispatcher/core/jobmetrics"
)

// measure asks for a plan once the costs of the steps are known, from these jobs or from earlier ones.
func (r *Rollouts) measure(u *undecidedOrder, o *rollout) {
	o.due = r.host.Now() + checkEvery
	nodes, epochs := r.sum(u.jobs, (*jobmetrics.Totals).Parallel), r.epochsBegun(u.jobs)
	if !isEnough(jobmetrics.Busiest(nodes)) {
		nodes = r.sum(u.jobs, (*jobmetrics.Totals).Registered)
	}
	if elements, cpu := jobmetrics.Busiest(nodes); !isEnough(elements, cpu) {
		o.waitsFor = fmt.Sprintf("measured %d of %d elements of the busiest step and %.1f of %.1f s of CPU", min(elements, planElements), planElements, min(cpu, planCPU), planCPU)
		kept := r.state.Profile(u.key.Fingerprint)
		nodes, epochs, o.cpuWait = kept.GetNodes(), kept.GetEpochsBegun(), kept.GetCpuWait()
		if !isEnough(jobmetrics.Busiest(nodes)) {
			return
		}
	} else {
		metrics := r.host.Metrics(u.jobs[0].JobId)
		o.cpuWait = metrics.CPUWaitShare(jobmetrics.Valid(metrics.Computed()))
	}
	r.plans++
	o.planNumber, o.metrics, o.epochs, o.waitsFor = r.plans, nodes, epochs, "an order is being planned"
	r.host.Plan(PlanRequest{Number: o.planNumber, Fingerprint: u.key.Fingerprint, Plan: u.jobs[0].Plan, Options: optionsFor(u, 0), Nodes: nodes, Other: r.state.Profile(u.key.Fingerprint).GetOther()})
}

// KeepProfile keeps what an epoch's steps cost for the plans of later jobs, whatever the job's order is. It writes no profile
// that says nearly the same as the one before. An epoch in another order says nothing about the registered order. Streams
// that read a cache say nothing about the steps upstream of the cache. The explanation of a decision needs a profile from
// which an order can be planned.
func (r *Rollouts) KeepProfile(job *durable.Job, epoch *durable.Epoch) {
	fingerprint := r.state.Dataset(job.DatasetId).GetFingerprint()
	if fingerprint == "" || epoch.WhollyOrdered() {
		return
	}
	metrics, before := r.host.Metrics(job.JobId), r.state.Profile(fingerprint)
	if len(metrics.Cached) > 0 {
		return
	}
	now := &pecanv1.StoredProfile{
		Fingerprint: fingerprint, Nodes: jobmetrics.Valid(metrics.Parallel()), EpochsBegun: r.epochsBegun([]*durable.Job{job}), EpochElements: epoch.Elements(),
		Other: before.GetOther(), CpuWait: metrics.CPUWaitShare(jobmetrics.Valid(metrics.Computed())),
	}
	switch elements, cpu := jobmetrics.Busiest(now.Nodes); {
	case elements == 0 || cpu < minKeptCPU, r.state.HasDecision(fingerprint) && !isEnough(elements, cpu), !differs(before, now):
		return
	}
	r.storeProfile(now)
}

// differs reports whether the cost, the size or the number of elements differs.
func differs(before, now *pecanv1.StoredProfile) bool {
	changed := func(a, b float64) bool { return max(a, b) > 0 && max(a, b) >= keptRatio*min(a, b) }
	cost, size := perElement(before.GetNodes())
	newCost, newSize := perElement(now.GetNodes())
	return changed(cost, newCost) || changed(size, newSize) || changed(float64(before.GetEpochElements()), float64(now.GetEpochElements()))
}

// perElement returns the CPU seconds and the bytes of all steps for each element of the most expensive one.
func perElement(nodes []*pecanv1.NodeMetrics) (cost, size float64) {
	elements, cpu := jobmetrics.Busiest(nodes)
	if elements == 0 {
		return 0, 0
	}
	for _, node := range nodes {
		size += float64(node.BytesOut)
	}
	return cpu / float64(elements), size / float64(elements)
}

func (r *Rollouts) storeProfile(profile *pecanv1.StoredProfile) {
	r.host.Emit(&pecanv1.Record{Kind: &pecanv1.Record_ProfileLearned{ProfileLearned: &pecanv1.ProfileLearned{Profile: profile}}})
}

// epochsBegun sums the epochs that jobs have begun.
func (r *Rollouts) epochsBegun(jobs []*durable.Job) (epochs uint64) {
	for _, job := range jobs {
		epochs += r.state.EpochsBegun(job)
	}
	return epochs
}

// optionsFor returns the options of a decision's jobs with the effective tolerance, or with a wider one.
func optionsFor(u *undecidedOrder, wider pecanv1.OrderTolerance) *pecanv1.JobOptions {
	options := proto.Clone(u.jobs[0].Options).(*pecanv1.JobOptions)
	options.OrderTolerance = max(u.key.Tolerance, wider)
	return options
}

// sum sums a part of the metrics of jobs.
func (r *Rollouts) sum(jobs []*durable.Job, part func(*jobmetrics.Totals) []*pecanv1.NodeMetrics) []*pecanv1.NodeMetrics {
	sum := jobmetrics.Profile{}
	for _, job := range jobs {
		sum.Add(part(r.host.Metrics(job.JobId)))
	}
	return jobmetrics.Valid(sum.List())
}

// isEnough reports whether an order can be planned from metrics with this many elements and CPU seconds.
func isEnough(elements uint64, cpu float64) bool { return elements >= planElements && cpu >= planCPU }

// PlanRequest asks for an order of the steps of a graph, from metrics of their costs. Planned answers it in any
// case.
type PlanRequest struct {
	Number      uint64
	Fingerprint string
	Plan        *pecanv1.Plan
	Options     *pecanv1.JobOptions
	Nodes       []*pecanv1.NodeMetrics
	// Other has metrics in another order; nil without any.
	Other *pecanv1.MeasuredOrder
}
