package placement

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

// servingHeap is a heap of workers. Among those that serve equally many jobs, the one that registered first is on top.
type servingHeap struct {
	p   *Placements
	ids []string
	at  map[string]int
}

// Len implements heap.Interface.
func (h *servingHeap) Len() int { return len(h.ids) }

// Less implements heap.Interface.
func (h *servingHeap) Less(i, j int) bool {
	a, b := h.ids[i], h.ids[j]
	return cmp.Or(cmp.Compare(h.p.candidates.serving[a], h.p.candidates.serving[b]), h.p.compareOrder(a, b)) < 0
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

func (p *Placements) remoteCandidates() *candidates {
	f := &p.candidates
	if f.built {
		return f
	}
	f.built, f.remote = true, nil
	if f.serving == nil {
		f.serving = map[string]int{}
	}
	for id, worker := range p.workers {
		if !worker.Local && worker.Usable {
			f.remote = append(f.remote, id)
		}
	}
	p.sortByOrder(f.remote)
	f.idlest = servingHeap{p: p, ids: slices.Clone(f.remote), at: make(map[string]int, len(f.remote))}
	for i, id := range f.remote {
		f.idlest.at[id] = i
	}
	heap.Init(&f.idlest)
	return f
}

// chooseMembers chooses the workers that serve the job, as many as were decided. While no worker of a decided kind exists,
// one of the other kind serves. Remote ones that serve it stay; the ones with the least unfinished work leave first. New
// ones are those that serve the fewest other jobs with an objective. The searches of two jobs then share workers only if
// there are too few. It returns whether the members changed.
func (p *Placements) chooseMembers(job *durable.Job, s *search, remote, local []string) (changed bool) {
	wanted := [2]int{min(len(remote), int(job.Placement.GetRemote())), min(len(local), int(job.Placement.GetLocal()))}
	if wanted == [2]int{} {
		wanted[0] = min(len(remote), 1)
		wanted[1] = min(len(local), 1-wanted[0])
	}
	locals := p.localMembers(job, s, local, wanted[1])
	if s.serves != nil && (p.fits(s, job, wanted[0], locals) || p.memberChanges >= maxMemberChanges) {
		return false
	}
	members := append(p.remoteMembers(job, s, remote, wanted[0]), locals...)
	slices.Sort(members)
	if s.serves != nil && slices.Equal(members, s.members) {
		return false
	}
	p.setMembers(s, members)
	p.memberChanges++
	s.leaving = true
	for _, epoch := range job.Epochs {
		p.host.Touch(epoch)
	}
	return true
}

// fits reports whether the members are this many usable remote workers, and these local ones.
func (p *Placements) fits(s *search, job *durable.Job, remote int, locals []string) bool {
	var have [2]int
	for _, id := range s.members {
		switch worker := p.workers[id]; {
		case worker == nil || !worker.Usable || !p.serves(worker, job):
			return false
		case !worker.Local:
			have[0]++
		case slices.Contains(locals, id):
			have[1]++
		default:
			return false
		}
	}
	return have == [2]int{remote, len(locals)}
}

// remoteMembers chooses this many of the remote workers that may serve a job.
func (p *Placements) remoteMembers(job *durable.Job, s *search, remote []string, wanted int) []string {
	var stay []string
	for _, id := range s.members {
		if worker := p.workers[id]; worker != nil && worker.Usable && !worker.Local && p.serves(worker, job) {
			stay = append(stay, id)
		}
	}
	p.sortByOrder(stay)
	if len(stay) >= wanted {
		p.sortByWork(job, stay)
		return stay[:wanted]
	}
	if !TargetsLocal(job) {
		return append(stay, p.candidates.idlest.take(wanted-len(stay), s.serves)...)
	}
	others := slices.DeleteFunc(slices.Clone(remote), func(id string) bool { return s.serves[id] })
	p.sortByServing(others)
	return append(stay, others[:wanted-len(stay)]...)
}

// localMembers chooses this many of the local workers that may serve a job. Those that no trainer started are chosen like
// remote ones. Those of a trainer are its oldest ones, because it stops the newest first.
func (p *Placements) localMembers(job *durable.Job, s *search, local []string, wanted int) []string {
	var stay, others, started []string
	for _, id := range local {
		switch {
		case p.workers[id].Trainer != "":
			started = append(started, id)
		case s.serves[id]:
			stay = append(stay, id)
		default:
			others = append(others, id)
		}
	}
	p.sortByWork(job, stay)
	p.sortByServing(others)
	local = slices.Concat(stay, others, started)
	p.inTurn(local)
	return local[:wanted]
}

// sortByWork sorts workers so that those with the most unfinished streams of a job come first. Equal ones keep their order.
func (p *Placements) sortByWork(job *durable.Job, ids []string) {
	work := map[string]int{}
	for _, id := range ids {
		p.state.EachLease(id, func(j *durable.Job, _ *durable.Epoch, stream *pecanv1.StoredStream) {
			if j == job && !stream.Delivered {
				work[id]++
			}
		})
	}
	slices.SortStableFunc(ids, func(a, b string) int { return cmp.Compare(work[b], work[a]) })
}

// sortByServing sorts workers so that those that serve the fewest jobs come first. Equal ones keep their order.
func (p *Placements) sortByServing(ids []string) {
	slices.SortStableFunc(ids, func(a, b string) int {
		return cmp.Compare(p.candidates.serving[a], p.candidates.serving[b])
	})
}

// setMembers replaces the workers that serve a job.
func (p *Placements) setMembers(s *search, members []string) {
	serving := p.remoteCandidates().serving
	count := func(id string, change int) {
		if serving[id] += change; serving[id] == 0 {
			delete(serving, id)
		}
		if at, usable := p.candidates.idlest.at[id]; usable {
			heap.Fix(&p.candidates.idlest, at)
		}
	}
	for _, id := range s.members {
		count(id, -1)
	}
	s.members, s.serves = members, make(map[string]bool, len(members))
	for _, id := range members {
		count(id, 1)
		s.serves[id] = true
	}
}
