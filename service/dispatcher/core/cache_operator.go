package core

import (
	"cmp"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// Caches returns what an operator sees of the recorded caches.
func (c *Core) Caches(req *pecanv1.CachesRequest) (*pecanv1.CachesResponse, error) {
	if req.Key != "" && c.state.Cache(req.Key) == nil {
		return nil, cacheUnknown("show", req.Key)
	}
	if req.Segments && req.Key == "" {
		// All decisions would wait for a copy of all segments.
		return nil, reason.New(reason.BadArgument, "show caches: segments are shown of one cache; give its key")
	}
	answer := &pecanv1.CachesResponse{ClusterId: c.state.ClusterID(), Quota: c.cfg.CacheQuota}
	jobs, names := c.cacheJobs(), map[string][]string{}
	for _, job := range c.state.Jobs() {
		for _, step := range cachedSteps(job) {
			key := c.cacheKey(job, step)
			names[key] = append(names[key], cmp.Or(job.Name, job.JobId))
		}
	}
	for _, key := range c.state.CacheKeys() {
		if req.Key != "" && req.Key != key {
			continue
		}
		cache, job := c.state.Cache(key), jobs[key]
		saves, _ := c.savedSeconds(cache, job)
		shown := &pecanv1.RecordedCache{
			Key: key, Tenant: cache.Tenant, State: "filling", Pinned: cache.Pinned, InUse: reads(job), Segments: uint32(len(cache.Segments)),
			Streams: cache.Parts, Bytes: c.state.CacheSize(key).Bytes, SavesS: saves, UnusedS: cache.UnusedS, Jobs: names[key],
		}
		if cache.Manifest != "" {
			shown.State = "committed"
		}
		if reads(job) || c.caches.used[key] {
			shown.UnusedS = 0
		}
		if req.Segments {
			shown.Files = cache.Segments
		}
		answer.Caches = append(answer.Caches, shown)
	}
	return answer, nil
}

// changeCache pins or removes a cache for an operator.
func (c *Core) changeCache(req *pecanv1.ChangeCacheRequest) error {
	cache := c.state.Cache(req.Key)
	if cache == nil {
		return cacheUnknown("change", req.Key)
	}
	switch req.Change {
	case pecanv1.ChangeCacheRequest_PIN, pecanv1.ChangeCacheRequest_UNPIN:
		if pinned := req.Change == pecanv1.ChangeCacheRequest_PIN; cache.Pinned != pinned {
			c.emit(&pecanv1.Record{Kind: &pecanv1.Record_CachePinned{CachePinned: &pecanv1.CachePinned{Key: req.Key, Pinned: pinned}}})
			c.caches.due = true
			clear(c.caches.unwanted)
		}
		return nil
	case pecanv1.ChangeCacheRequest_REMOVE:
		if job := c.jobOfCache(req.Key); reads(job) {
			return reason.New(reason.BadArgument, "remove cache %s: an epoch of job %q uses it and would write it again; end that epoch first", req.Key, cmp.Or(job.Name, job.JobId))
		}
		files := c.evict(req.Key, "an operator removed it")
		clear(c.caches.unwanted)
		c.removeFiles(files)
		return nil
	}
	return reason.New(reason.BadArgument, "change cache %s: unknown change %v; want to pin, unpin or remove it", req.Key, req.Change)
}

func cacheUnknown(what, key string) error {
	return reason.New(reason.CacheUnknown, "%s cache: no cache %.80q is recorded; pecanctl cache list shows the keys", what, key)
}
