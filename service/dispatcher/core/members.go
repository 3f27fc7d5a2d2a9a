package core

import (
	"cmp"
	"container/heap"
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
)

// candidates has the usable remote workers in the order of registration. It is built again when a worker changed.
type candidates struct {
	built  bool
	remote []string
	// serving counts the jobs with an objective that each worker serves. idlest is a heap of remote workers; the one that
	// serves the fewest jobs is on top.
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
	return cmp.Or(cmp.Compare(h.c.candidates.serving[a], h.c.candidates.serving[b]), h.c.compareOrder(a, b)) < 0
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

func (c *Core) remoteCandidates() *candidates {
	f := &c.candidates
	if f.built {
		return f
	}
	f.built, f.remote = true, nil
	if f.serving == nil {
		f.serving = map[string]int{}
	}
	for id, worker := range c.workers {
		if worker.kind != "local" && c.usable(worker) {
			f.remote = append(f.remote, id)
		}
	}
	c.sortByOrder(f.remote)
	f.idlest = servingHeap{c: c, ids: slices.Clone(f.remote), at: make(map[string]int, len(f.remote))}
	for i, id := range f.remote {
		f.idlest.at[id] = i
	}
	heap.Init(&f.idlest)
	return f
}

// fleetOf returns the usable workers that may serve a job by kind, each in the order of registration. The caller must not
// change the lists.
func (c *Core) fleetOf(job *durable.Job) (remote, local []string) {
	near, only := c.localsOf(job)
	for id := range near {
		switch worker := c.workers[id]; {
		case !c.usable(worker):
		case worker.kind == "local":
			local = append(local, id)
		default:
			remote = append(remote, id)
		}
	}
	c.sortByOrder(local)
	if !only {
		return c.remoteCandidates().remote, local
	}
	c.sortByOrder(remote)
	return remote, local
}

// sortByOrder sorts workers by the order of registration.
func (c *Core) sortByOrder(ids []string) {
	slices.SortFunc(ids, c.compareOrder)
}

// compareOrder orders two workers by their registration.
func (c *Core) compareOrder(a, b string) int {
	return cmp.Or(cmp.Compare(c.workers[a].order, c.workers[b].order), cmp.Compare(a, b))
}

// chooseMembers chooses the workers that serve the job, as many as were decided. While no worker of a decided kind exists,
// one of the other kind serves. Remote ones that serve it stay; the ones with the least unfinished work leave first. New ones
// are those that serve the fewest other jobs with an objective, so that the searches of two jobs share workers only if there
// are too few. It returns whether the members changed.
func (c *Core) chooseMembers(job *durable.Job, p *placementState, remote, local []string) (changed bool) {
	wanted := [2]int{min(len(remote), int(job.Placement.GetRemote())), min(len(local), int(job.Placement.GetLocal()))}
	if wanted == [2]int{} {
		wanted[0] = min(len(remote), 1)
		wanted[1] = min(len(local), 1-wanted[0])
	}
	locals := c.localMembers(job, p, local, wanted[1])
	if p.serves != nil && (p.fits(c, job, wanted[0], locals) || c.memberChanges >= maxMemberChanges) {
		return false
	}
	members := append(c.remoteMembers(job, p, remote, wanted[0]), locals...)
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

// fits reports whether the members are so many usable remote workers, and these local ones.
func (p *placementState) fits(c *Core, job *durable.Job, remote int, locals []string) bool {
	var have [2]int
	for _, id := range p.members {
		switch worker := c.workers[id]; {
		case worker == nil || !c.usable(worker) || !c.serves(worker, job):
			return false
		case worker.kind != "local":
			have[0]++
		case slices.Contains(locals, id):
			have[1]++
		default:
			return false
		}
	}
	return have == [2]int{remote, len(locals)}
}

// remoteMembers chooses so many of the remote workers that may serve a job.
func (c *Core) remoteMembers(job *durable.Job, p *placementState, remote []string, wanted int) []string {
	var stay []string
	for _, id := range p.members {
		if worker := c.workers[id]; worker != nil && c.usable(worker) && worker.kind != "local" && c.serves(worker, job) {
			stay = append(stay, id)
		}
	}
	c.sortByOrder(stay)
	if len(stay) >= wanted {
		c.sortByWork(job, stay)
		return stay[:wanted]
	}
	if !targetsLocal(job) {
		return append(stay, c.candidates.idlest.take(wanted-len(stay), p.serves)...)
	}
	others := slices.DeleteFunc(slices.Clone(remote), func(id string) bool { return p.serves[id] })
	c.sortByServing(others)
	return append(stay, others[:wanted-len(stay)]...)
}

// localMembers chooses so many of the local workers that may serve a job. Those that no trainer started are chosen like
// remote ones. Those of a trainer are its oldest ones, because it stops the newest first.
func (c *Core) localMembers(job *durable.Job, p *placementState, local []string, wanted int) []string {
	var stay, others, started []string
	for _, id := range local {
		switch {
		case c.workers[id].trainer != "":
			started = append(started, id)
		case p.serves[id]:
			stay = append(stay, id)
		default:
			others = append(others, id)
		}
	}
	c.sortByWork(job, stay)
	c.sortByServing(others)
	local = slices.Concat(stay, others, started)
	c.inTurn(local)
	return local[:wanted]
}

// sortByWork sorts workers so that those with the most unfinished streams of a job come first. Equal ones keep their order.
func (c *Core) sortByWork(job *durable.Job, ids []string) {
	work := map[string]int{}
	for _, id := range ids {
		c.eachLease(id, func(j *durable.Job, _ *durable.Epoch, stream *pecanv1.StoredStream) {
			if j == job && !stream.Delivered {
				work[id]++
			}
		})
	}
	slices.SortStableFunc(ids, func(a, b string) int { return cmp.Compare(work[b], work[a]) })
}

// sortByServing sorts workers so that those that serve the fewest jobs come first. Equal ones keep their order.
func (c *Core) sortByServing(ids []string) {
	slices.SortStableFunc(ids, func(a, b string) int {
		return cmp.Compare(c.candidates.serving[a], c.candidates.serving[b])
	})
}

// setMembers replaces the workers that serve a job.
func (c *Core) setMembers(p *placementState, members []string) {
	serving := c.remoteCandidates().serving
	count := func(id string, change int) {
		if serving[id] += change; serving[id] == 0 {
			delete(serving, id)
		}
		if at, usable := c.candidates.idlest.at[id]; usable {
			heap.Fix(&c.candidates.idlest, at)
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
