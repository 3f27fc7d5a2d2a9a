package core

import (
	"math"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/pecan-ml/pecan/policies/autocache"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/dispatcher/core/jobmetrics"
)

// The benefit of a cache is the saving in one epoch that reads it, times the epochs that are expected to read it. The policy
// for caches predicts the saving with its decisions, and for pecan.cache() if the quotas have bounds. CacheMeasured records
// the saving. The jobs that could read the cache give the number of epochs: their history has the keys of the caches. Both
// are therefore known when the job has gone. Without a prediction, the CPU time of the steps upstream counts, as if all threads
// of the workers shared it.

// measuredRatio is by how much a figure must change to be recorded again.
const measuredRatio = 1.3

// benefit returns what autocache.Evict compares. job is the job that cacheJobs names for the cache. measured is false
// before the steps of a job with this cache were measured.
func (c *Core) benefit(cache *pecanv1.StoredCache, job *durable.Job) (seconds float64, measured bool) {
	seconds, measured = c.savedSeconds(cache, job)
	seconds *= growth(cache, job) / c.threads()
	if predicted := c.predictedBenefit(cache, job); predicted != nil {
		held := growth(cache, job) * float64(len(cache.Segments)) / float64(max(cache.Parts, 1))
		seconds, measured = *predicted*held, true
	}
	return seconds * c.expectedReads(cache, job), measured
}

// predictedBenefit returns the saving in an epoch that reads the whole cache, in seconds of a trainer; nil without a
// prediction. job may be nil.
func (c *Core) predictedBenefit(cache *pecanv1.StoredCache, job *durable.Job) *float64 {
	if job == nil {
		return cache.BenefitS
	}
	decision := job.CacheDecision
	if s := c.caches.decisions[job.JobId]; decision == nil && s != nil {
		decision = s.predicted
	}
	node := c.stepOfCache(job, cache.Key).GetNode()
	for _, p := range decision.GetCandidates() {
		if p.Node == node && p.Share > 0 && p.BenefitS != nil {
			return proto.Float64(*p.BenefitS / p.Share)
		}
	}
	return cache.BenefitS
}

// expectedReads returns how many epochs are expected to read a cache. It counts epochs of the job that uses the cache, which
// may be nil, and epochs of later jobs.
func (c *Core) expectedReads(cache *pecanv1.StoredCache, job *durable.Job) float64 {
	own, others := 0.0, []*pecanv1.PastJob(nil)
	if job != nil {
		own = autocache.ExpectOwn(float64(c.state.EpochsBegun(job)), autocache.PastJobs(c.state.PastJobs(job), c.unix()))
		others = c.otherReaders(job, cache.Key)
	} else if others = c.state.Readers(cache.Key, cache.Fingerprint, ""); len(others) == 0 {
		return 1
	}
	return own + autocache.ExpectOthers(c.cfg.CacheTTL.Hours(), autocache.PastJobs(others, c.unix())).Epochs
}

// otherReaders returns the other jobs that could read a cache of a job.
func (c *Core) otherReaders(job *durable.Job, key string) []*pecanv1.PastJob {
	return c.state.Readers(key, c.state.Dataset(job.DatasetId).GetFingerprint(), job.JobId)
}

// newCacheKeys returns the keys of the caches that a job could read, as its history has them. isNew is false if its history has
// these. They are the keys of its candidates, and that of the decided one in its order.
func (c *Core) newCacheKeys(job *durable.Job) (keys []string, isNew bool) {
	for _, step := range append(job.Plan.CacheSteps(), decidedStep(job)) {
		if key := c.cacheKey(job, step); key != "" {
			keys = append(keys, pecanv1.ShortCacheKey(key))
		}
	}
	slices.Sort(keys)
	keys = slices.Compact(keys)
	keys = keys[:min(len(keys), pecanv1.MaxCacheKeys)]
	if past := c.state.InHistory(job); past.GetKeysKnown() && slices.Equal(keys, past.GetCacheKeys()) {
		return nil, false
	}
	return keys, true
}

// threads counts the processors of all workers.
func (c *Core) threads() float64 {
	sum := int32(0)
	for _, worker := range c.workers {
		sum += worker.cores
	}
	return float64(max(sum, 1))
}

// savedSeconds returns the CPU seconds that an epoch saves if it reads the segments that a cache has. job is the job that
// cacheJobs names for the cache. measured is false before the steps of a job with this cache were measured.
func (c *Core) savedSeconds(cache *pecanv1.StoredCache, job *durable.Job) (seconds float64, measured bool) {
	elements := float64(c.state.CacheSize(cache.Key).Elements)
	if job != nil {
		if each, measured := upstreamSeconds(c.stepOfCache(job, cache.Key), c.profiles[job.JobId].Totals().Nodes); measured {
			return each * elements, true
		}
	}
	if cache.ComputeS > 0 || job == nil {
		return cache.ComputeS, cache.ComputeS > 0
	}
	earlier := jobmetrics.Profile{}
	earlier.Add(c.state.Profile(c.state.Dataset(job.DatasetId).GetFingerprint()).GetNodes())
	each, measured := upstreamSeconds(c.stepOfCache(job, cache.Key), earlier)
	return each * elements, measured
}

// upstreamSeconds returns the CPU seconds that the steps upstream of the cached step have spent for one element of it.
func upstreamSeconds(step *pecanv1.CachePlan, nodes jobmetrics.Profile) (each float64, measured bool) {
	for _, name := range step.GetUpstream() {
		if s := nodes[name].GetSelfCpuS(); s >= 0 && !math.IsInf(s, 0) {
			each += s
		}
	}
	n := nodes[step.GetNode()].GetElements()
	return each / float64(max(n, 1)), n > 0
}

// measureCaches records what the caches of a job save, if that is new.
func (c *Core) measureCaches(job *durable.Job) {
	for _, step := range cachedSteps(job) {
		cache := c.state.Cache(c.cacheKey(job, step))
		if cache == nil {
			continue
		}
		seconds, _ := c.savedSeconds(cache, job)
		found := &pecanv1.CacheMeasured{
			Key: cache.Key, ComputeS: seconds, BenefitS: c.predictedBenefit(cache, job), Fingerprint: c.state.Dataset(job.DatasetId).GetFingerprint(),
		}
		if differs(found.ComputeS, cache.ComputeS) || (found.BenefitS != nil) != (cache.BenefitS != nil) || differs(found.GetBenefitS(), cache.GetBenefitS()) {
			c.emit(&pecanv1.Record{Kind: &pecanv1.Record_CacheMeasured{CacheMeasured: found}})
		}
	}
}

// differs reports whether a figure is worth another record.
func differs(now, before float64) bool {
	return now > before*measuredRatio || now < before/measuredRatio
}

// predicted takes what a policy predicts of the cache of pecan.cache(), which nobody decides on.
func (c *Core) predicted(job *durable.Job, decision *pecanv1.CacheDecision) {
	if s := c.caches.decisions[job.JobId]; s != nil {
		s.predicted = proto.CloneOf(decision)
		c.measureCaches(job)
		c.caches.due = true
	}
}
