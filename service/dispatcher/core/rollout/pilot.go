package rollout

import (
	"slices"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/dispatcher/core/jobmetrics"
)

// pilot measures an order in production, from the first epoch that was opened with it.
type pilot struct {
	// due is when the pilot is judged next.
	due time.Duration
	// baseline has the metrics of each job when it opened its first epoch in the order. epochs has the number of the job's
	// newest epoch in the order.
	baseline map[string]*jobmetrics.Totals
	epochs   map[string]uint64
	// wholeEpochs is set if in some epoch all streams have the order.
	wholeEpochs bool
	// checked is set if the comparison was made, and the order is right. doubtful is set if it was made, and the order seems to cost
	// more. loss is what it cost beyond the registered order, in seconds of CPU.
	checked, doubtful bool
	loss              float64
	// waitsFor says what the pilot waits for.
	waitsFor string
}

// BeginPilot returns the streams of a new epoch that have its order; nil if all streams have. An order that only a position
// names is no pilot. With whole, all streams have the order, because a cache is kept in this order.
func (r *Rollouts) BeginPilot(job *durable.Job, number uint64, position *pecanv1.Position, order []string, whole bool) (streams []uint32) {
	decided := r.state.DecisionFor(job)
	if len(order) == 0 || !slices.Equal(order, r.state.OrderFor(job)) || !needsProof(decided.GetPolicy()) {
		return nil
	}
	key := durable.KeyOf(decided)
	if p := r.pilots[key]; p == nil || p.checked {
		// Each epoch gets its own comparison.
		r.endPilot(key)
		r.pilots[key] = &pilot{baseline: map[string]*jobmetrics.Totals{}, epochs: map[string]uint64{}}
	}
	p := r.pilots[key]
	if !whole && decided.Stage == pecanv1.OrderStage_ORDER_STAGE_PILOTED && p.comparableInEpoch(job, decided) {
		streams = pilotStreams(job, position)
	}
	p.wholeEpochs = p.wholeEpochs || len(streams) == 0
	p.epochs[job.JobId] = number
	if p.baseline[job.JobId] == nil {
		p.baseline[job.JobId] = r.host.Metrics(job.JobId)
	}
	return streams
}

// comparableInEpoch reports whether some streams of a job's next epoch should have the order. A single stream cannot be
// compared, and neither can streams that must not differ. If the last epoch ended without a decision, epochs are too short
// for a comparison, unless the comparison was made and left a doubt.
func (p *pilot) comparableInEpoch(job *durable.Job, decided *pecanv1.StoredOrder) bool {
	if last, any := p.epochs[job.JobId]; any && !p.doubtful {
		if epoch := durable.FindEpoch(job, last); epoch == nil || len(epoch.Passes) == 0 || epoch.Delivered() {
			return false
		}
	}
	return mixes(job, decided)
}

// endPilot ends a pilot, and notes what it has cost.
func (r *Rollouts) endPilot(key durable.OrderKey) {
	if p := r.pilots[key]; p != nil {
		r.lost[key] += p.loss
		delete(r.pilots, key)
	}
}

// One of pilotShare streams has a piloted order, and at most maxPilotStreams of an epoch have it.
const (
	pilotShare      = 16
	maxPilotStreams = 64
)

// pilotStreams returns the streams of an epoch that have a piloted order; nil if all have ended. Up to 16 streams run
// together, and the first of them is leased first, so that the others run beside it for the longest time. If there are more
// streams, every 16th stream has the order. The first streams of an epoch do not, because much is opened then.
func pilotStreams(job *durable.Job, position *pecanv1.Position) (streams []uint32) {
	ended, err := position.EndedStreams(job.Plan.TotalStreams())
	if err != nil {
		return nil
	}
	total, stream := uint32(job.Plan.GetNumStreams()), uint32(0)
	if total > pilotShare {
		stream = pilotShare / 2
	}
	for stream < total && len(streams) < maxPilotStreams {
		if ended[stream/8]&(1<<(stream%8)) != 0 {
			stream++
			continue
		}
		streams = append(streams, stream)
		stream += pilotShare
	}
	return streams
}

// pilotOpenEpochs begins the pilots of orders that have none, in epochs that are read and were opened before the decision.
// After a restart it waits for the workers' metrics, because a pilot compares the metrics from its beginning on.
func (r *Rollouts) pilotOpenEpochs() {
	for _, job := range r.state.Jobs() {
		key, off := r.state.OrderKey(job)
		decided := r.state.Decision(key)
		if off != "" || job.Error != nil || decided.GetStage() != pecanv1.OrderStage_ORDER_STAGE_PILOTED || r.pilots[key] != nil || !mixes(job, decided) {
			continue
		}
		at := slices.IndexFunc(job.Epochs, func(epoch *durable.Epoch) bool {
			return len(epoch.Passes) > 0 && len(epoch.Order) == 0 && takes(epoch, decided.Order) && len(freshStreams(epoch, 1)) > 0
		})
		if at < 0 {
			continue
		}
		metrics := r.host.Metrics(job.JobId)
		if len(metrics.Nodes) == 0 {
			continue
		}
		epoch := job.Epochs[at]
		r.pilots[key] = &pilot{baseline: map[string]*jobmetrics.Totals{job.JobId: metrics}, epochs: map[string]uint64{}}
		r.spread(epoch, decided.Order, freshStreams(epoch, 1), 0, 0)
	}
}
