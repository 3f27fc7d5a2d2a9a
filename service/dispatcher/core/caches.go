package core

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/dispatcher/core/schedule"
	"github.com/pecan-ml/pecan/service/graph/split"
)

// A cache holds the elements at a cached step of a dataset, one segment for each part of its source. If the plan does not
// store a step by parts, the share of each stream is one. A worker writes segments where its StartStream says so, and
// reports each one when it is durable. The core records the segment, and commits the cache with the last one. A part whose
// segment is recorded is read, whether the cache is committed or not. The files belong to the workers. When a worker
// reports an unusable segment, the core removes its record, and the next stream with that part writes the segment again.

const (
	// maxCaches bounds the recorded caches. maxSegmentName bounds the length of a file name. maxSegmentBytes bounds the
	// size of a file. The sum of a cache's segments fits into an int64.
	maxCaches       = 1000
	maxSegmentName  = 200
	maxSegmentBytes = 1 << 45
	// partialSuffix ends the name of a file that is still being written. It equals writingSuffix of service/cache,
	// which this package may not import.
	partialSuffix = ".tmp"
)

// jobStep is a step of a job in an order of the steps, by the key in its plan.
type jobStep struct{ job, key string }

// cacheKey returns the key of the cache of a step of a job; empty without a step.
func (c *Core) cacheKey(job *durable.Job, step *pecanv1.CachePlan) string {
	at := jobStep{job.JobId, step.GetKey()}
	key, known := c.caches.keys[at]
	if !known {
		key = c.cfg.CacheKey(step, job.Options)
		c.caches.keys[at] = key
	}
	return key
}

// stepOfCache returns the step of a job that a cache has; nil if the job does not use the cache.
func (c *Core) stepOfCache(job *durable.Job, key string) *pecanv1.CachePlan {
	for _, step := range cachedSteps(job) {
		if key != "" && c.cacheKey(job, step) == key {
			return step
		}
	}
	return nil
}

// jobOfCache returns a job that uses a cache, one that reads if there is one; nil without a job.
func (c *Core) jobOfCache(key string) (found *durable.Job) {
	for _, job := range c.state.Jobs() {
		if c.stepOfCache(job, key) != nil {
			found = preferReader(found, job)
		}
	}
	return found
}

// CacheKey returns the key of the cache of a step in a job with these options; empty without a step. Tenants have keys of
// their own, unless they share caches.
func (c Config) CacheKey(step *pecanv1.CachePlan, options *pecanv1.JobOptions) string {
	key := step.GetKey()
	if step.GetSeeded() {
		sum := sha256.Sum256(binary.BigEndian.AppendUint64([]byte("pecan cache seed 1 "+key), options.GetSeed()))
		key = hex.EncodeToString(sum[:])
	}
	if tenant := options.EffectiveTenant(); key != "" && tenant != pecanv1.DefaultTenant && !c.CacheShared {
		sum := sha256.Sum256([]byte("pecan cache tenant 1 " + tenant + " " + key))
		key = hex.EncodeToString(sum[:])
	}
	return key
}

// cacheAction says which parts of a stream a worker reads and writes at the cached step; nil if it does neither.
func (c *Core) cacheAction(epoch *durable.Epoch, stream *pecanv1.StoredStream) *pecanv1.CacheAction {
	job := epoch.Job
	step, last := storedStep(epoch, stream.Stream)
	if step == nil || job.Plan.IsClosing(stream.Stream) || stream.Worker == nil || c.cfg.CacheMode == CacheCompute {
		return nil
	}
	if worker := c.workers[stream.Worker.WorkerId]; worker == nil || !worker.caches {
		return nil
	}
	action := &pecanv1.CacheAction{
		Key: c.cacheKey(job, step), Step: &pecanv1.CachePlan{Node: last, Packed: step.Packed, Parts: step.Parts},
		WrittenBelow: split.AllParts(job.Plan, step),
	}
	switch {
	case c.cfg.CacheMode == CacheGet, c.caches.unwanted[action.Key] != "", !isWrittenIn(epoch, step):
		// An operator forbids writing, the quotas have no room, or the cache has another order.
		action.WrittenBelow = 0
	case epoch.CachedStep != "":
		action.WrittenBelow = keptBelow(job, step)
	}
	cache, writes := c.state.Cache(action.Key), false
	for _, part := range partsOf(epoch, step, stream.Stream) {
		if at, found := durable.FindSegment(cache, part); found && c.cfg.CacheMode != CachePut {
			action.Segments = append(action.Segments, cache.Segments[at])
		} else {
			writes = writes || part < action.WrittenBelow
		}
	}
	if len(action.Segments) == 0 && !writes {
		return nil
	}
	action.Asks = writes && c.cfg.CacheMode == CacheAuto && !c.cfg.NeverFollow && schedule.OpensTogether(epoch)
	if len(action.Segments) > 0 {
		c.caches.read[action.Key] = true
	}
	c.useCache(action.Key)
	return action
}

