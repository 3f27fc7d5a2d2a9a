package core

import (
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// maxLeaseGap bounds how much newer than the store a believable lease is. This cluster cannot have granted a
// higher number.
const maxLeaseGap = 1 << 32

// detectStaleStore looks for leases that a worker of this cluster holds and the store does not know. A lease is
// announced only after it is on disk. So acknowledged records are missing: an old copy of the store was restored,
// or the disk lost data. Nobody knows what else was in them. The job fails, because its elements might be
// delivered twice, and no new lease reuses a number that somebody may hold.
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
		key := held.GetId().Key()
		c.warn("the store is stale: a worker holds a newer lease than any in it, so acknowledged records are missing",
			"worker", workerID, "job", key.Job, "epoch", key.Epoch, "stream", key.Stream, "lease", lease, "newest_stored", known)
		if job := c.state.Job(key.Job); job != nil {
			c.failJob(job, reason.New(reason.StaleStore, "worker %s holds %s under lease %d, and the newest lease in the store is %d. The store lacks acknowledged records, for example because an old copy of the work directory was restored. Start the job again, from a saved state if the trainer has one",
				workerID, key, lease, known).Detail())
		}
	}
}
