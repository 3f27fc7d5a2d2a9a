package rollout

import (
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/dispatcher/core/jobmetrics"
)

// A decided order also takes effect in fresh streams of open epochs. First one stream has it, which is the pilot. Once the
// order is adopted, all fresh streams have it. So a job of one epoch gains too. A rollback takes the order from fresh
// streams. OrderSpread records each change before a worker gets such a stream.

// mixes reports whether streams of one epoch may begin in different orders. In mode deterministic an epoch begins in one order.
func mixes(job *durable.Job, decided *pecanv1.StoredOrder) bool {
	return job.Plan.GetNumStreams() > 1 && job.Options.GetMode() != pecanv1.Mode_MODE_DETERMINISTIC && mayLeave(job, decided)
}

// mayLeave reports whether streams may leave the order of their epoch. In mode deterministic, bytes depend on the order unless
// it is exact.
func mayLeave(job *durable.Job, decided *pecanv1.StoredOrder) bool {
	exact := job.Options.GetMode() != pecanv1.Mode_MODE_DETERMINISTIC || decided.Tolerance == pecanv1.OrderTolerance_ORDER_TOLERANCE_EXACT
	return exact && (decided.ByStream || !job.Plan.HasClosing())
}

// cachesOther reports whether the newest decision on a cache is for another order of the steps upstream of it.
func cachesOther(job *durable.Job, order []string) bool {
	now := job.CacheDecision
	return now.GetNode() != "" && !durable.CandidateStep(job.Plan, now.Node).SameInOrders(now.Order, order)
}

// takes reports whether fresh streams of an epoch may get an order. If a cache is kept in another order, they would have no
// cache.
func takes(epoch *durable.Epoch, order []string) bool {
	return epoch.CachedStep == "" || epoch.Job.CacheDecision.GetNode() != epoch.CachedStep || !cachesOther(epoch.Job, order)
}

// freshStreams returns up to n regular streams of an epoch that no worker has had, the first ones.
func freshStreams(epoch *durable.Epoch, n int) (streams []uint32) {
	if epoch.Error != nil {
		return nil
	}
	for from := uint32(0); len(streams) < n; {
		next, any := epoch.NextFresh(from)
		if !any || next >= epoch.Regular() {
			break
		}
		streams, from = append(streams, next), next+1
	}
	return streams
}

// extendPilot gives a piloted order to as many streams again. It does so if the streams with the order have ended, and too
// little was measured.
func (r *Rollouts) extendPilot(decided *pecanv1.StoredOrder, jobs []*durable.Job) {
	for _, job := range jobs {
		for _, epoch := range job.Epochs {
			ended := func(stream uint32) bool {
				s := epoch.Stream(stream)
				return s.Produced || s.Delivered
			}
			has := epoch.OrderStreams
			if len(has) == 0 || !slices.Equal(epoch.Order, decided.Order) || slices.ContainsFunc(has, func(stream uint32) bool { return !ended(stream) }) {
				continue
			}
			if more := freshStreams(epoch, min(len(has), maxPilotStreams-len(has))); len(more) > 0 {
				r.spread(epoch, epoch.Order, slices.Sorted(slices.Values(append(more, has...))), 0, 0)
			}
		}
	}
}

// spreadAdopted gives an adopted order to all streams of open epochs that no worker has had.
func (r *Rollouts) spreadAdopted(key durable.OrderKey, decided *pecanv1.StoredOrder) {
	for _, job := range r.jobsOf(key) {
		for _, epoch := range job.Epochs {
			from := firstUnleased(epoch)
			if !mixes(job, decided) || !takes(epoch, decided.Order) || epoch.Error != nil || epoch.WhollyOrdered() || from >= epoch.Regular() || len(epoch.Order) > 0 && !slices.Equal(epoch.Order, decided.Order) {
				continue
			}
			r.spread(epoch, decided.Order, leasedIn(epoch, epoch.OrderStreams), from, epoch.Regular())
			if !needsProof(key.Policy) {
				continue
			}
			if r.pilots[key] == nil {
				r.pilots[key] = &pilot{baseline: map[string]*jobmetrics.Totals{}, epochs: map[string]uint64{}, wholeEpochs: true}
			}
			if baseline := r.pilots[key].baseline; baseline[job.JobId] == nil {
				baseline[job.JobId] = r.host.Metrics(job.JobId)
			}
		}
	}
}

// withdraw takes an order that was rolled back from streams that no worker has had. If the order costs more, running streams
// continue in the registered order too, where that repeats no work.
func (r *Rollouts) withdraw(key durable.OrderKey, decided *pecanv1.StoredOrder, costs bool) {
	for _, job := range r.jobsOf(key) {
		for _, epoch := range job.Epochs {
			if !mayLeave(job, decided) || !slices.Equal(epoch.Order, decided.Order) || epoch.Error != nil {
				continue
			}
			for _, stream := range epoch.Active() {
				if costs && durable.HasOrder(epoch, stream.Stream) && stream.Stream < epoch.Regular() {
					r.take(epoch, stream, "its order of steps costs more than the registered order")
				}
			}
			if streams, from, below, changed := keeping(epoch); changed {
				r.spread(epoch, epoch.Order, streams, from, below)
			}
		}
	}
}

// keeping returns the streams that keep the order of an epoch, because they were begun in it: a list, and the longest run of
// regular streams. changed reports whether other streams have the order.
func keeping(epoch *durable.Epoch) (streams []uint32, from, below uint32, changed bool) {
	begin := uint32(0)
	for stream := range epoch.Total() {
		switch {
		case !durable.HasOrder(epoch, stream):
			begin = stream + 1
		case !epoch.KeepsOrder(stream):
			begin, changed = stream+1, true
		default:
			streams = append(streams, stream)
			if stream < epoch.Regular() && stream-begin >= max(1, below-from) {
				from, below = begin, stream+1
			}
		}
	}
	return slices.DeleteFunc(streams, func(stream uint32) bool { return from <= stream && stream < below }), from, below, changed
}

// firstUnleased returns the first regular stream such that no worker has had it or a later one.
func firstUnleased(epoch *durable.Epoch) uint32 {
	stream := epoch.Regular()
	for stream > 0 && !epoch.Leased(stream-1) {
		stream--
	}
	return stream
}

func leasedIn(epoch *durable.Epoch, streams []uint32) []uint32 {
	return slices.DeleteFunc(slices.Clone(streams), func(stream uint32) bool { return !epoch.Leased(stream) })
}

// spread records which streams of an epoch have an order.
func (r *Rollouts) spread(epoch *durable.Epoch, order []string, streams []uint32, from, below uint32) {
	if from >= below {
		from, below = 0, 0
	}
	if len(streams) == 0 && below == 0 {
		order = nil
	}
	r.host.Emit(&pecanv1.Record{Kind: &pecanv1.Record_OrderSpread{OrderSpread: &pecanv1.OrderSpread{
		JobId: epoch.Job.JobId, Epoch: epoch.Epoch, Order: slices.Clone(order), OrderStreams: streams, OrderFrom: from, OrderBelow: below,
	}}})
	r.host.Log(false, "order of steps spread to an open epoch", "job", epoch.Job.JobId, "epoch", epoch.Epoch, "streams", streams, "from", from, "below", below)
}

// jobsOf returns the jobs that have a decision.
func (r *Rollouts) jobsOf(key durable.OrderKey) (jobs []*durable.Job) {
	for _, job := range r.state.Jobs() {
		if of, off := r.state.OrderKey(job); off == "" && of == key {
			jobs = append(jobs, job)
		}
	}
	return jobs
}
