package core

import (
	"cmp"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
)

// usesCaches reports whether what a job stores may depend on the directories of its workers.
func usesCaches(job *durable.Job) bool {
	return len(job.Plan.CacheSteps()) > 0
}

// candidatesProblem says why nothing can be cached at the candidates of a job, and how to change that. It returns "" if
// something can be cached, and while no worker is registered.
func (c *Core) candidatesProblem(job *durable.Job) string {
	if !usesCaches(job) {
		return ""
	}
	known := false
	for id, worker := range c.workers {
		if c.placements.Serves(id, job) {
			if worker.caches {
				return ""
			}
			known = true
		}
	}
	if !known {
		return ""
	}
	return "no worker has a cache directory, so candidates pass elements on. Give all workers one shared directory (--cache-dir DIR)"
}

// explainCache adds which steps of a job may be cached.
func (c *Core) explainCache(job *durable.Job, response *pecanv1.ExplainResponse) {
	response.Cache = cacheOption(job.Options)
	response.CacheCandidates, response.CacheStatus = job.Plan.GetCacheCandidates(), c.cacheStatus(job)
	response.CacheProblem, response.CacheDecision = cmp.Or(c.cacheProblem(job), c.candidatesProblem(job)), job.CacheDecision
	if decidesCache(job) && job.CacheDecision == nil {
		response.CacheWaitsFor = c.decisionWaitsFor(job)
	}
}

// cacheOption says which steps a job may cache. Jobs of older dispatchers do not say.
func cacheOption(options *pecanv1.JobOptions) pecanv1.Cache {
	return cmp.Or(options.GetCache(), pecanv1.Cache_CACHE_CANDIDATES)
}
