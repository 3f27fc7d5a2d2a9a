package core

import (
	"cmp"
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
)

// fleet has the usable workers by kind, each list in the order of registration. It is built again when one of them changed.
type fleet struct {
	built  bool
	remote []string
	// local has the local workers of each host.
	local map[string][]string
	// serving counts the jobs with an objective that each worker serves.
	serving map[string]int
}

func (c *Core) usableWorkers() *fleet {
	f := &c.fleet
	if f.built {
		return f
	}
	f.built, f.remote, f.local = true, nil, map[string][]string{}
	if f.serving == nil {
		f.serving = map[string]int{}
	}
	var usable []string
	for id, worker := range c.workers {
		if c.usable(worker) {
			usable = append(usable, id)
		}
	}
	slices.SortFunc(usable, func(a, b string) int { return cmp.Compare(c.workers[a].order, c.workers[b].order) })
	for _, id := range usable {
		if worker := c.workers[id]; worker.placement == "local" {
			f.local[worker.address.GetHostId()] = append(f.local[worker.address.GetHostId()], id)
		} else {
			f.remote = append(f.remote, id)
		}
	}
	return f
}

// fleetOf returns the usable workers for a job by kind, each in the order of registration. A local worker serves the
// trainers of its own host only. The caller must not change the lists.
func (c *Core) fleetOf(job *durable.Job) (remote, local []string) {
	f := c.usableWorkers()
	var hosts []string
	for _, id := range job.ClientIds {
		if client := c.clients[id]; client != nil && client.hostID != "" && len(f.local[client.hostID]) > 0 && !slices.Contains(hosts, client.hostID) {
			hosts = append(hosts, client.hostID)
		}
	}
	switch len(hosts) {
	case 0:
		return f.remote, nil
	case 1:
		return f.remote, f.local[hosts[0]]
	}
	for _, host := range hosts {
		local = append(local, f.local[host]...)
	}
	slices.SortFunc(local, func(a, b string) int { return cmp.Compare(c.workers[a].order, c.workers[b].order) })
	return f.remote, local
}

// chooseMembers chooses the workers that serve the job, as many as were decided. Those that serve it stay; the ones with
// the least unfinished work leave first. New ones are those that serve the fewest other jobs with an objective, so that the
// searches of two jobs share workers only if there are too few. It returns whether the members changed.
func (c *Core) chooseMembers(job *durable.Job, p *placementState, remote, local []string) (changed bool) {
	wanted := [2]int{min(len(remote), int(job.Placement.GetRemote())), min(len(local), int(job.Placement.GetLocal()))}
	if p.serves != nil && p.fits(c, wanted, local) {
		return false
	}
	members := append(c.membersOf(job, p, remote, wanted[0]), c.membersOf(job, p, local, wanted[1])...)
	slices.Sort(members)
	if p.serves != nil && slices.Equal(members, p.members) {
		return false
	}
	c.setMembers(p, members)
	p.leaving = true
	for _, epoch := range job.Epochs {
		c.touchEpoch(epoch)
	}
	return true
}

// fits reports whether all members are usable and as many as wanted of each kind.
func (p *placementState) fits(c *Core, wanted [2]int, local []string) bool {
	var have [2]int
	for _, id := range p.members {
		worker := c.workers[id]
		if worker == nil || !c.usable(worker) {
			return false
		}
		if worker.placement != "local" {
			have[0]++
		} else if slices.Contains(local, id) {
			have[1]++
		}
	}
	return have == wanted && have[0]+have[1] == len(p.members)
}

// membersOf chooses so many workers of one kind.
func (c *Core) membersOf(job *durable.Job, p *placementState, usable []string, wanted int) []string {
	var stay, others []string
	for _, id := range usable {
		if p.serves[id] {
			stay = append(stay, id)
		} else {
			others = append(others, id)
		}
	}
	// Both sorts are stable, so equal workers stay in the order of registration.
	if len(stay) >= wanted {
		work := map[string]int{}
		for _, id := range stay {
			c.eachLease(id, func(j *durable.Job, _ *durable.Epoch, stream *pecanv1.StoredStream) {
				if j == job && !stream.Delivered {
					work[id]++
				}
			})
		}
		slices.SortStableFunc(stay, func(a, b string) int { return cmp.Compare(work[b], work[a]) })
		return stay[:wanted]
	}
	serving := c.fleet.serving
	slices.SortStableFunc(others, func(a, b string) int { return cmp.Compare(serving[a], serving[b]) })
	return append(stay, others[:wanted-len(stay)]...)
}

// setMembers replaces the workers that serve a job.
func (c *Core) setMembers(p *placementState, members []string) {
	serving := c.usableWorkers().serving
	for _, id := range p.members {
		if serving[id]--; serving[id] == 0 {
			delete(serving, id)
		}
	}
	p.members, p.serves = members, make(map[string]bool, len(members))
	for _, id := range members {
		serving[id]++
		p.serves[id] = true
	}
}
