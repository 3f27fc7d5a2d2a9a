package core

import (
	"cmp"
	"slices"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/dispatcher/core/schedule"
	"github.com/pecan-ml/pecan/service/graph/split"
)

// Several open epochs may have the same cache, for example those of two jobs with the same steps upstream. Each epoch leases
// first the streams that no other epoch computes. So each epoch computes some parts of the source, and reads the parts that the
// others have stored. At the end, two epochs may compute the same part.
//
// Epochs that need streams open together cannot choose: they lease the streams that are read next. So one epoch follows another
// one that is ahead of it: its stream waits while a worker computes and stores the parts for the other epoch, and then reads them.
// This is cheaper only if the workers bound the epoch ahead. So nothing waits if the trainers of that epoch report that they do
// not wait for elements. The epoch that is ahead of all others waits for none, so no two epochs wait for each other.

const (
	// refreshComputed is the time after which the parts that workers compute are listed again.
	refreshComputed = time.Second
	// vainTime is for how long no stream waits for the parts of a cache after a wait in vain: a part was computed, and not stored.
	vainTime = 30 * time.Second
	// boundWaits is the share of the time waited from which the workers bound a trainer.
	boundWaits = 0.2
)

// sharedCache has the work of the epochs that use one cache now.
type sharedCache struct {
	key    string
	epochs []*durable.Epoch
	// computed has the epoch whose worker computes a part, since the time listed.
	computed map[uint32]*durable.Epoch
	listed   time.Duration
	// awaited has the parts for which streams of other epochs wait. vainUntil is the end of the time in which none waits.
	awaited   map[uint32]bool
	vainUntil time.Duration
}

// computedElsewhere returns which part of a stream a worker computes for another epoch with the same cache, and which epoch that
// is; nil without one. It returns nil if no other epoch has a cache of this one.
func (c *Core) computedElsewhere(epoch *durable.Epoch) func(stream uint32) (by *durable.Epoch, shared *sharedCache, part uint32) {
	if cachedStep(epoch) == nil || c.cfg.CacheMode != CacheAuto {
		return nil
	}
	others := false
	for _, step := range storedSteps(epoch) {
		key := c.cacheKey(epoch.Job, step)
		shared := c.sharedCaches()[key]
		if shared == nil || len(shared.epochs) < 2 {
			continue
		}
		if others = true; shared.computed == nil || c.now-shared.listed >= refreshComputed {
			c.listComputed(shared, c.state.Cache(key))
		}
	}
	if !others {
		return nil
	}
	return func(stream uint32) (*durable.Epoch, *sharedCache, uint32) {
		step, _ := storedStep(epoch, stream)
		key := c.cacheKey(epoch.Job, step)
		shared := c.sharedCaches()[key]
		if step == nil || shared == nil {
			return nil, nil, 0
		}
		for _, part := range partsOf(epoch, step, stream) {
			if by := shared.computed[part]; by != nil && by != epoch {
				if _, stored := durable.FindSegment(c.state.Cache(key), part); !stored {
					return by, shared, part
				}
			}
		}
		return nil, nil, 0
	}
}

// followed returns which epoch a stream of an epoch waits for, and for which part of their cache; nil if it waits for none.
// It returns nil if no stream waits.
func (c *Core) followed(epoch *durable.Epoch) func(stream uint32) (by *durable.Epoch, shared *sharedCache, part uint32) {
	if !schedule.OpensTogether(epoch) {
		return nil
	}
	elsewhere := c.computedElsewhere(epoch)
	if elsewhere == nil {
		return nil
	}
	return func(stream uint32) (*durable.Epoch, *sharedCache, uint32) {
		if epoch.Job.Plan.IsClosing(stream) {
			return nil, nil, 0
		}
		by, shared, part := elsewhere(stream)
		if by == nil || !isAhead(by, epoch) || c.now < shared.vainUntil || !c.isBound(by) || !c.stores(by, shared.key, part) {
			return nil, nil, 0
		}
		return by, shared, part
	}
}

