package core

import (
	"maps"
	"slices"
	"time"

	"github.com/pecan-ml/pecan/policies/autocache"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
)

// The quotas bound the recorded caches of this cluster. autocache.Evict chooses those that stay. A cache that an open epoch
// reads counts as pinned. A cache that is being written counts with its final size. If it does not stay, its segments are
// removed, and no more of it is written before space is free again.

const (
	// usePeriod is the longest time between two records of which caches were used.
	usePeriod = time.Hour
	// usesInTTL is the number of such records in a TTL.
	usesInTTL = 8
	// measureWait is how many heartbeats a decision waits for the cost of a cache that is being written.
	measureWait = 5
	// maxRemoved bounds the names in one command, which a worker takes up to 64 MiB.
	maxRemoved = 100_000
)

// cachesState is the volatile state of all caches.
type cachesState struct {
	// read has the caches that the dispatcher has let a worker read. used has those that were read or written since the last
	// record of used caches; recorded is the time of that record.
	read, used map[string]bool
	recorded   time.Duration
	// useUnrecorded is set if an epoch uses a cache that the records call unused. The next tick then records which caches
	// were used.
	useUnrecorded bool
	// due is set if the quotas may be exceeded. waitsSince is when the decision began to wait for a cost; 0 if it does not
	// wait.
	due        bool
	waitsSince time.Duration
	// unwanted has caches that are not written, because the quotas keep others, and why.
	unwanted map[string]string
	// keys has the keys of the caches of steps. The plan and the options of a job do not change.
	keys map[jobStep]string
	// decisions has the decisions on cached steps that jobs wait for.
	decisions map[string]*cachingState
	// shared has the open epochs of each cache; nil if they changed.
	shared map[string]*sharedCache
}

func newCachesState() cachesState {
	// The quotas may differ from those of the process before.
	return cachesState{
		read: map[string]bool{}, used: map[string]bool{}, unwanted: map[string]string{}, keys: map[jobStep]string{}, decisions: map[string]*cachingState{}, due: true,
	}
}

// stepCaches does what follows from time alone.
func (c *Core) stepCaches() {
	if c.state.Caches() == 0 {
		c.caches.recorded = c.now
		clear(c.caches.used)
		return
	}
	if passed := c.now - c.caches.recorded; passed >= c.usePeriod() || c.caches.useUnrecorded {
		c.recordUses(passed)
	}
	if c.caches.due {
		c.boundCaches()
	}
}

// usePeriod returns the longest time between two records of which caches were used.
func (c *Core) usePeriod() time.Duration {
	if c.cfg.CacheTTL > 0 {
		return min(usePeriod, c.cfg.CacheTTL/usesInTTL)
	}
	return usePeriod
}

// startCaches continues the time for which caches were not used. The earlier process ran for one period at most after its last
// record, or for less if the time of day says so. Without this time, a dispatcher that restarts often would keep caches forever.
func (c *Core) startCaches() {
	c.caches.recorded = c.now
	last := c.state.CachesUsedS()
	if last > 0 {
		c.caches.recorded -= min(max(time.Duration(c.unix()-last)*time.Second, 0), c.usePeriod())
	}
	// Without a record there is no time to continue from.
	c.caches.useUnrecorded = last == 0 && c.state.Caches() > 0
}

// useCache notes that an epoch uses a cache. The next tick records it if the cache was unused for a while before: after a restart,
// the cache must not count as unused.
func (c *Core) useCache(key string) {
	c.caches.useUnrecorded = c.caches.useUnrecorded || !c.caches.used[key] && c.state.Cache(key).GetUnusedS() > 0
	c.caches.used[key] = true
}

// recordUses records which caches were used in the time that has passed since the last record.
func (c *Core) recordUses(passed time.Duration) {
	jobs := c.cacheJobs()
	used := &pecanv1.CachesUsed{Seconds: passed.Seconds(), AtS: c.unix()}
	for _, key := range c.state.CacheKeys() {
		if c.caches.used[key] || reads(jobs[key]) {
			used.Keys = append(used.Keys, key)
		}
	}
	c.emit(&pecanv1.Record{Kind: &pecanv1.Record_CachesUsed{CachesUsed: used}})
	c.caches.recorded, c.caches.due, c.caches.useUnrecorded = c.now, true, false
	clear(c.caches.used)
	maps.DeleteFunc(c.caches.unwanted, func(key, _ string) bool { return jobs[key] == nil })
}

// cacheJobs returns a job of each cache's key, one that reads if there is one.
func (c *Core) cacheJobs() map[string]*durable.Job {
	jobs := map[string]*durable.Job{}
	for _, job := range c.state.Jobs() {
		for _, step := range cachedSteps(job) {
			key := c.cacheKey(job, step)
			jobs[key] = preferReader(jobs[key], job)
		}
	}
	return jobs
}

// preferReader returns one of two jobs with the same cache. It keeps the first one, which may be nil, unless only the other
// one reads.
func preferReader(first, other *durable.Job) *durable.Job {
	if first == nil || reads(other) && !reads(first) {
		return other
	}
	return first
}

// reads reports whether a job has an open epoch. It may be nil.
func reads(job *durable.Job) bool { return job != nil && len(job.Epochs) > 0 }

