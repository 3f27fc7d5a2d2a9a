package rollout

import (
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/dispatcher/core/jobmetrics"
)

// firstEpochs is how many further epochs are expected of a job, if neither its data nor earlier jobs say how long it is.
const firstEpochs = 3

// work sums the done and the remaining work of the jobs of a rollout in the registered order, in seconds of CPU.
type work struct{ done, left float64 }

// workOf sums the work of jobs. epoch is the cost of one epoch; 0 if that is unknown.
func (r *Rollouts) workOf(jobs []*durable.Job, epoch float64) (sum work) {
	for _, job := range jobs {
		_, done := jobmetrics.Busiest(r.host.Metrics(job.JobId).Nodes.List())
		sum.done += done
		sum.left += r.left(job, epoch, done)
	}
	return sum
}

// left expects the rest of the open epochs, and as many further ones as earlier jobs have read. If the length of an epoch is
// unknown, the open one lasts as long again, and more epochs follow.
func (r *Rollouts) left(job *durable.Job, epoch, done float64) float64 {
	begun := max(1, float64(r.state.EpochsBegun(job)))
	if epoch == 0 {
		epoch = done/begun + done
		return max(begun*epoch-done, done) + firstEpochs*epoch
	}
	return max(0, begun*epoch-done) + epoch*ExpectedEpochs(begun, r.state.PastJobs(job))
}

// epochCost returns the CPU seconds of an epoch, if so many elements took spent seconds; 0 if that is unknown. An epoch has as
// many elements as the plan says, or as an earlier epoch had.
func (r *Rollouts) epochCost(key durable.OrderKey, jobs []*durable.Job, spent float64, produced uint64) float64 {
	if produced == 0 {
		return 0
	}
	elements := float64(jobs[0].Plan.GetCardinality())
	if elements <= 0 {
		elements = float64(r.state.Profile(key.Fingerprint).GetEpochElements())
	}
	return spent / float64(produced) * elements
}

// allowedLoss returns the CPU seconds that an order may cost beyond the registered order, from the work of its jobs. If the
// length of an epoch is unknown, only the work that is done counts.
func (r *Rollouts) allowedLoss(key durable.OrderKey, decided *pecanv1.StoredOrder, jobs []*durable.Job) float64 {
	nodes := r.sum(jobs, (*jobmetrics.Totals).Registered)
	if elements, _ := jobmetrics.Busiest(nodes); elements == 0 {
		nodes = r.state.Profile(key.Fingerprint).GetNodes()
	}
	_, spent := jobmetrics.Busiest(nodes)
	produced := uint64(0)
	for _, step := range decided.Order {
		if at := slices.IndexFunc(nodes, func(n *pecanv1.NodeMetrics) bool { return n.Node == step }); at >= 0 && nodes[at].Elements > 0 {
			produced = nodes[at].Elements
		}
	}
	epoch := r.epochCost(key, jobs, spent, produced)
	all := r.workOf(jobs, epoch)
	if epoch == 0 {
		all.left = 0
	}
	return lossShare * (all.done + all.left)
}

// ExpectedEpochs returns how many further epochs a job will begin that has begun some. The earlier jobs that began more
// epochs count. One more job counts: it continues for as many epochs as it has finished. Each expected epoch therefore
// follows from the data or from earlier jobs. A trial before the first end of an epoch costs no more than the expected work
// allows.
func ExpectedEpochs(begun float64, past []*pecanv1.PastJob) float64 {
	sum, n := begun-1, 1.0
	for _, earlier := range past {
		if epochs := float64(earlier.Epochs); epochs > begun {
			sum, n = sum+epochs-begun, n+1
		}
	}
	return sum / n
}
