package placement

import (
	"cmp"
	"maps"
	"slices"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
)

// localStartTime is how long a search waits for the local workers that trainers start. They load TensorFlow first.
const localStartTime = 30 * time.Second

// maxLocalWorkers bounds the local workers that count for a job. The search looks at each number of them, and a trainer may
// claim to start any.
const maxLocalWorkers = 1024

// inTurn sorts local workers so that each host has one before any has two, and on a host each trainer. Those of one trainer
// keep the order of registration, in which the trainer started them; it stops the newest first.
func (p *Placements) inTurn(local []string) {
	sortInTurn(local, p.ownerOf)
	sortInTurn(local, func(id string) string { return p.workers[id].Host })
}

// sortInTurn sorts a list so that each owner has one before any has two. What an owner has keeps its order.
func sortInTurn(list []string, ownerOf func(string) string) {
	turn, count := map[string]int{}, map[string]int{}
	for _, id := range list {
		of := ownerOf(id)
		turn[id] = count[of]
		count[of]++
	}
	slices.SortStableFunc(list, func(a, b string) int { return cmp.Compare(turn[a], turn[b]) })
}

// ownerOf returns whom a local worker belongs to: a trainer, or a host.
func (p *Placements) ownerOf(id string) string {
	if worker := p.workers[id]; worker.Trainer == "" {
		return "host " + worker.Host
	}
	return "trainer " + p.workers[id].Trainer
}

// mayRun returns how many local workers each trainer of a job may run, by trainer. It returns nil if some trainer has not
// said where it is, or if no trainer lets the dispatcher decide.
func (p *Placements) mayRun(job *durable.Job) map[string]int {
	var first *client
	var most map[string]int
	for _, id := range job.ClientIds {
		c := p.clients[id]
		if c == nil || c.trainer == "" {
			return nil
		}
		if first == nil {
			first = c
		}
		if TargetsLocal(job) && c.trainer != first.trainer && (c.host != first.host || c.host == "") {
			return nil
		}
		if c.mayRun != nil {
			if most == nil {
				most = map[string]int{}
			}
			most[c.trainer] = max(most[c.trainer], int(c.mayRun.Most))
		}
	}
	if job.Options.GetPlacement().GetMaxLocal() < 0 || job.Plan.GetCache() != nil && !TargetsLocal(job) && !p.cachesLocally(most) {
		return nil
	}
	return most
}

// running returns how many local workers the trainers of a job run, if the dispatcher decides on them.
func (p *Placements) running(job *durable.Job) (n int) {
	counted := map[string]bool{}
	for _, id := range job.ClientIds {
		if c := p.clients[id]; c != nil && c.mayRun != nil && !counted[c.trainer] {
			counted[c.trainer] = true
			n += int(c.mayRun.Running)
		}
	}
	return min(n, maxLocalWorkers)
}

// cachesLocally reports whether some trainer's workers have a cache directory, as in a private cluster.
func (p *Placements) cachesLocally(trainers map[string]int) bool {
	for id := range p.local {
		worker := p.workers[id]
		if _, known := trainers[worker.Trainer]; known && worker.Caches {
			return true
		}
	}
	return false
}

// localLimit returns the number of local workers that may serve a job. It counts those that exist and those that trainers
// may start, at most maxLocalWorkers in all.
func (p *Placements) localLimit(local []string, most map[string]int) (n int) {
	exist := map[string]int{}
	for _, id := range local {
		if _, decided := most[p.workers[id].Trainer]; decided {
			exist[p.workers[id].Trainer]++
		} else {
			n++
		}
	}
	for trainer, limit := range most {
		n += max(limit, exist[trainer])
	}
	return min(n, maxLocalWorkers)
}

// wantLocal divides the wanted local workers among the hosts of the trainers that may start them, and on a host among its
// trainers, in turn. Workers that no trainer of these started come first, and then trainers whose workers serve the job.
func (p *Placements) wantLocal(job *durable.Job, s *search, wanted int, local []string, most map[string]int) {
	if !p.clientsKnown(job) {
		return
	}
	have := map[string]int{}
	for _, id := range local {
		worker := p.workers[id]
		if _, decided := most[worker.Trainer]; !decided {
			have[worker.Host]++
			wanted--
		}
	}
	want := map[string]int{}
	trainers := p.inOrderOfUse(s, most)
	hosts, on := p.hostsOf(job, trainers)
	for round, more := 0, true; more && wanted > 0; round++ {
		more = false
		for _, host := range hosts {
			next := ""
			for _, trainer := range on[host] {
				if want[trainer] < most[trainer] && (next == "" || want[trainer] < want[next]) {
					next = trainer
				}
			}
			if more = more || next != ""; next != "" && wanted > 0 && have[host] <= round {
				have[host]++
				want[next]++
				wanted--
			}
		}
	}
	for _, trainer := range trainers {
		if want[trainer] > s.wanted[trainer] {
			s.startingSince = p.host.Now()
		}
		if s.wanted[trainer] != want[trainer] {
			p.host.Log("local workers wanted", "trainer", trainer, "number", want[trainer], "before", s.wanted[trainer])
		}
	}
	s.wanted, s.decides = want, true
}

// inOrderOfUse returns trainers: first those whose local workers serve a job, and then those that have registered ones.
func (p *Placements) inOrderOfUse(s *search, trainers map[string]int) []string {
	list := slices.Sorted(maps.Keys(trainers))
	if len(list) < 2 {
		return list
	}
	use := map[string]int{}
	for id := range p.local {
		trainer := p.workers[id].Trainer
		if use[trainer] = max(use[trainer], 1); s.serves[id] {
			use[trainer] = 2
		}
	}
	slices.SortStableFunc(list, func(a, b string) int { return cmp.Compare(use[b], use[a]) })
	return list
}

// hostsOf returns the hosts of trainers of a job, and the trainers on each, in the order of the trainers.
func (p *Placements) hostsOf(job *durable.Job, trainers []string) (hosts []string, on map[string][]string) {
	hostOf := map[string]string{}
	for _, id := range job.ClientIds {
		if c := p.clients[id]; c != nil {
			hostOf[c.trainer] = c.host
		}
	}
	on = map[string][]string{}
	for _, trainer := range trainers {
		host := hostOf[trainer]
		if on[host] == nil {
			hosts = append(hosts, host)
		}
		on[host] = append(on[host], trainer)
	}
	return hosts, on
}

// startsLocal reports whether trainers are starting local workers that a search waits for.
func (p *Placements) startsLocal(s *search, local []string) bool {
	wanted := 0
	for _, n := range s.wanted {
		wanted += n
	}
	for _, id := range local {
		if s.wanted[p.workers[id].Trainer] > 0 {
			wanted--
		}
	}
	return wanted > 0 && p.host.Now()-s.startingSince < localStartTime
}

// WantedLocal returns how many local workers the trainer of a client should run for jobs; nil if nothing is decided.
func (p *Placements) WantedLocal(clientID string, jobIDs []string) (wanted *pecanv1.WantedLocalWorkers) {
	c := p.clients[clientID]
	if c == nil || c.mayRun == nil {
		return nil
	}
	for _, id := range jobIDs {
		s, job := p.searches[id], p.state.Job(id)
		if s == nil || job == nil || !s.decides {
			continue
		}
		if n := uint32(s.wanted[c.trainer]); wanted == nil || n > wanted.Number {
			wanted = &pecanv1.WantedLocalWorkers{Number: n, Why: "no worker is registered"}
			if newest := p.newest(job); newest != nil {
				wanted.Why = newest.GetWhy()
			}
		}
	}
	return wanted
}