// boundCaches evicts the caches for which the quotas have no room, and those that were not used for the TTL.
func (c *Core) boundCaches() {
	c.caches.due = false
	jobs, quota := c.cacheJobs(), c.cacheQuota()
	all := c.cacheCandidates(jobs)
	if !exceeds(all, quota) {
		c.caches.waitsSince = 0
		return
	}
	waits := false
	for i, each := range all {
		cache, job := c.state.Cache(each.Key), jobs[each.Key]
		benefit, measured := c.benefit(cache, job)
		all[i].Benefit = benefit
		waits = waits || !measured && job != nil
	}
	if waits && c.caches.waitsSince == 0 {
		c.caches.waitsSince = c.now
	}
	if waits && c.now-c.caches.waitsSince < measureWait*c.heartbeatPeriod {
		// Meanwhile only expired caches go.
		c.caches.due, quota = true, autocache.Quota{}
	} else {
		c.caches.waitsSince = 0
	}
	c.evictAll(all, autocache.Evict(all, quota), jobs)
}

// cacheCandidates returns all caches without their benefits.
func (c *Core) cacheCandidates(jobs map[string]*durable.Job) (all []autocache.Cache) {
	for _, key := range c.state.CacheKeys() {
		cache, job := c.state.Cache(key), jobs[key]
		each := autocache.Cache{
			Key: key, Tenant: cache.Tenant, Bytes: float64(c.state.CacheSize(key).Bytes) * growth(cache, job),
			Pinned: cache.Pinned || reads(job) && cache.Manifest != "", TTL: c.cfg.CacheTTL.Hours(),
		}
		if !c.caches.used[key] {
			each.Unused = cache.UnusedS / time.Hour.Seconds()
		}
		all = append(all, each)
	}
	return all
}

// evictAll removes the caches that do not stay.
func (c *Core) evictAll(all []autocache.Cache, e autocache.Eviction, jobs map[string]*durable.Job) {
	var files []string
	freed, unwanted := false, map[string]string{}
	for i, each := range all {
		if e.Kept[i] {
			continue
		}
		why := e.Reasons[i]
		if expired := each.TTL > 0 && each.Unused > each.TTL; jobs[each.Key] != nil && !expired {
			unwanted[each.Key] = why
		}
		freed = freed || !isWritten(c.state.Cache(each.Key), jobs[each.Key])
		files = append(files, c.evict(each.Key, why)...)
	}
	if freed {
		// Others may fit now.
		clear(c.caches.unwanted)
	}
	maps.Copy(c.caches.unwanted, unwanted)
	c.removeFiles(files)
}

// isWritten reports whether an open epoch writes a cache. job is the job that cacheJobs names for the cache.
func isWritten(cache *pecanv1.StoredCache, job *durable.Job) bool {
	return reads(job) && cache.Manifest == ""
}

// growth returns how many times larger a cache will be.
func growth(cache *pecanv1.StoredCache, job *durable.Job) float64 {
	if !isWritten(cache, job) || len(cache.Segments) == 0 {
		return 1
	}
	return float64(cache.Parts) / float64(len(cache.Segments))
}

func (c *Core) cacheQuota() autocache.Quota {
	quota := autocache.Quota{Bytes: float64(c.cfg.CacheQuota), Tenants: map[string]float64{}}
	for name, tenant := range c.cfg.Tenants {
		quota.Tenants[name] = float64(tenant.CacheBytes)
	}
	return quota
}

// exceeds reports whether a cache has expired, or the caches exceed a quota.
func exceeds(all []autocache.Cache, quota autocache.Quota) bool {
	sum, tenants := 0.0, map[string]float64{}
	for _, each := range all {
		if !each.Pinned && each.TTL > 0 && each.Unused > each.TTL {
			return true
		}
		sum, tenants[each.Tenant] = sum+each.Bytes, tenants[each.Tenant]+each.Bytes
		if bound := quota.Tenants[each.Tenant]; bound > 0 && tenants[each.Tenant] > bound || quota.Bytes > 0 && sum > quota.Bytes {
			return true
		}
	}
	return false
}

// evict removes a cache and returns the names of its files.
func (c *Core) evict(key, why string) (files []string) {
	for _, segment := range c.state.Cache(key).Segments {
		files = append(files, segment.Name)
	}
	c.event("cache evicted", "cache", key, "bytes", c.state.CacheSize(key).Bytes, "why", why)
	c.emit(&pecanv1.Record{Kind: &pecanv1.Record_CacheEvicted{CacheEvicted: &pecanv1.CacheEvicted{Key: key, Why: why}}})
	delete(c.caches.read, key)
	return files
}

// removeFiles lets a worker remove files that no record names any more. What is left is found when a worker lists the
// directory.
func (c *Core) removeFiles(names []string) {
	names = names[:min(len(names), maxRemoved)]
	for _, id := range slices.Sorted(maps.Keys(c.workers)) {
		if worker := c.workers[id]; worker.caches && worker.session != 0 && len(names) > 0 {
			c.command(id, &pecanv1.WorkerCommand{Kind: &pecanv1.WorkerCommand_CacheOrphans{CacheOrphans: &pecanv1.CacheOrphans{Names: names}}})
			return
		}
	}
}
