package core

import (
	"hash/fnv"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/dispatcher/core/measure"
	"github.com/pecan-ml/pecan/service/dispatcher/core/placement"
	"github.com/pecan-ml/pecan/service/dispatcher/core/rollout"
	"github.com/pecan-ml/pecan/service/graph/split"
)

// placementHost implements placement.Host.
type placementHost struct{ c *Core }

// Now implements placement.Host.
func (h placementHost) Now() time.Duration { return h.c.now }

// TimeOfDay implements placement.Host.
func (h placementHost) TimeOfDay() int64 { return h.c.unix() }

// Emit implements placement.Host.
func (h placementHost) Emit(record *pecanv1.Record) { h.c.emit(record) }

// Log implements placement.Host.
func (h placementHost) Log(text string, args ...any) { h.c.event(text, args...) }

// Ask implements placement.Host.
func (h placementHost) Ask(job *durable.Job, request placement.Request) (number uint64) {
	h.c.versions++
	request.Number, request.Plan, request.Left = h.c.versions, h.c.planNumber(job), h.c.elementsLeft(job)
	request.Predicted = h.c.predictedWorkers(job)
	h.c.effect(request)
	return request.Number
}

// elementsLeft expects the rest of the open epochs, and as many further epochs as the job's repeat or earlier jobs say. It
// returns 0 if the length of an epoch is unknown, or if epochs follow without an end.
func (c *Core) elementsLeft(job *durable.Job) (left float64) {
	each := float64(c.elementsOf(job, c.state.Profile(c.state.Dataset(job.DatasetId).GetFingerprint())))
	repeat := float64(job.Plan.GetRepeat())
	if each == 0 || repeat < 0 {
		return 0
	}
	begun := max(1, float64(c.state.EpochsBegun(job)))
	further := rollout.ExpectedEpochs(begun, c.state.PastJobs(job))
	if repeat > begun {
		further = repeat - begun
	}
	for _, epoch := range job.Epochs {
		if !durable.AllPrefetched(epoch) {
			left += max(0, each-float64(c.elementsArrived(epoch)))
		}
	}
	return left + further*each
}

// planNumber changes with what determines the cost of an element.
func (c *Core) planNumber(job *durable.Job) uint64 {
	h := fnv.New64a()
	h.Write([]byte(job.Plan.GetHash()))
	for _, step := range c.state.OrderFor(job) {
		h.Write([]byte(step + "\n"))
	}
	if step := decidedStep(job); step != nil {
		h.Write([]byte(c.cacheStage(c.cacheKey(job, step))))
	}
	return h.Sum64()
}

// predictedWorkers returns how many workers the newest decision on a cache expects to need, for what the epochs now do with it.
func (c *Core) predictedWorkers(job *durable.Job) measure.Predicted {
	decision := job.CacheDecision
	if decision == nil {
		return measure.Predicted{}
	}
	stage, epoch, step := "compute", decision.Compute, decidedStep(job)
	for _, candidate := range decision.Candidates {
		if step != nil && candidate.Node == decision.Node {
			if stage, epoch = "put "+step.Key, candidate.Put; c.cacheComplete(job, step) {
				stage, epoch = "get "+step.Key, candidate.Get
			}
		}
	}
	return measure.Predicted{Stage: stage, Remote: int(epoch.GetRemote()), Local: int(epoch.GetLocal())}
}

// cacheComplete reports whether all parts are recorded that the newest decision keeps of a step.
func (c *Core) cacheComplete(job *durable.Job, step *pecanv1.CachePlan) bool {
	return len(c.state.Cache(c.cacheKey(job, step)).GetSegments()) >= int(keptBelow(job, step))
}

// Move implements placement.Host.
func (h placementHost) Move(job *durable.Job, epoch *durable.Epoch, stream *pecanv1.StoredStream, why string) (ran bool) {
	if stream.Produced || stream.Delivered {
		return false
	}
	if closing := job.Plan.IsClosing(stream.Stream); closing || !movesCheaply(epoch) {
		return !closing
	}
	h.c.move(epoch, stream, why)
	return true
}

// movesCheaply reports whether another worker can continue the streams of an epoch, and some steps need not run again. Streams
// that fill a cache stay.
func movesCheaply(epoch *durable.Epoch) bool {
	job := epoch.Job
	strategy := job.Plan.GetResume().GetStrategy()
	cheap := (strategy == pecanv1.Resume_SEEK || strategy == pecanv1.Resume_PARTIAL) && split.IsRepeatable(job.Plan)
	return cheap && job.Options.GetMode() != pecanv1.Mode_MODE_AT_MOST_ONCE && !job.Plan.GetWritesFiles() && cachedStep(epoch) == nil
}

// Touch implements placement.Host.
func (h placementHost) Touch(epoch *durable.Epoch) { h.c.touchEpoch(epoch) }
