package placement

import (
	"maps"
	"slices"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/dispatcher/core/measure"
)

const (
	// leastSubWindows is the least number of sub-windows of each trainer in a window. A trainer that has reported none for
	// inactiveTime, and for inactiveSteps of its sub-windows, does not read.
	leastSubWindows = 4
	inactiveTime    = 5 * time.Second
	inactiveSteps   = 4
	// maxShares bounds the kept shares of a window. A window does not count if the share changes in it, or since the one before,
	// by more than disturbance. Other jobs on the same workers have then begun or ended.
	maxShares   = 256
	disturbance = 0.15
)

// shareOfMembers returns the job's share of the streams that run on its members.
func (p *Placements) shareOfMembers(job *durable.Job, s *search) float64 {
	all := 0
	for _, id := range s.members {
		all += p.schedule.Load(id)
	}
	if own := p.schedule.OfJob(job).Running; all > own {
		return float64(own) / float64(all)
	}
	return 1
}

func (s *search) addShare(share float64) {
	if len(s.shares) == maxShares {
		// A long window keeps every second one.
		for i := range maxShares / 2 {
			s.shares[i] = s.shares[2*i]
		}
		s.shares = s.shares[:maxShares/2]
	}
	s.shares = append(s.shares, share)
}

// meanShares returns the job's mean share of its members in both halves of the window; 0 while too little is known.
func (s *search) meanShares() (first, second float64) {
	if len(s.shares) < 2 {
		return 0, 0
	}
	mean := func(half []float64) (sum float64) {
		for _, share := range half {
			sum += share / float64(len(half))
		}
		return sum
	}
	half := len(s.shares) / 2
	return mean(s.shares[:half]), mean(s.shares[half:])
}

// Disturb keeps the open window of a job from counting: its streams wait for another job.
func (p *Placements) Disturb(job *durable.Job) {
	if s := p.searches[job.JobId]; s != nil {
		s.waits = true
	}
}

// disturbed reports whether the job's share of its members has changed within the window, or since the window before. A window in
// which its streams have waited for another job is disturbed too.
func (s *search) disturbed() bool {
	first, second := s.meanShares()
	differ := func(a, b float64) bool { return max(a, b)-min(a, b) > disturbance*max(a, b) }
	return s.waits || differ(first, second) || s.before > 0 && differ(s.before, first)
}

// windowOf returns the measurement window since s.from; nil while trainers have taken too little.
func (p *Placements) windowOf(job *durable.Job, s *search, local []string) *measure.Window {
	w := &measure.Window{End: p.host.Now(), Length: p.host.Now() - s.from, Disturbed: s.disturbed()}
	hosts := map[string]*pecanv1.HostLoad{}
	for _, id := range slices.Sorted(slices.Values(job.ClientIds)) {
		c := p.clients[id]
		if c == nil || !p.reads(c) {
			continue
		}
		subs := c.consumed.Since(s.from)
		if len(subs) < leastSubWindows {
			return nil
		}
		w.Gap = w.Gap || measure.Gap(subs)
		w.Trainers = append(w.Trainers, measure.Trainer{Host: c.host, Subs: slices.Clone(subs)})
		if c.load != nil {
			hosts[c.load.HostId] = c.load
		}
	}
	if len(w.Trainers) == 0 {
		return nil
	}
	for _, id := range s.members {
		worker := p.workers[id]
		if worker == nil {
			// It is lost, and others have not been chosen yet.
			return nil
		}
		rates, known := worker.Totals.Rates(job.JobId, s.from)
		if !known {
			return nil
		}
		isLocal := slices.Contains(local, id)
		if isLocal {
			w.Local++
		} else {
			w.Remote++
		}
		if worker.Load != nil && hosts[worker.Load.HostId] == nil {
			hosts[worker.Load.HostId] = worker.Load
		}
		w.Fleet = append(w.Fleet, measure.Serving{Host: worker.Host, Local: isLocal, Cores: worker.Cores, Rates: rates})
	}
	for _, id := range slices.Sorted(maps.Keys(hosts)) {
		w.Hosts = append(w.Hosts, hosts[id])
	}
	return w
}

// reads reports whether a trainer takes elements.
func (p *Placements) reads(c *client) bool {
	newest := c.consumed.Newest()
	return newest > 0 && p.host.Now()-newest <= max(inactiveTime, c.inactiveSteps())
}

// InactiveSteps returns the time of the steps in which a client that takes nothing may still read; 0 if it has taken nothing.
func (p *Placements) InactiveSteps(clientID string) time.Duration {
	if c := p.clients[clientID]; c != nil {
		return c.inactiveSteps()
	}
	return 0
}

// inactiveSteps follows from the median length of the client's sub-windows, which have a step of the trainer at least.
func (c *client) inactiveSteps() time.Duration {
	return inactiveSteps * time.Duration(measure.Median(c.consumed.Since(0), measure.SubWindow.Seconds)*float64(time.Second))
}
