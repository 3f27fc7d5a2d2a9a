package core

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/graph/split"
)

// A cache holds the elements at the cached step of a dataset, one segment for each part of its source. A worker writes a
// segment where its StartStream says so, and reports it when it is durable. The core records the segment, and commits the
// cache with the last one. If the plan has no parts, the share of each stream is one, and workers read only committed caches:
// parts are read as soon as they are recorded. The files belong to the workers: when one reports an unusable segment, the core
// removes its record, and the next epoch writes it again.

const (
	// maxCaches bounds the recorded caches, maxSegmentName the length of a file name.
	maxCaches      = 1000
	maxSegmentName = 200
	// partialSuffix ends the name of a file that is still being written. It equals writingSuffix of service/cache,
	// which this package may not import.
	partialSuffix = ".tmp"
)

// cacheKey returns the key of a job's cache; empty without a cache.
func (c *Core) cacheKey(job *durable.Job) string {
	key, known := c.caches.keys[job.JobId]
	if !known {
		key = c.cfg.CacheKey(job.Plan, job.Options)
		c.caches.keys[job.JobId] = key
	}
	return key
}

// jobOfCache returns a job of a key, one that reads if there is one; nil without a job.
func (c *Core) jobOfCache(key string) (found *durable.Job) {
	for _, job := range c.state.Jobs() {
		if key != "" && c.cacheKey(job) == key {
			found = preferReader(found, job)
		}
	}
	return found
}

// CacheKey returns the key of the cache of a job with a plan and options; empty without a cache. Tenants have keys of their
// own, unless they share caches.
func (c Config) CacheKey(plan *pecanv1.Plan, options *pecanv1.JobOptions) string {
	key := plan.GetCache().GetKey()
	if plan.GetCache().GetSeeded() {
		sum := sha256.Sum256(binary.BigEndian.AppendUint64([]byte("pecan cache seed 1 "+key), options.GetSeed()))
		key = hex.EncodeToString(sum[:])
	}
	if tenant := options.EffectiveTenant(); key != "" && tenant != pecanv1.DefaultTenant && !c.CacheShared {
		sum := sha256.Sum256([]byte("pecan cache tenant 1 " + tenant + " " + key))
		key = hex.EncodeToString(sum[:])
	}
	return key
}

// cacheAction says what a worker does at the cached step of a stream: read, write or (nil) nothing.
func (c *Core) cacheAction(job *durable.Job, epoch uint64, stream *pecanv1.StoredStream) *pecanv1.CacheAction {
	key := c.cacheKey(job)
	if key == "" || job.Plan.IsClosing(stream.Stream) || stream.Worker == nil {
		return nil
	}
	worker := c.workers[stream.Worker.WorkerId]
	if worker == nil || !worker.caches {
		return nil
	}
	cache := c.state.Cache(key)
	if job.Plan.GetCache().GetParts() > 0 {
		return c.partsAction(job, cache, key, split.Run{Stream: int(stream.Stream), Epoch: epoch, Seed: job.Options.GetSeed()})
	}
	at, found := durable.FindSegment(cache, stream.Stream)
	switch {
	case cache.GetManifest() != "":
		c.caches.read[key], c.caches.used[key] = true, true
		return &pecanv1.CacheAction{Key: key, Segments: cache.Segments[at : at+1 : at+1]}
	case found, c.caches.unwanted[key] != "":
		// The segment is recorded, and other streams' segments are missing, or the quotas have no room for the cache.
		return nil
	}
	c.caches.used[key] = true
	return &pecanv1.CacheAction{Key: key}
}

// partsAction says which parts of a stream are recorded. The worker reads these and writes the others.
func (c *Core) partsAction(job *durable.Job, cache *pecanv1.StoredCache, key string, run split.Run) *pecanv1.CacheAction {
	if c.caches.unwanted[key] != "" {
		return nil
	}
	action := &pecanv1.CacheAction{Key: key}
	for _, part := range split.PartsOf(job.Plan, run) {
		if at, found := durable.FindSegment(cache, part); found {
			action.Segments = append(action.Segments, cache.Segments[at])
		}
	}
	c.caches.used[key] = true
	c.caches.read[key] = c.caches.read[key] || len(action.Segments) > 0
	return action
}

