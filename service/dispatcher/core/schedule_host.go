package core

import (
	"slices"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/dispatcher/core/placement"
	"github.com/pecan-ml/pecan/service/dispatcher/core/schedule"
	"github.com/pecan-ml/pecan/service/graph/split"
)

// scheduleHost implements schedule.Host.
type scheduleHost struct{ c *Core }

// Ready implements schedule.Host. A stream waits while another one that crashed workers is opened. It waits while the
// files of its last run are closed. The last closing stream also waits until it is known which rows it leaves.
func (h scheduleHost) Ready(epoch *durable.Epoch) func(stream uint32) bool {
	first := h.c.openingTrial(epoch)
	last, _ := epoch.Job.Plan.LastClosing()
	return func(stream uint32) bool {
		if epoch.Job.Plan.GetCarry() && stream == last && !epoch.Carried {
			return false
		}
		trialled := first == nil || first.Stream == stream || epoch.Find(stream).GetOpeningCrashes() == 0
		return trialled && len(h.c.stoppingRunsOf(epoch.Job, stream)) == 0
	}
}

// Later implements schedule.Host.
func (h scheduleHost) Later(epoch *durable.Epoch) func(stream uint32) bool {
	return h.c.computedElsewhere(epoch)
}

// Avoid implements schedule.Host.
func (h scheduleHost) Avoid(epoch *durable.Epoch, stream uint32) []string {
	if volatileStream := h.c.findVolatile(pecanv1.StreamKey{Job: epoch.Job.JobId, Epoch: epoch.Epoch, Stream: stream}); volatileStream != nil {
		return volatileStream.avoid
	}
	return nil
}

// Members implements schedule.Host.
func (h scheduleHost) Members(job *durable.Job) map[string]bool {
	return h.c.placements.Members(job)
}

// Locals implements schedule.Host.
func (h scheduleHost) Locals(job *durable.Job) (workers map[string]bool, only bool) {
	return h.c.placements.Locals(job)
}

// preemptEvery is the period in which preempt looks. A job waits for one or two periods, which is less than a measurement
// window of a placement.
const preemptEvery = time.Second

// preempt takes streams from jobs with more than their share of the slots, for jobs whose trainers wait.
func (c *Core) preempt() {
	if c.now < c.preemptAt {
		return
	}
	c.preemptAt = c.now + preemptEvery
	for _, taken := range c.schedule.Preempt(c.isStarved, movesAtOnce) {
		c.move(taken.Epoch, taken.Epoch.Find(taken.Stream), "a job with a smaller share of the slots waits")
	}
}

// movesAtOnce reports whether the streams of an epoch can continue at once on other workers.
func movesAtOnce(epoch *durable.Epoch) bool {
	return split.MovesAtOnce(epoch.Job.Plan, epoch.Job.Options) && cachedStep(epoch) == nil
}

// takeAtOnce takes a stream that is not produced from its connected worker, if it can continue at once elsewhere.
func (c *Core) takeAtOnce(epoch *durable.Epoch, stream *pecanv1.StoredStream, why string) bool {
	worker := c.workers[stream.Worker.GetWorkerId()]
	if worker == nil || worker.away || stream.Produced || stream.Delivered || !movesAtOnce(epoch) {
		return false
	}
	c.move(epoch, stream, why)
	return true
}

// isStarved reports whether a trainer of an epoch waits for elements.
func (c *Core) isStarved(epoch *durable.Epoch) bool {
	return slices.ContainsFunc(epoch.Passes, func(pass *pecanv1.StoredPass) bool { return c.starving(epoch, pass.ClientId) })
}

// refreshWorker reports what the scheduler and the placements need to know of a worker.
func (c *Core) refreshWorker(id string) {
	worker := c.workers[id]
	worker.reportedUsable = c.usable(worker)
	c.schedule.SetWorker(schedule.Worker{
		ID: id, Usable: worker.reportedUsable, MaxStreams: int(worker.maxStreams), Order: worker.order, Position: c.listPosition(worker.address.GetTcp()),
		Local: worker.kind == "local",
	})
	c.placements.SetWorker(placement.Worker{
		ID: id, Host: worker.address.GetHostId(), Trainer: worker.trainer, Local: worker.kind == "local", Caches: worker.caches,
		Usable: worker.reportedUsable, Away: worker.away, Leaving: worker.departure != nil, Unheard: worker.unheardSinceRestart,
		Order: worker.order, Cores: int(worker.cores), Totals: &worker.totals, Load: worker.host,
	})
}
