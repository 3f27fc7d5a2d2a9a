package core

import (
	"math"

	"github.com/pecan-ml/pecan/policies/autocache"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/dispatcher/core/measure"
)

// A decision on a cache predicts how long epochs take. Epochs that have ended correct it, if they computed all elements or read
// all of them, with the same workers from begin to end. The trainer reports its time when it closes an epoch. It must be the only
// one, and must have read nearly the whole epoch. The first epoch does not count: it also opens everything. Jobs with an objective
// are not measured, because their number of workers changes. The journal has the measured epochs with the decisions. So later jobs
// with the same graph begin with them, and so does the job after a restart.

const (
	// mostOfEpoch is the share of the elements of an epoch that a trainer must have taken after its first ones.
	mostOfEpoch = 0.9
	// boundBy is how many times as long as its trainer needs an epoch takes at most that the trainer bounds.
	boundBy = 1.1
	// inheritedS is the age in seconds up to which epochs of earlier jobs count. The host may have had other work then.
	inheritedS = 7 * 24 * 3600
	// similar is the relative difference up to which epochs of earlier jobs have as many elements, and workers as many cores.
	similar = 0.1
)

// servingWorkers is how many workers of each kind may serve a job, and how many cores they have.
type servingWorkers struct {
	remote, local int
	cores         int64
}

func (c *Core) servingWorkers(job *durable.Job) (n servingWorkers) {
	for id, worker := range c.workers {
		switch {
		case !c.usable(worker) || !c.placements.Serves(id, job):
		case worker.kind == "local":
			n.local, n.cores = n.local+1, n.cores+int64(worker.cores)
		default:
			n.remote, n.cores = n.remote+1, n.cores+int64(worker.cores)
		}
	}
	return n
}

// measuresEpochs reports whether epochs of a job are measured.
func measuresEpochs(job *durable.Job) bool {
	return decidesCache(job) && job.Options.GetPlacement().GetObjective() == ""
}

// beginMeasuring notes how an epoch begins.
func (c *Core) beginMeasuring(job *durable.Job, number uint64) {
	if !measuresEpochs(job) {
		return
	}
	state := c.volatileEpoch(passKey{job.JobId, number})
	state.opened, state.serving = c.now, c.servingWorkers(job)
	if job.CacheDecision.GetTried() {
		s := c.cachingOf(job)
		if s.tries == nil {
			s.tries = map[string]int{}
		}
		s.tries[job.CacheDecision.Node]++
	}
}

// trainerTook keeps the time of a trainer that closes an epoch.
func (c *Core) trainerTook(job *durable.Job, epoch *durable.Epoch, req *pecanv1.CloseEpochRequest) {
	state := c.epochs[passKey{job.JobId, epoch.Epoch}]
	if state == nil || !measuresEpochs(job) {
		return
	}
	all, took := float64(epoch.Elements()), float64(req.Elements)
	if took >= mostOfEpoch*all && took <= all && req.Seconds > 0 && req.Seconds <= (c.now-state.opened).Seconds() {
		state.seconds = req.Seconds * all / took
	}
}

// measureEpoch keeps the time of an epoch that ends.
func (c *Core) measureEpoch(job *durable.Job, epoch *durable.Epoch) {
	state := c.epochs[passKey{job.JobId, epoch.Epoch}]
	switch {
	case state == nil || state.seconds == 0 || epoch.Epoch == 0 || !epoch.Delivered():
		return
	case len(epoch.Order) > 0 || len(c.state.OrderFor(job)) > 0:
		// Predictions are for the registered order.
		return
	case state.computes > 0 || (state.gets > 0) != (epoch.CachedStep != ""):
		return
	case state.serving != c.servingWorkers(job):
		return
	}
	s, elements := c.cachingOf(job), epoch.Elements()
	trainer := 0.0
	for _, t := range c.placements.Trainers(job) {
		trainer = max(trainer, t.Demand()*float64(elements))
	}
	s.epochs = measure.KeepEpochs(append(s.epochs, &pecanv1.MeasuredEpoch{
		Node: epoch.CachedStep, Remote: uint32(state.serving.remote), Local: uint32(state.serving.local), Cores: uint32(state.serving.cores),
		Seconds: state.seconds, Elements: elements, AtS: c.unix(), JobId: job.JobId, TrainerBound: state.seconds <= boundBy*trainer,
	}), autocache.Newest)
}

// measuredEpochs returns the newest measured epochs of each choice that say something about epochs of a job with so many elements:
// those of the job, and those of earlier jobs if they are comparable.
func (c *Core) measuredEpochs(job *durable.Job, elements uint64, newest int) (epochs []*pecanv1.MeasuredEpoch) {
	if !measuresEpochs(job) {
		return nil
	}
	serving := c.servingWorkers(job)
	for _, e := range c.state.Caching(job).GetEpochs() {
		// This process has those that the job has measured since it started.
		known := e.JobId == job.JobId && e.AtS >= c.startedS
		if !known && (e.JobId == job.JobId || c.isComparable(e, serving, elements)) && (e.Node == "" || durable.CandidateStep(job.Plan, e.Node) != nil) {
			epochs = append(epochs, e)
		}
	}
	return measure.KeepEpochs(append(epochs, c.cachingOf(job).epochs...), newest)
}

// isComparable reports whether an epoch of an earlier job says something about one with these workers and so many elements. If its
// trainer was the bound, it says how fast that trainer was.
func (c *Core) isComparable(e *pecanv1.MeasuredEpoch, serving servingWorkers, elements uint64) bool {
	cores, then := float64(serving.cores)/float64(serving.remote+serving.local), float64(e.Cores)/(float64(e.Remote)+float64(e.Local))
	return !e.TrainerBound && c.unix()-e.AtS <= inheritedS && isSimilar(float64(e.Elements), float64(elements)) && isSimilar(then, cores)
}

func isSimilar(a, b float64) bool { return math.Abs(a-b) <= similar*b }

// cachingOf returns the state of the decision on a job's cache.
func (c *Core) cachingOf(job *durable.Job) *cachingState {
	s := c.caches.decisions[job.JobId]
	if s == nil {
		s = &cachingState{}
		c.caches.decisions[job.JobId] = s
	}
	return s
}