// partsOf returns the number of segments of a complete cache.
func partsOf(plan *pecanv1.Plan) uint32 {
	return cmp.Or(plan.GetCache().GetParts(), uint32(plan.GetNumStreams()))
}

// segmentWritten records a durable segment, and commits its cache if it was the last one. The first segment of a
// part stays, whoever wrote it: another run or another job produces the same elements.
func (c *Core) segmentWritten(workerID string, segment *pecanv1.CacheSegment) {
	c.command(workerID, &pecanv1.WorkerCommand{Kind: &pecanv1.WorkerCommand_CacheSegmentAck{CacheSegmentAck: &pecanv1.CacheSegmentAck{
		Name: segment.GetName(), Accepted: c.recordSegment(workerID, segment),
	}}})
}

func (c *Core) recordSegment(workerID string, segment *pecanv1.CacheSegment) bool {
	job := c.jobOfCache(segment.GetKey())
	switch {
	case job == nil, segment.Parts != partsOf(job.Plan), segment.Part >= segment.Parts,
		c.caches.unwanted[segment.Key] != "", len(segment.Name) > maxSegmentName, len(segment.Source) > maxSegmentName, segment.Bytes < 0, !strings.HasPrefix(segment.Name, c.ownNames()+segment.Key+"-"):
		return false
	}
	cache := c.state.Cache(segment.Key)
	if at, taken := durable.FindSegment(cache, segment.Part); taken {
		return cache.Segments[at].Name == segment.Name
	}
	if cache == nil && !c.makeRoomForCache() {
		return false
	}
	segment = proto.Clone(segment).(*pecanv1.CacheSegment)
	c.emit(&pecanv1.Record{Kind: &pecanv1.Record_CacheSegmentAdded{CacheSegmentAdded: &pecanv1.CacheSegmentAdded{
		Segment: segment, Tenant: job.Options.EffectiveTenant(),
	}}})
	c.caches.due = true
	cache = c.state.Cache(segment.Key)
	if len(cache.Segments) == int(cache.Parts) {
		c.emit(&pecanv1.Record{Kind: &pecanv1.Record_CacheCommitted{CacheCommitted: &pecanv1.CacheCommitted{Key: cache.Key, Manifest: durable.Manifest(cache)}}})
		c.measureCache(job)
		c.event("cache committed", "cache", cache.Key, "segments", len(cache.Segments), "bytes", cacheBytes(cache), "last_worker", workerID)
	}
	return true
}

// makeRoomForCache evicts the oldest cache that no job uses if there are too many.
func (c *Core) makeRoomForCache() bool {
	if c.state.Caches() < maxCaches {
		return true
	}
	jobs := c.cacheJobs()
	oldest := (*pecanv1.StoredCache)(nil)
	for _, key := range c.state.CacheKeys() {
		if cache := c.state.Cache(key); jobs[key] == nil && !cache.Pinned && (oldest == nil || cache.Sequence < oldest.Sequence) {
			oldest = cache
		}
	}
	if oldest == nil {
		return false
	}
	c.removeFiles(c.evict(oldest.Key, fmt.Sprintf("%d caches are recorded, and no job uses this one, which was written first", maxCaches)))
	return true
}

// segmentInvalid removes an unusable segment from its cache.
func (c *Core) segmentInvalid(workerID string, report *pecanv1.CacheSegmentInvalid) {
	segment := report.GetSegment()
	cache := c.state.Cache(segment.GetKey())
	at, found := durable.FindSegment(cache, segment.GetPart())
	if !found || cache.Segments[at].Name != segment.GetName() {
		return
	}
	c.emit(&pecanv1.Record{Kind: &pecanv1.Record_CacheSegmentDropped{CacheSegmentDropped: &pecanv1.CacheSegmentDropped{
		Key: cache.Key, Part: segment.Part, Name: segment.Name, Why: report.Why,
	}}})
	delete(c.caches.read, cache.Key)
	clear(c.caches.unwanted)
	c.warn("a cache segment is invalid; the next epoch writes it again", "cache", cache.Key, "part", segment.Part,
		"file", segment.Name, "worker", workerID, "error", report.Why)
}

