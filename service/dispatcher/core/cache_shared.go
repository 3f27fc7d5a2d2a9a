package core

import (
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/graph/split"
)

// Several open epochs may have the same cache, for example those of two jobs with the same steps upstream. Each epoch leases
// first the streams that no other epoch computes. So each epoch computes some parts of the source, and reads the parts that the
// others have stored. No stream waits for another epoch: at the end, two epochs may compute the same part.

// refreshComputed is the time after which the parts that workers compute are listed again. A part that has ended
// by then only changes the order of leases.
const refreshComputed = time.Second

// sharedCache has the work of the epochs that use one cache now.
type sharedCache struct {
	epochs []*durable.Epoch
	// computed has the epoch whose worker computes a part, since the time listed.
	computed map[uint32]*durable.Epoch
	listed   time.Duration
}

// computedElsewhere returns which streams of an epoch have a part that a worker computes for another epoch with the same
// cache. It returns nil if no other epoch has the cache.
func (c *Core) computedElsewhere(epoch *durable.Epoch) func(stream uint32) bool {
	if cachedStep(epoch) == nil || c.cfg.CacheMode != CacheAuto {
		return nil
	}
	others := false
	for _, step := range storedSteps(epoch) {
		shared := c.sharedCaches()[c.cacheKey(epoch.Job, step)]
		if shared == nil || len(shared.epochs) < 2 {
			continue
		}
		if others = true; shared.computed == nil || c.now-shared.listed > refreshComputed {
			c.listComputed(shared)
		}
	}
	if !others {
		return nil
	}
	return func(stream uint32) bool {
		step, _ := storedStep(epoch, stream)
		key := c.cacheKey(epoch.Job, step)
		shared := c.sharedCaches()[key]
		if step == nil || shared == nil {
			return false
		}
		for _, part := range partsOf(epoch, step, stream) {
			if by := shared.computed[part]; by != nil && by != epoch {
				if _, stored := durable.FindSegment(c.state.Cache(key), part); !stored {
					return true
				}
			}
		}
		return false
	}
}

// sharedCaches returns the epochs of each cache. They are listed again after an epoch has opened, closed or got another order, and
// after a decision.
func (c *Core) sharedCaches() map[string]*sharedCache {
	if c.caches.shared != nil {
		return c.caches.shared
	}
	c.caches.shared = map[string]*sharedCache{}
	for _, job := range c.state.Jobs() {
		for _, epoch := range job.Epochs {
			for _, step := range storedSteps(epoch) {
				key := c.cacheKey(job, step)
				if c.caches.shared[key] == nil {
					c.caches.shared[key] = &sharedCache{}
				}
				c.caches.shared[key].epochs = append(c.caches.shared[key].epochs, epoch)
			}
		}
	}
	return c.caches.shared
}

// listComputed lists the parts that workers compute for the epochs of a cache.
func (c *Core) listComputed(shared *sharedCache) {
	shared.computed, shared.listed = map[uint32]*durable.Epoch{}, c.now
	for _, epoch := range shared.epochs {
		for _, stream := range epoch.Active() {
			if stream.Worker != nil && !stream.Produced {
				c.noteComputed(epoch, stream.Stream)
			}
		}
	}
}

// noteComputed notes that a worker computes the parts of a stream, if other epochs have the same cache.
func (c *Core) noteComputed(epoch *durable.Epoch, stream uint32) {
	step, _ := storedStep(epoch, stream)
	if step == nil || epoch.Job.Plan.IsClosing(stream) {
		return
	}
	shared := c.sharedCaches()[c.cacheKey(epoch.Job, step)]
	if shared == nil || shared.computed == nil {
		return
	}
	for _, part := range partsOf(epoch, step, stream) {
		if shared.computed[part] == nil {
			shared.computed[part] = epoch
		}
	}
}

func partsOf(epoch *durable.Epoch, step *pecanv1.CachePlan, stream uint32) []uint32 {
	return split.PartsOf(epoch.Job.Plan, step, split.EpochStream{Stream: int(stream), Epoch: epoch.Epoch, Seed: epoch.Job.Options.GetSeed()})
}
