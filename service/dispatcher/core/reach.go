package core

import (
	"net/netip"
	"strings"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/dispatcher/core/schedule"
)

// unreachedTime is for how many times SuspectAfter a client avoids a worker that it could not reach.
const unreachedTime = 10

// reach says whether a client reaches a worker. A local worker at a loopback address has no other address for other hosts. A
// client's report counts for this client only: others may have another way to the worker.
func (c *Core) reach(workerID, clientID string) schedule.Reach {
	if worker := c.workers[workerID]; worker != nil && worker.kind == "local" && worker.loopback && c.placements.Apart(workerID, clientID) {
		return schedule.Unreachable
	}
	if client := c.clients[clientID]; client != nil && c.now < client.unreached[workerID] {
		return schedule.Unreached
	}
	return schedule.Reachable
}

func (c *Core) reaches(workerID, clientID string) bool {
	return c.reach(workerID, clientID) == schedule.Reachable
}

// readers returns the clients that may become the consumer of a stream of an epoch.
func readers(epoch *durable.Epoch) (list []string) {
	onlyAhead := durable.AllPrefetched(epoch)
	for _, pass := range epoch.Passes {
		if onlyAhead || !pass.Prefetch {
			list = append(list, pass.ClientId)
		}
	}
	return list
}

// Reach implements schedule.Host. Nobody reads a delivered stream.
func (h scheduleHost) Reach(epoch *durable.Epoch, number uint32) (workers map[string]schedule.Reach) {
	stream := epoch.Find(number)
	if stream.GetDelivered() {
		return nil
	}
	clients := []string{stream.GetConsumer()}
	if clients[0] == "" || durable.FindPass(epoch, clients[0]) == nil {
		clients = readers(epoch)
	}
	if len(clients) == 0 {
		return nil
	}
	consider := func(id string) {
		if reach := h.c.bestReach(id, clients); reach != schedule.Reachable {
			if workers == nil {
				workers = map[string]schedule.Reach{}
			}
			workers[id] = reach
		}
	}
	// Whom the first client reaches need not be considered.
	if first := h.c.clients[clients[0]]; first != nil {
		for id := range first.unreached {
			consider(id)
		}
	}
	locals, _ := h.c.placements.Locals(epoch.Job)
	var served map[string]bool
	for id := range locals {
		if worker := h.c.workers[id]; worker != nil && worker.loopback {
			if served == nil {
				served = h.c.hostsServed(clients)
			}
			if !served[worker.address.GetHostId()] && !served[""] {
				consider(id)
			}
		}
	}
	return workers
}

// hostsServed returns the hosts of the clients that reach all workers there. Clients that have not said where they are have an
// empty host, and reach the workers of all hosts.
func (c *Core) hostsServed(clients []string) map[string]bool {
	hosts := map[string]bool{}
	for _, id := range clients {
		if client := c.clients[id]; client == nil || len(client.unreached) == 0 {
			hosts[c.placements.HostOf(id)] = true
		}
	}
	return hosts
}

// bestReach says whether some client of a list reaches a worker.
func (c *Core) bestReach(workerID string, clients []string) schedule.Reach {
	best := schedule.Unreachable
	for _, id := range clients {
		if best = min(best, c.reach(workerID, id)); best == schedule.Reachable {
			break
		}
	}
	return best
}

// moveUnreached moves a stream away from a worker that its client cannot reach. It also moves the client's other streams
// there, because the client needs seconds to notice each one. For a while, the client's streams go to other workers, and wait
// until one has room. A stream whose rest would be lost stays until its client reports it.
func (c *Core) moveUnreached(job *durable.Job, epoch *durable.Epoch, reported *pecanv1.StoredStream, req *pecanv1.ReportWorkerRequest) {
	c.clients[req.ClientId].unreached[req.WorkerId] = c.now + unreachedTime*c.cfg.SuspectAfter
	c.state.EachLease(req.WorkerId, func(_ *durable.Job, of *durable.Epoch, stream *pecanv1.StoredStream) {
		if of != epoch || stream.Consumer != req.ClientId || stream != reported && c.truncates(keyOf(job, epoch, stream), stream) {
			return
		}
		c.move(epoch, stream, "client "+req.ClientId+" could not read it from worker "+req.WorkerId)
	})
}

// forgetUnreached forgets which workers a client could not reach some time ago.
func (c *Core) forgetUnreached(client *clientState) {
	for id, until := range client.unreached {
		if c.now >= until {
			delete(client.unreached, id)
		}
	}
}

// otherWorker reports whether another worker can take a stream of a job for a client.
func (c *Core) otherWorker(job *durable.Job, clientID, than string) bool {
	for id, worker := range c.workers {
		if id != than && c.usable(worker) && c.placements.Serves(id, job) && c.reaches(id, clientID) {
			return true
		}
	}
	return false
}

// isLoopback reports whether only processes of one host can dial an address.
func isLoopback(address string) bool {
	at, err := netip.ParseAddrPort(address)
	return err == nil && at.Addr().IsLoopback() || strings.HasPrefix(address, "localhost:")
}