// follows returns which streams of an epoch wait for another epoch with the same cache; nil if none does. It remembers what
// they wait for.
func (c *Core) follows(epoch *durable.Epoch) func(stream uint32) bool {
	followed := c.followed(epoch)
	if followed == nil {
		return nil
	}
	return func(stream uint32) bool {
		by, shared, part := followed(stream)
		if by == nil {
			return false
		}
		if shared.awaited == nil {
			shared.awaited = map[uint32]bool{}
		}
		shared.awaited[part] = true
		if c.caches.following[epoch] == 0 {
			c.event("streams wait for another job to store their elements", "job", epoch.Job.JobId, "epoch", epoch.Epoch, "stream", stream, "other_job", by.Job.JobId, "other_epoch", by.Epoch)
		}
		c.caches.following[epoch] = c.now + refreshComputed
		return true
	}
}

// isAhead reports whether an epoch is ahead of another: it has delivered a larger share of its streams. Of two with the same share,
// the one for which more streams are computed is ahead, and of two with as many, the older one.
func isAhead(epoch, other *durable.Epoch) bool {
	return cmp.Or(
		cmp.Compare(uint64(epoch.DeliveredStreams())*uint64(other.Total()), uint64(other.DeliveredStreams())*uint64(epoch.Total())),
		cmp.Compare(epoch.Held(), other.Held()),
		cmp.Compare(other.Job.Sequence, epoch.Job.Sequence),
		cmp.Compare(other.Epoch, epoch.Epoch),
	) > 0
}

// isBound reports whether the workers bound an epoch: a trainer waits for elements, or has not reported yet. A trainer that reads as fast as
// elements come waits for most of the time, but seldom at the moment of a report.
func (c *Core) isBound(epoch *durable.Epoch) bool {
	return slices.ContainsFunc(epoch.Passes, func(pass *pecanv1.StoredPass) bool {
		state := c.passOf(epoch, pass.ClientId)
		return state == nil || state.report == nil || state.starved || state.waited >= boundWaits
	})
}

// stores reports whether workers store a part that they compute for an epoch.
func (c *Core) stores(epoch *durable.Epoch, key string, part uint32) bool {
	step := c.stepOfCache(epoch.Job, key)
	return step != nil && c.caches.unwanted[key] == "" && isWrittenIn(epoch, step) && (epoch.CachedStep == "" || part < keptBelow(epoch.Job, step))
}

// segmentStored lets streams that wait for a part of a cache be looked at again.
func (c *Core) segmentStored(key string) {
	if shared := c.sharedCaches()[key]; shared != nil {
		for _, epoch := range shared.epochs {
			if c.caches.following[epoch] > 0 {
				c.schedule.EpochChanged(epoch)
			}
		}
	}
}

// stepFollowing lets streams that wait for another epoch be looked at again.
func (c *Core) stepFollowing() {
	for epoch, due := range c.caches.following {
		if due > 0 && c.now >= due {
			// It stays known, so that the event is written once.
			c.caches.following[epoch] = -1
			c.schedule.EpochChanged(epoch)
		}
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
					c.caches.shared[key] = &sharedCache{key: key}
				}
				c.caches.shared[key].epochs = append(c.caches.shared[key].epochs, epoch)
			}
		}
	}
	return c.caches.shared
}

// listComputed lists the parts that workers compute for the epochs of a cache.
func (c *Core) listComputed(shared *sharedCache, cache *pecanv1.StoredCache) {
	shared.computed, shared.listed = map[uint32]*durable.Epoch{}, c.now
	for _, epoch := range shared.epochs {
		for _, stream := range epoch.Active() {
			if stream.Worker != nil && !stream.Produced {
				c.noteComputed(epoch, stream.Stream)
			}
		}
	}
	for part := range shared.awaited {
		if _, stored := durable.FindSegment(cache, part); stored {
			delete(shared.awaited, part)
		} else if shared.computed[part] == nil {
			delete(shared.awaited, part)
			shared.vainUntil = c.now + vainTime
			c.event("the wait for another job was in vain: its worker did not store the elements", "cache", shared.key, "part", part)
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
