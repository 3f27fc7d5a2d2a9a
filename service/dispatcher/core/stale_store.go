package core

import (
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// maxLeaseGap bounds how much newer a lease may be than the newest in the store to be believed; anything above is no number that this cluster
// can have given.
const maxLeaseGap = 1 << 32

// detectStaleStore looks for leases that a worker of this cluster holds and the store has never heard of. A lease is told only after it is on disk,
// so records that were acknowledged are missing: an old copy of the store was restored, or the disk lost what it had promised. What else was in
// them nobody knows. The job fails rather than give its elements twice, and no lease is given out under a number that somebody may hold.
func (c *Core) detectStaleStore(workerID string, msg *pecanv1.WorkerHello) {
	if msg.ClusterId == "" {
		return
	}
	for _, held := range msg.Held {
		lease, known := held.GetLease(), c.state.LastLease()
		if lease <= known || lease-known > maxLeaseGap {
			continue
		}
		c.leaseFloor = max(c.leaseFloor, lease)
		key := keyOf(held.GetId())
		c.warn("the store is behind: a worker holds a lease that is newer than all in it, so records that were acknowledged are missing",
			"worker", workerID, "job", key.job, "epoch", key.epoch, "stream", key.stream, "lease", lease, "newest_stored", known)
		if job := c.state.Job(key.job); job != nil {
			c.failJob(job, reason.New(reason.StaleStore, "worker %s holds %s under lease %d, and the dispatcher's store has none above %d: records that were acknowledged are missing, as after an old copy of the work directory was restored. Which elements were delivered is not known any more; start the job anew, from a position that the trainer saved if there is one",
				workerID, describe(key), lease, known).Detail())
		}
	}
}
