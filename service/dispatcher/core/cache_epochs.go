package core

import (
	"slices"

	"github.com/pecan-ml/pecan/policies/autocache"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/dispatcher/core/measure"
)

// A decision on a cache predicts how long epochs take. Epochs that have ended correct it, if they computed all elements or read
// all of them, with the same workers from begin to end. The trainer reports its time when it closes an epoch. It must be the only
// one, and must have read nearly the whole epoch. The first epoch does not count: it also opens everything. Jobs with an objective
// are not measured, because their number of workers changes. The journal has them with
// the decisions. So later jobs with the same graph begin with them. So does the job after a restart.

// mostOfEpoch is the share of the elements of an epoch that a trainer must have taken after its first ones.
const mostOfEpoch = 0.9

// servingWorkers is how many workers of each kind may serve a job.
type servingWorkers struct{ remote, local int }

func (c *Core) servingWorkers(job *durable.Job) (n servingWorkers) {
	for id, worker := range c.workers {
		switch {
		case !c.usable(worker) || !c.placements.Serves(id, job):
		case worker.kind == "local":
			n.local++
		default:
			n.remote++
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
	s := c.cachingOf(job)
	s.epochs = measure.KeepEpochs(append(s.epochs, &pecanv1.MeasuredEpoch{
		Node: epoch.CachedStep, Remote: uint32(state.serving.remote), Local: uint32(state.serving.local), Seconds: state.seconds,
	}), autocache.Newest)
}

// cachingOf returns the state of the decision on a job's cache.
func (c *Core) cachingOf(job *durable.Job) *cachingState {
	s := c.caches.decisions[job.JobId]
	if s == nil {
		s = &cachingState{}
		if measuresEpochs(job) {
			s.epochs = slices.Clone(c.state.Caching(job).GetEpochs())
		}
		c.caches.decisions[job.JobId] = s
	}
	return s
}