// ownNames returns how the names of this cluster's files begin. Other clusters may use the same directory.
func (c *Core) ownNames() string { return c.state.ClusterID() + "-" }

// findCacheOrphans tells a worker which files of its directory belong to no cache of this cluster. Files that a registered
// worker still writes are kept. A complete segment that no worker has reported for so long is an orphan. Files of other
// clusters are theirs.
func (c *Core) findCacheOrphans(workerID string, files *pecanv1.CacheFiles) {
	named := map[string]bool{}
	for _, key := range c.state.CacheKeys() {
		cache := c.state.Cache(key)
		for _, segment := range cache.Segments {
			named[segment.Name] = true
		}
	}
	orphans := &pecanv1.CacheOrphans{}
	for _, name := range files.GetNames() {
		if strings.HasPrefix(name, c.ownNames()) && !named[name] && !c.beingWritten(name) {
			orphans.Names = append(orphans.Names, name)
		}
	}
	if len(orphans.Names) > 0 {
		c.event("removing files that belong to no cache", "files", len(orphans.Names), "worker", workerID)
		c.command(workerID, &pecanv1.WorkerCommand{Kind: &pecanv1.WorkerCommand_CacheOrphans{CacheOrphans: orphans}})
	}
}

// beingWritten reports whether the worker in a file's name may still write the file.
func (c *Core) beingWritten(name string) bool {
	rest, writing := strings.CutSuffix(name, partialSuffix)
	return writing && c.workers[rest[strings.LastIndexByte(rest, '-')+1:]] != nil
}

func cacheBytes(cache *pecanv1.StoredCache) (sum int64) {
	for _, segment := range cache.GetSegments() {
		sum += segment.Bytes
	}
	return sum
}

// cacheStatus returns what an operator sees of a job's cache.
func (c *Core) cacheStatus(job *durable.Job) *pecanv1.CacheStatus {
	key := c.cacheKey(job)
	if key == "" {
		return nil
	}
	cache := c.state.Cache(key)
	status := &pecanv1.CacheStatus{Key: key, Segments: uint32(len(cache.GetSegments())), Streams: partsOf(job.Plan), Bytes: cacheBytes(cache)}
	trouble := c.cacheProblem(job)
	switch {
	case len(c.workers) == 0:
		status.State = "off: no worker is registered"
	case c.workersWithCache() == 0:
		status.State = "off"
	case c.caches.unwanted[key] != "":
		status.State = "not kept"
	case cache.GetManifest() == "":
		status.State = "filling"
	case c.caches.read[key]:
		status.State = "used"
	default:
		status.State = "committed"
	}
	if trouble != "" {
		status.State += ": " + trouble
	}
	return status
}

// workersWithCache counts the workers that have a cache directory.
func (c *Core) workersWithCache() (n int) {
	for _, worker := range c.workers {
		if worker.caches {
			n++
		}
	}
	return n
}

// cacheProblem says why a job's cache does not work, and how to fix it; empty while no worker is registered.
func (c *Core) cacheProblem(job *durable.Job) string {
	key := c.cacheKey(job)
	if key == "" {
		return ""
	}
	dropped, have, all := uint64(0), 0, 0
	for id, worker := range c.workers {
		if !c.placements.Serves(id, job) {
			continue
		}
		dropped += worker.cacheMetrics.GetWritesDropped()
		if all++; worker.caches {
			have++
		}
	}
	switch {
	case all == 0:
		return ""
	case have == 0:
		return "no worker has a cache directory. Give all workers one shared directory (--cache-dir DIR)"
	case have < all:
		return fmt.Sprintf("only %d of %d workers have a cache directory, the others compute. Give it to all of them (--cache-dir DIR)", have, all)
	case c.caches.unwanted[key] != "":
		return "the quotas for caches keep others, by the CPU seconds that an epoch saves: " + c.caches.unwanted[key] + ". Raise --cache-quota of the dispatcher or the tenant's cache_bytes, or remove caches (pecanctl cache rm)"
	case dropped > 0 && c.state.Cache(key).GetManifest() == "":
		return fmt.Sprintf("%d segments could not be written: no space was left, or a write failed. Free space in the workers' --cache-dir, or raise --cache-bytes", dropped)
	}
	return ""
}
