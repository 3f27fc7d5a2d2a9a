package core

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
)

// unreachableTime is for how many times SuspectAfter an epoch avoids a worker that a client could not reach.
const unreachableTime = 10

// unreached is a worker that a client could not reach. client is empty if no client of the epoch should read from the worker.
type unreached struct{ worker, client string }

// noteUnreachable notes that a client of an epoch cannot reach a worker. Other clients avoid the worker too, except those on
// the host of a local worker: a report from another host says nothing about their way to it.
func (c *Core) noteUnreachable(epoch *durable.Epoch, workerID, clientID string) {
	state := c.volatileEpoch(passKey{epoch.Job.JobId, epoch.Epoch})
	if state.unreachable == nil {
		state.unreachable = map[unreached]time.Duration{}
	}
	at := unreached{worker: workerID}
	if !c.placements.Near(workerID, clientID) {
		at.client = clientID
	}
	state.unreachable[at] = c.now + unreachableTime*c.cfg.SuspectAfter
}

// reaches reports whether a client of an epoch may reach a worker. A local worker at a loopback address has no other address for
// other hosts.
func (c *Core) reaches(epoch *durable.Epoch, workerID, clientID string) bool {
	if worker := c.workers[workerID]; worker != nil && worker.kind == "local" && worker.loopback && c.placements.Apart(workerID, clientID) {
		return false
	}
	state := c.epochs[passKey{epoch.Job.JobId, epoch.Epoch}]
	return state == nil || c.now >= max(state.unreachable[unreached{worker: workerID}], state.unreachable[unreached{workerID, clientID}])
}

// isLoopback reports whether only processes of one host can dial an address.
func isLoopback(address string) bool {
	at, err := netip.ParseAddrPort(address)
	return err == nil && at.Addr().IsLoopback() || strings.HasPrefix(address, "localhost:")
}

// Unreachable implements schedule.Host.
func (h scheduleHost) Unreachable(epoch *durable.Epoch, number uint32) map[string]bool {
	var workers map[string]bool
	add := func(id string) {
		if workers == nil {
			workers = map[string]bool{}
		}
		workers[id] = true
	}
	consumer := epoch.Find(number).GetConsumer()
	if state := h.c.epochs[passKey{epoch.Job.JobId, epoch.Epoch}]; state != nil {
		for at, until := range state.unreachable {
			if h.c.now < until && (at.client == "" || at.client == consumer) {
				add(at.worker)
			}
		}
	}
	if consumer == "" {
		return workers
	}
	locals, _ := h.c.placements.Locals(epoch.Job)
	for id := range locals {
		if !h.c.reaches(epoch, id, consumer) {
			add(id)
		}
	}
	return workers
}

// moveUnreadable moves a stream away from a worker that its client cannot reach. It also moves the client's other streams
// there, because the client needs seconds to notice each one. For a while, the epoch's streams go to other workers, and wait
// until one has room. A stream whose rest would be lost stays until its client reports it.
func (c *Core) moveUnreadable(job *durable.Job, epoch *durable.Epoch, reported *pecanv1.StoredStream, req *pecanv1.ReportWorkerRequest) {
	c.noteUnreachable(epoch, req.WorkerId, req.ClientId)
	c.state.EachLease(req.WorkerId, func(_ *durable.Job, of *durable.Epoch, stream *pecanv1.StoredStream) {
		if of != epoch || stream.Consumer != req.ClientId {
			return
		}
		key := keyOf(job, epoch, stream)
		if stream != reported && c.truncates(key, stream) {
			return
		}
		volatileStream := c.volatileStream(key)
		volatileStream.avoid = append(volatileStream.avoid, req.WorkerId)
		c.move(epoch, stream, "client "+req.ClientId+" could not read it from worker "+req.WorkerId)
	})
}

// otherWorker reports whether another worker can take a stream for a client.
func (c *Core) otherWorker(epoch *durable.Epoch, clientID, than string, avoid []string) bool {
	for id, worker := range c.workers {
		if id != than && !slices.Contains(avoid, id) && c.usable(worker) && c.placements.Serves(id, epoch.Job) && c.reaches(epoch, id, clientID) {
			return true
		}
	}
	return false
}
