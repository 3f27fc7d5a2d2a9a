package core

import (
	"cmp"
	"container/heap"
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
	// serving counts the jobs with an objective that each worker serves. idlest has the remote workers with the one on top
	// that serves the fewest.
	serving map[string]int
	idlest  servingHeap
}

// servingHeap is a heap of workers. Of those that serve equally many jobs, the one that registered first is on top.
type servingHeap struct {
	c   *Core
	ids []string
	at  map[string]int
}

// Len implements heap.Interface.
func (h *servingHeap) Len() int { return len(h.ids) }

// Less implements heap.Interface.
func (h *servingHeap) Less(i, j int) bool {
	a, b := h.ids[i], h.ids[j]
	return cmp.Or(cmp.Compare(h.c.fleet.serving[a], h.c.fleet.serving[b]), cmp.Compare(h.c.workers[a].order, h.c.workers[b].order)) < 0
}

// Swap implements heap.Interface.
func (h *servingHeap) Swap(i, j int) {
	h.ids[i], h.ids[j] = h.ids[j], h.ids[i]
	h.at[h.ids[i]], h.at[h.ids[j]] = i, j
}

// Push implements heap.Interface.
func (h *servingHeap) Push(x any) {
	h.at[x.(string)] = len(h.ids)
	h.ids = append(h.ids, x.(string))
}

// Pop implements heap.Interface.
func (h *servingHeap) Pop() any {
	last := len(h.ids) - 1
	id := h.ids[last]
	h.ids = h.ids[:last]
	delete(h.at, id)
	return id
}

// take returns up to n workers that serve the fewest jobs, without those of a list.
func (h *servingHeap) take(n int, without map[string]bool) (taken []string) {
	var popped []string
	for len(taken) < n && len(h.ids) > 0 {
		id := heap.Pop(h).(string)
		popped = append(popped, id)
		if !without[id] {
			taken = append(taken, id)
		}
	}
	for _, id := range popped {
		heap.Push(h, id)
	}
	return taken
}

// maxMemberChanges bounds the jobs whose workers change in one tick, because each change moves streams. The others follow in
// the next ticks.
const maxMemberChanges = 32

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
	f.idlest = servingHeap{c: c, ids: slices.Clone(f.remote), at: make(map[string]int, len(f.remote))}
	for i, id := range f.remote {
		f.idlest.at[id] = i
	}
	heap.Init(&f.idlest)
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
	if p.serves != nil && (p.fits(c, wanted, local) || c.memberChanges >= maxMemberChanges) {
		return false
	}
	members := append(c.membersOf(job, p, remote, true, wanted[0]), c.membersOf(job, p, local, false, wanted[1])...)
	slices.Sort(members)
	if p.serves != nil && slices.Equal(members, p.members) {
		return false
	}
	c.setMembers(p, members)
	c.memberChanges++
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
func (c *Core) membersOf(job *durable.Job, p *placementState, usable []string, remote bool, wanted int) []string {
	var stay, others []string
	for _, id := range p.members {
		if worker := c.workers[id]; worker != nil && c.usable(worker) && (worker.placement != "local") == remote && (remote || slices.Contains(usable, id)) {
			stay = append(stay, id)
		}
	}
	// The sorts are stable, so equal workers stay in the order of registration.
	slices.SortFunc(stay, func(a, b string) int { return cmp.Compare(c.workers[a].order, c.workers[b].order) })
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
	if remote {
		return append(stay, c.fleet.idlest.take(wanted-len(stay), p.serves)...)
	}
	for _, id := range usable {
		if !p.serves[id] {
			others = append(others, id)
		}
	}
	slices.SortStableFunc(others, func(a, b string) int { return cmp.Compare(c.fleet.serving[a], c.fleet.serving[b]) })
	return append(stay, others[:min(len(others), wanted-len(stay))]...)
}

// setMembers replaces the workers that serve a job.
func (c *Core) setMembers(p *placementState, members []string) {
	serving := c.usableWorkers().serving
	count := func(id string, change int) {
		if serving[id] += change; serving[id] == 0 {
			delete(serving, id)
		}
		if at, usable := c.fleet.idlest.at[id]; usable {
			heap.Fix(&c.fleet.idlest, at)
		}
	}
	for _, id := range p.members {
		count(id, -1)
	}
	p.members, p.serves = members, make(map[string]bool, len(members))
	for _, id := range members {
		count(id, 1)
		p.serves[id] = true
	}
}
