package rollout

import (
	"slices"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/dispatcher/core/jobmetrics"
)

// pilot is how an order does in production, since an epoch was opened that has it.
type pilot struct {
	// due is when it is looked at next.
	due time.Duration
	// baseline has what is known of jobs when they opened their first epoch in the order, and epochs the number of their last one.
	baseline map[string]*jobmetrics.Totals
	epochs   map[string]uint64
	// wholeEpochs: there is an epoch whose streams have nothing beside them.
	wholeEpochs bool
	// checked: it was held against other figures, and is right.
	checked bool
	// waitsFor says in words what it waits for.
	waitsFor string
}

// BeginPilot gives the streams that have the order of an epoch that a job opens now; none: all of them. An order that nobody decided on
// here, but a position names, is no pilot.
func (r *Rollouts) BeginPilot(job *pecanv1.StoredJob, number uint64, position *pecanv1.Position, order []string) (streams []uint32) {
	if len(order) == 0 || !slices.Equal(order, r.state.OrderFor(job)) {
		return nil
	}
	decided := r.state.DecisionFor(job)
	key := durable.KeyOf(decided)
	if p := r.pilots[key]; p == nil || p.checked {
		// Every epoch is held against others by itself.
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

// comparableInEpoch tells whether one stream of a job's next epoch shall have the order. It tells nothing where it is the only one or must not
// differ from others, and an epoch that is over without a decision was too short. In mode deterministic an epoch has one order.
func (p *pilot) comparableInEpoch(job *pecanv1.StoredJob, decided *pecanv1.StoredOrder) bool {
	if last, any := p.epochs[job.JobId]; any {
		if epoch := durable.FindEpoch(job, last); epoch == nil || len(epoch.Passes) == 0 || durable.Delivered(epoch) {
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

// judgePilots holds orders that run against the registered one.
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
