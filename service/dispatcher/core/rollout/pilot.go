package rollout

import (
	"slices"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/dispatcher/core/jobmetrics"
)

// pilot follows an order in production, from the first epoch that was opened with it.
type pilot struct {
	// due is when the pilot is judged next.
	due time.Duration
	// baseline has the metrics of each job when it opened its first epoch in the order. epochs has the number of
	// its newest one.
	baseline map[string]*jobmetrics.Totals
	epochs   map[string]uint64
	// wholeEpochs: in some epoch all streams have the order.
	wholeEpochs bool
	// checked: the comparison was made, and the order is right.
	checked bool
	// waitsFor says what the pilot waits for.
	waitsFor string
}

// BeginPilot returns the streams of a new epoch that have its order; nil if all have. An order that only a position
// names is no pilot.
func (r *Rollouts) BeginPilot(job *pecanv1.StoredJob, number uint64, position *pecanv1.Position, order []string) (streams []uint32) {
	if len(order) == 0 || !slices.Equal(order, r.state.OrderFor(job)) {
		return nil
	}
	decided := r.state.DecisionFor(job)
	key := durable.KeyOf(decided)
	if p := r.pilots[key]; p == nil || p.checked {
		// Each epoch gets its own comparison.
		r.pilots[key] = &pilot{baseline: map[string]*jobmetrics.Totals{}, epochs: map[string]uint64{}}
	}
	p := r.pilots[key]
	if decided.Stage == pecanv1.OrderStage_ORDER_STAGE_PILOTED && p.comparableInEpoch(job, decided) {
		streams = firstStream(job, position)
	}
	p.wholeEpochs = p.wholeEpochs || len(streams) == 0
	p.epochs[job.JobId] = number
	if p.baseline[job.JobId] == nil {
		p.baseline[job.JobId] = r.host.Metrics(job.JobId)
	}
	return streams
}

// comparableInEpoch reports whether one stream of a job's next epoch shall have the order. A single stream, or
// one that must not differ from others, cannot be compared. If the last epoch ended without a decision, epochs
// are too short for that. In mode deterministic an epoch has one order.
func (p *pilot) comparableInEpoch(job *pecanv1.StoredJob, decided *pecanv1.StoredOrder) bool {
	if last, any := p.epochs[job.JobId]; any {
		if epoch := durable.FindEpoch(job, last); epoch == nil || len(epoch.Passes) == 0 || durable.Delivered(epoch) {
			return false
		}
	}
	return job.Plan.GetNumStreams() > 1 && (decided.ByStream || !job.Plan.HasClosing()) && job.Options.GetMode() != pecanv1.Mode_MODE_DETERMINISTIC
}

// firstStream returns the stream that is leased first, so that the others run at the same time for as long as
// possible; nil if all have ended.
func firstStream(job *pecanv1.StoredJob, position *pecanv1.Position) []uint32 {
	for stream := range uint32(job.Plan.GetNumStreams()) {
		if !slices.Contains(position.GetEnded(), stream) {
			return []uint32{stream}
		}
	}
	return nil
}

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
	jobs := map[durable.OrderKey][]*pecanv1.StoredJob{}
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
			continue
		}
		p.due = r.host.Now() + checkEvery
		r.judge(key, decided, p, jobs[key])
	}
}
