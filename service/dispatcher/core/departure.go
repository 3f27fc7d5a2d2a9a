package core

import (
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/graph/split"
)

// departure is the planned departure of a worker.
type departure struct {
	since time.Duration
	// asked is set if the dispatcher asked for it.
	asked bool
	// hadAtIndex is set if the worker had streams that can begin at any index. The last of them left after atIndex, if
	// goneAtIndex.
	hadAtIndex, goneAtIndex bool
	atIndex                 time.Duration
}

// beginDeparture notes that a worker leaves: it gets no more streams.
func (c *Core) beginDeparture(id string, worker *workerState, asked bool) {
	if worker.departure != nil {
		return
	}
	worker.departure = &departure{since: c.now, asked: asked}
	c.refreshWorker(id)
	c.touched.workers, c.touched.updates, c.dirty = true, true, true
	c.noteDeparture(id, worker)
}

// noteDeparture looks whether a leaving worker still has streams that can begin at any index.
func (c *Core) noteDeparture(id string, worker *workerState) {
	d := worker.departure
	if d == nil || d.goneAtIndex {
		return
	}
	has := false
	c.state.EachLease(id, func(job *durable.Job, _ *durable.Epoch, stream *pecanv1.StoredStream) {
		has = has || !stream.Delivered && !job.Plan.IsClosing(stream.Stream) && split.MovesAtOnce(job.Plan, job.Options)
	})
	d.hadAtIndex, d.goneAtIndex = d.hadAtIndex || has, !has
	if d.hadAtIndex {
		d.atIndex = c.now - d.since
	}
}

// endDeparture reports the departure of a worker that said goodbye and still has its last leases.
func (c *Core) endDeparture(id string, worker *workerState) {
	c.noteDeparture(id, worker)
	if d := worker.departure; d != nil {
		c.effect(WorkerLeft{Worker: id, Tcp: worker.address.GetTcp(), Asked: d.asked, HadAtIndex: d.hadAtIndex, AtIndex: d.atIndex, All: c.now - d.since})
	}
}
