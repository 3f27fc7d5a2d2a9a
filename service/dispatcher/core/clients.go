package core

import (
	"maps"
	"slices"
	"strings"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
)

// addClient notes that a client lives.
func (c *Core) addClient(id string) *clientState {
	c.clients[id] = &clientState{lastSeen: c.now, jobs: map[string]time.Duration{}, passes: map[passKey]*passState{}, unreached: map[string]time.Duration{}}
	c.placements.AddClient(id)
	return c.clients[id]
}

// noteAlive notes that a client lives and holds a job.
func (c *Core) noteAlive(clientID, jobID string) {
	client := c.clients[clientID]
	if client == nil {
		return
	}
	client.lastSeen = c.now
	if jobID != "" {
		client.jobs[jobID] = c.now
	}
}

// member finds a job that the client holds.
func (c *Core) member(what, clientID, jobID string) (*durable.Job, error) {
	if c.state.Client(clientID) == nil {
		return nil, c.unknownClient(what, clientID)
	}
	c.noteAlive(clientID, "")
	job := c.state.Job(jobID)
	if job == nil || !slices.Contains(job.ClientIds, clientID) {
		return nil, reason.New(reason.JobUnknown, "%s: job %q is not held by client %q; it ended, or the client was silent for more than %v", what, jobID, clientID, c.cfg.ClientTimeout)
	}
	c.noteAlive(clientID, jobID)
	return job, nil
}

func (c *Core) unknownClient(what, clientID string) error {
	return reason.New(reason.ClientUnknown, "%s: client %q is not known; it said goodbye, was silent for more than %v, or the dispatcher restarted without a work directory. Create the dataset's iterator again", what, clientID, c.cfg.ClientTimeout)
}

// clientHeartbeat notes that a client lives, and what its passes have read. It fails if the client no longer holds one of
// the named jobs, so that the client rejoins.
func (c *Core) clientHeartbeat(req *pecanv1.ClientHeartbeatRequest) (*pecanv1.ClientHeartbeatResponse, error) {
	client := c.clients[req.ClientId]
	if client == nil || c.state.Client(req.ClientId) == nil {
		return nil, c.unknownClient("heartbeat", req.ClientId)
	}
	client.lastSeen = c.now
	if req.ClientTimeoutS > 0 && req.ClientTimeoutS <= c.cfg.ClientTimeout.Seconds() {
		client.timeoutUnconfirmed = false
	}
	if req.Number == 0 || req.Number > client.heartbeatNumber {
		client.heartbeatNumber = req.Number
		c.updatePasses(req, client)
		c.placements.Reported(req)
	}
	var missing []string
	for _, id := range req.JobIds {
		if job := c.state.Job(id); job != nil && slices.Contains(job.ClientIds, req.ClientId) {
			client.jobs[id] = c.now
		} else {
			missing = append(missing, id)
		}
	}
	if missing != nil {
		return nil, reason.New(reason.JobUnknown, "heartbeat: client %q no longer holds job %s", req.ClientId, strings.Join(missing, ", "))
	}
	return &pecanv1.ClientHeartbeatResponse{
		ClientTimeoutS: c.cfg.ClientTimeout.Seconds(), LocalWorkers: c.placements.WantedLocal(req.ClientId, req.JobIds), Placement: c.placements.Recorded(req.JobIds),
		OrderAdvice: c.orders.Advice(req.JobIds),
	}, nil
}

// updatePasses keeps what a client's newest heartbeat reports of its passes.
func (c *Core) updatePasses(req *pecanv1.ClientHeartbeatRequest, client *clientState) {
	for _, pass := range req.Passes {
		job := c.state.Job(pass.JobId)
		if job == nil {
			continue
		}
		epoch := durable.FindEpoch(job, pass.Epoch)
		if epoch == nil || durable.FindPass(epoch, req.ClientId) == nil {
			continue
		}
		key := passKey{pass.JobId, pass.Epoch}
		known, took := client.passes[key], c.now
		if known == nil || known.starved != pass.Starved {
			c.touch(epoch)
		}
		if known != nil && !pass.Starved && pass.Elements == known.report.GetElements() {
			took = known.took
		}
		client.passes[key] = &passState{starved: pass.Starved, report: pass, seen: c.now, took: took}
	}
	if !req.Opening {
		c.closeAbandonedPasses(req, client)
	}
}

// closeAbandonedPasses closes passes that a client no longer names: the client stopped opening them before the answer
// came. A delayed heartbeat may be older than the pass, also across a restart. The number of the heartbeat shows that.
func (c *Core) closeAbandonedPasses(req *pecanv1.ClientHeartbeatRequest, client *clientState) {
	clientID := req.ClientId
	for _, jobID := range c.jobsOf(clientID) {
		job := c.state.Job(jobID)
		for _, epoch := range slices.Clone(job.Epochs) {
			open := durable.FindPass(epoch, clientID)
			if open == nil || req.Number != 0 && req.Number <= open.HeartbeatNumber || c.watched(clientID, jobID, epoch.Epoch) {
				continue
			}
			key := passKey{jobID, epoch.Epoch}
			if pass := client.passes[key]; pass == nil {
				client.passes[key] = &passState{seen: c.now, took: c.now}
			} else if c.now-pass.seen > c.cfg.DeadAfter {
				c.event("pass closed that its client no longer names", "job", jobID, "epoch", epoch.Epoch, "client", clientID)
				c.leaveEpoch(job, epoch, clientID, false)
			}
		}
	}
}

func (c *Core) clientGoodbye(req *pecanv1.ClientGoodbyeRequest) {
	if c.state.Client(req.ClientId) != nil {
		c.dropClient(req.ClientId, "goodbye")
	}
}

// expireClients removes clients that were silent for too long, and takes jobs from clients that no longer hold
// them.
func (c *Core) expireClients() {
	held := map[string][]string{}
	for _, job := range c.state.Jobs() {
		for _, id := range job.ClientIds {
			held[id] = append(held[id], job.JobId)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(c.clients)) {
		client := c.clients[id]
		c.forgetUnreached(client)
		limit := client.maxSilence(c.cfg.ClientTimeout)
		if c.now-client.lastSeen > limit {
			c.warn("client lost", "client", id, "silent_s", (c.now - client.lastSeen).Seconds())
			c.dropClient(id, "timeout")
			continue
		}
		for _, jobID := range held[id] {
			seen, ok := client.jobs[jobID]
			if !ok {
				client.jobs[jobID] = c.now
			} else if c.now-seen > limit {
				c.leaveJob(c.state.Job(jobID), id)
			}
		}
	}
}

func (c *Core) jobsOf(clientID string) []string {
	var ids []string
	for _, job := range c.state.Jobs() {
		if slices.Contains(job.ClientIds, clientID) {
			ids = append(ids, job.JobId)
		}
	}
	return ids
}

func (c *Core) dropClient(id, why string) {
	for _, jobID := range c.jobsOf(id) {
		c.leaveJob(c.state.Job(jobID), id)
	}
	c.emit(&pecanv1.Record{Kind: &pecanv1.Record_ClientLeft{ClientLeft: &pecanv1.ClientLeft{ClientId: id, Why: why}}})
	delete(c.clients, id)
	c.placements.RemoveClient(id)
	c.event("client left", "client", id, "why", why)
}
