package core

import (
	"math"

	"github.com/pecan-ml/pecan/policies/autocache"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/dispatcher/core/measure"
)

// A decision on a cache predicts how long epochs take. Epochs that have ended correct it, if they computed all elements or read
// all of them, with the same workers from begin to end. Trainers report their time when they close an epoch. The first epoch
// does not count: it also opens everything. The times are volatile: after a restart, predictions count until others are known.

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

// trainerTook adds how fast a trainer took the elements of an epoch that it closes. Trainers of a shared job take them at once.
func (c *Core) trainerTook(job *durable.Job, epoch *durable.Epoch, req *pecanv1.CloseEpochRequest) {
	if perSecond := float64(req.Elements) / req.Seconds; perSecond > 0 && !math.IsInf(perSecond, 1) {
		c.volatileEpoch(passKey{job.JobId, epoch.Epoch}).perSecond += perSecond
	}
}

// measureEpoch keeps the time of an epoch that ends.
func (c *Core) measureEpoch(job *durable.Job, epoch *durable.Epoch) {
	state := c.epochs[passKey{job.JobId, epoch.Epoch}]
	switch {
	case !decidesCache(job) || state == nil || state.perSecond == 0 || epoch.Epoch == 0 || !epoch.Delivered() || len(c.state.OrderFor(job)) > 0:
		return
	case state.puts > 0 || (state.gets > 0) != (epoch.CachedStep != ""):
		return
	case epoch.CachedStep != "" && c.state.Cache(c.cacheKey(job, cachedStep(epoch))).GetManifest() == "":
		return
	case state.serving != c.servingWorkers(job):
		return
	}
	s := c.cachingOf(job)
	s.epochs = measure.KeepEpochs(append(s.epochs, measure.Epoch{
		Node: epoch.CachedStep, Remote: state.serving.remote, Local: state.serving.local, Seconds: float64(epoch.Elements()) / state.perSecond,
	}), autocache.Newest)
}

// cachingOf returns the state of the decision on a job's cache.
func (c *Core) cachingOf(job *durable.Job) *cachingState {
	s := c.caches.decisions[job.JobId]
	if s == nil {
		s = &cachingState{}
		c.caches.decisions[job.JobId] = s
	}
	return s
}