// segmentWritten records a durable segment, and commits its cache if it was the last one. The first segment of a
// part stays, whoever wrote it: another run or another job produces the same elements.
func (c *Core) segmentWritten(workerID string, segment *pecanv1.CacheSegment) {
	c.command(workerID, &pecanv1.WorkerCommand{Kind: &pecanv1.WorkerCommand_CacheSegmentAck{CacheSegmentAck: &pecanv1.CacheSegmentAck{
		Name: segment.GetName(), Accepted: c.recordSegment(workerID, segment),
	}}})
}

// recordSegment records a segment that a worker wrote, and commits the cache with the last one. It returns false if the
// worker may delete the segment: it fits no cache, or the cache has another one for the part.
func (c *Core) recordSegment(workerID string, segment *pecanv1.CacheSegment) bool {
	job := c.jobOfCache(segment.GetKey())
	switch {
	case job == nil, segment.Parts != split.AllParts(job.Plan, c.stepOfCache(job, segment.Key)), segment.Part >= segment.Parts,
		c.caches.unwanted[segment.Key] != "", len(segment.Name) > maxSegmentName, len(segment.Source) > maxSegmentName, segment.Bytes < 0, segment.Bytes > maxSegmentBytes, !strings.HasPrefix(segment.Name, fmt.Sprintf("%s%s-%d-", c.ownNames(), segment.Key, segment.Part)):
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
	c.partStored(segment)
	cache = c.state.Cache(segment.Key)
	if len(cache.Segments) == int(cache.Parts) {
		c.emit(&pecanv1.Record{Kind: &pecanv1.Record_CacheCommitted{CacheCommitted: &pecanv1.CacheCommitted{Key: cache.Key, Manifest: durable.Manifest(cache)}}})
		c.measureCaches(job)
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
// worker still writes are kept. A worker lists a file when it has seen it for --cache-orphan-after. A complete
// segment that no record names by then is an orphan. Files of other clusters stay.
func (c *Core) findCacheOrphans(workerID string, files *pecanv1.CacheFiles) {
	orphans := &pecanv1.CacheOrphans{}
	for _, name := range files.GetNames() {
		if strings.HasPrefix(name, c.ownNames()) && !c.isRecorded(name) && !c.beingWritten(name) {
			orphans.Names = append(orphans.Names, name)
		}
	}
	if len(orphans.Names) > 0 {
		c.event("orphans removed", "files", len(orphans.Names), "worker", workerID)
		c.command(workerID, &pecanv1.WorkerCommand{Kind: &pecanv1.WorkerCommand_CacheOrphans{CacheOrphans: orphans}})
	}
}

// isRecorded reports whether a cache has the segment with a name of this cluster. It finds the segment by the key and the part in the
// name: a cluster may have millions of segments.
func (c *Core) isRecorded(name string) bool {
	key, rest, _ := strings.Cut(strings.TrimPrefix(name, c.ownNames()), "-")
	number, _, _ := strings.Cut(rest, "-")
	part, err := strconv.ParseUint(number, 10, 32)
	if err != nil {
		return false
	}
	cache := c.state.Cache(key)
	at, found := durable.FindSegment(cache, uint32(part))
	return found && cache.Segments[at].Name == name
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
	step := decidedStep(job)
	if step == nil {
		return nil
	}
	key := c.cacheKey(job, step)
	cache := c.state.Cache(key)
	status := &pecanv1.CacheStatus{
		Key: key, State: c.cacheStage(key), Segments: uint32(len(cache.GetSegments())), Streams: split.AllParts(job.Plan, step), Bytes: cacheBytes(cache),
	}
	if trouble := c.cacheProblem(job); trouble != "" {
		status.State += ": " + trouble
	}
	return status
}

// cacheStage returns how far a cache is. It says whether streams write the cache or read it.
func (c *Core) cacheStage(key string) string {
	committed := c.state.Cache(key).GetManifest() != ""
	switch {
	case len(c.workers) == 0:
		return "off: no worker is registered"
	case c.workersWithCache() == 0:
		return "off"
	case c.caches.unwanted[key] != "":
		return "not kept"
	case c.caches.read[key] && committed:
		return "used"
	case committed:
		return "committed"
	}
	return "filling"
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
	step := decidedStep(job)
	if step == nil {
		return ""
	}
	key := c.cacheKey(job, step)
	dropped, unversioned, have, all := uint64(0), uint64(0), 0, 0
	for id, worker := range c.workers {
		if !c.placements.Serves(id, job) {
			continue
		}
		dropped, unversioned = dropped+worker.cacheMetrics.GetWritesDropped(), unversioned+worker.cacheMetrics.GetPartsUnversioned()
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
		return "other caches are expected to save more within the quotas: " + c.caches.unwanted[key] + ". Raise --cache-quota of the dispatcher or the tenant's cache_bytes, or remove caches (pecanctl cache rm)"
	case dropped > 0 && c.state.Cache(key).GetManifest() == "":
		return fmt.Sprintf("%d segments could not be written: no space was left, or a write failed or took too long. Free space in the workers' --cache-dir, or raise --cache-bytes", dropped)
	case unversioned > 0 && c.state.Cache(key).GetManifest() == "":
		return fmt.Sprintf("the versions of source files were not known for %d parts: their store does not answer, or the files are only some seconds old. The log of a worker has the error", unversioned)
	}
	return ""
}
