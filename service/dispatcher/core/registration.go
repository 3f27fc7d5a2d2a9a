package core

import (
	"maps"
	"slices"
	"strings"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// hello registers a worker, whose session begins. It compares the streams that the worker holds with the leases.
func (c *Core) hello(in Hello) error {
	msg := in.Message
	id := msg.GetAddress().GetWorkerId()
	if msg.ClusterId != "" && msg.ClusterId != c.state.ClusterID() {
		return reason.New(reason.ClusterMismatch, "register worker %s: it belongs to cluster %s and this dispatcher is cluster %s; a dispatcher without a work directory is a new cluster after each start. Drop all streams and register without a cluster", id, msg.ClusterId, c.state.ClusterID())
	}
	if known := c.workers[id]; known != nil && msg.Number != 0 && msg.Number <= known.connection {
		// This hello is delayed: it lists what the worker held earlier.
		return reason.New(reason.Unavailable, "register worker %s: it has registered on a newer connection", id)
	}
	if err := c.checkListed(id, msg.GetAddress().GetTcp()); err != nil {
		return err
	}
	if err := c.takeAddress(id, msg.GetAddress().GetTcp()); err != nil {
		return err
	}
	worker := c.workers[id]
	if worker == nil {
		worker = &workerState{order: c.nextOrder()}
		c.workers[id] = worker
	} else if worker.session != 0 {
		c.endSession(worker.session, reason.New(reason.Closed, "worker %s registered again on a newer connection", id))
		c.orders.LoseTrials(uint64(worker.session), "worker "+id+" registered again", true)
	}
	c.placements.RemoveWorker(id)
	*worker = workerState{
		address: msg.Address, loopback: isLoopback(msg.GetAddress().GetTcp()), session: in.Session, order: worker.order, maxStreams: msg.MaxStreams, cores: msg.Cores,
		tensorflow: msg.TensorflowVersion, version: msg.Version, kind: msg.Kind, trainer: msg.TrainerId, graphProducer: msg.GraphProducer, lastMessage: c.now, caches: msg.Caches,
		connection: msg.Number, commons: map[passKey]*pecanv1.StartStream{},
	}
	c.nameWorker(worker)
	c.refreshWorker(id)
	c.touched.workers, c.touched.updates = true, true
	c.sessions[in.Session] = id
	c.command(id, &pecanv1.WorkerCommand{Kind: &pecanv1.WorkerCommand_Welcome{Welcome: &pecanv1.Welcome{
		ClusterId: c.state.ClusterID(), HeartbeatS: c.heartbeatPeriod.Seconds(), LeaseTtlS: c.cfg.LeaseTTL.Seconds(),
	}}})
	c.askToLeave(id)
	c.event("worker registered", "worker", id, "tcp", msg.Address.Tcp, "max_streams", msg.MaxStreams, "kind", msg.Kind, "held", len(msg.Held))
	// Earlier commands may never have arrived. The worker lists the runs that it still has.
	c.removeStoppingRuns(func(run stoppingRun) bool { return run.worker == id })
	c.detectStaleStore(id, msg)
	c.reconcile(id, msg.Held)
	c.dirty = true
	return nil
}

// nextOrder returns the place of a further worker in the order of registration.
func (c *Core) nextOrder() uint64 {
	c.lastOrder++
	return c.lastOrder
}

// nameWorker gives a worker a number, if it has none at this address.
func (c *Core) nameWorker(worker *workerState) {
	if worker.number = c.state.WorkerNumber(worker.address); worker.number > 0 {
		return
	}
	worker.number = c.state.FreeWorkerNumber()
	c.emit(&pecanv1.Record{Kind: &pecanv1.Record_WorkerNamed{WorkerNamed: &pecanv1.WorkerNamed{Number: worker.number, Worker: worker.address}}})
}

// takeAddress gives a worker the address of a lost one, because its process now listens there. A worker with
// heartbeats keeps its address, even if it is about to leave. Otherwise two workers with one address would take it from each
// other forever, with all their streams.
func (c *Core) takeAddress(id, tcp string) error {
	if tcp == "" {
		return nil
	}
	var same []string
	for otherID, other := range c.workers {
		if otherID != id && other.address.GetTcp() == tcp {
			same = append(same, otherID)
		}
	}
	slices.Sort(same)
	for _, otherID := range same {
		other := c.workers[otherID]
		if c.answers(other) {
			return reason.New(reason.WorkerUnknown, "register worker %s: worker %s is connected and has the same address %s; give each worker its own (--advertise, or --listen without it). If that worker has died, its address is free %v after its last message", id, otherID, tcp, c.suspectAfter())
		}
		c.loseWorker(otherID, true, "worker "+id+" took over its address")
	}
	return nil
}

// checkListed checks a worker against the configured list. An entry is HOST:PORT, or HOST for any one worker on
// that host.
func (c *Core) checkListed(id, tcp string) error {
	if len(c.cfg.WorkerAddresses) == 0 {
		return nil
	}
	place := c.listPosition(tcp)
	if place < 0 {
		return reason.New(reason.WorkerUnknown, "register worker %s: its address %s is not in the workers list of the dispatcher (--worker-addresses=%s); add it there, or start the worker with an address of the list", id, tcp, strings.Join(c.cfg.WorkerAddresses, ","))
	}
	for _, otherID := range slices.Sorted(maps.Keys(c.workers)) {
		other := c.workers[otherID]
		if otherID != id && !other.away && other.address.GetTcp() != tcp && c.listPosition(other.address.GetTcp()) == place {
			return reason.New(reason.WorkerUnknown, "register worker %s: other workers are already running at the configured address %s (worker %s at %s)", id, c.cfg.WorkerAddresses[place], otherID, other.address.GetTcp())
		}
	}
	return nil
}

// listPosition returns the position of an address in the configured list, -1 without one. Exact entries come first.
func (c *Core) listPosition(tcp string) int {
	if i := slices.Index(c.cfg.WorkerAddresses, tcp); i >= 0 {
		return i
	}
	colon := strings.LastIndexByte(tcp, ':')
	if colon < 0 {
		return -1
	}
	return slices.Index(c.cfg.WorkerAddresses, strings.Trim(tcp[:colon], "[]"))
}
