package core

import (
	"hash/fnv"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/dispatcher/core/measure"
)

const (
	// placementPeriod is the time between two looks at a job.
	placementPeriod = 200 * time.Millisecond
	// settleTime is the time after a change of workers in which the buffers settle, windowTime the least length of a
	// measurement window.
	settleTime = time.Second
	windowTime = 3 * time.Second
	// leastSubWindows is the least number of sub-windows of each trainer in a window. A trainer that has reported none for
	// inactiveTime, and for inactiveSteps of its sub-windows, does not read.
	leastSubWindows = 4
	inactiveTime    = 5 * time.Second
	inactiveSteps   = 4
)

// placementState is the volatile state of a job's search for workers.
type placementState struct {
	// asked is the number of the open request; 0 without one.
	asked uint64
	// members serve the job, sorted. serves has the same workers; it is nil before the first decision.
	members []string
	serves  map[string]bool
	// leaving: streams of the job may still run on workers that no longer serve it.
	leaving bool
	// shares are the job's parts of the running streams of its members since the begin of the window.
	shares []float64
	// wanted is how many local workers each trainer should run, if decides is true. startingSince is the last
	// time at which a wanted worker was not running.
	wanted        map[string]int
	decides       bool
	startingSince time.Duration
	// returnUntil bounds the wait for the trainers and workers that were there before a restart.
	returnUntil time.Duration
	// stable is when members last changed, from the begin of the window, due the next look.
	stable, from, due time.Duration
	// last is the newest decision with its candidates.
	last *pecanv1.Placement
}

// placeable reports whether the job has an objective, and may run on any number of workers.
func placeable(job *durable.Job) bool {
	static := job.Options.GetSharding() != pecanv1.Sharding_SHARDING_DYNAMIC
	return job.Options.GetPlacement().GetObjective() != "" && job.Error == nil && !static && job.Options.GetMode() != pecanv1.Mode_MODE_OFF
}

// isRead reports whether a trainer has an iterator over the job.
func isRead(job *durable.Job) bool {
	return job.Error == nil && slices.ContainsFunc(job.Epochs, func(e *durable.Epoch) bool { return len(e.Passes) > 0 && !durable.AllPrefetched(e) })
}

// stepPlacements continues the searches that are due.
func (c *Core) stepPlacements() {
	c.memberChanges = 0
	for _, job := range c.state.Jobs() {
		if job.Options.GetPlacement().GetObjective() == "" {
			continue
		}
		p := c.placements[job.JobId]
		if p != nil && c.now < p.due || !placeable(job) || !isRead(job) {
			continue
		}
		if p == nil {
			p = &placementState{}
			if job.Placement != nil {
				p.returnUntil = c.now + c.cfg.DeadAfter
			}
			c.placements[job.JobId] = p
		}
		p.due = c.now + placementPeriod
		c.stepPlacement(job, p)
	}
}

func (c *Core) stepPlacement(job *durable.Job, p *placementState) {
	remote, local := c.fleetOf(job)
	most, attainable := c.mayRun(job), len(remote)
	if !targetsLocal(job) {
		attainable = c.fleet.Attainable(c.now, len(remote))
	}
	if attainable+len(local) == 0 {
		// A local worker is there before a remote one.
		c.wantLocal(job, p, max(1, int(job.Placement.GetLocal())), nil, most)
		return
	}
	if job.Placement != nil {
		if len(remote)+len(local) == 0 || c.returns(job, p) {
			// Those that serve the job may come back.
			p.stable = c.now
		} else {
			moved := c.chooseMembers(job, p, remote, local)
			if c.leaveMembers(job, p) || moved {
				p.stable = c.now
			}
		}
		serving := 0
		for _, id := range local {
			if p.serves[id] {
				serving++
			}
		}
		c.wantLocal(job, p, max(serving, int(job.Placement.GetLocal())), local, most)
		if c.startsLocal(p, local) {
			p.stable = c.now
		}
	}
	if p.last == nil {
		if p.asked == 0 {
			c.askPlacement(job, p, nil, attainable, len(remote), c.localLimit(local, most), len(local))
		}
		return
	}
	if len(remote) < int(job.Placement.GetRemote()) && c.fleet.Coming() {
		// What is measured before the wanted workers are there says nothing about them.
		p.stable = c.now
	}
	if from := p.stable + settleTime; p.from < from {
		p.from, p.shares = from, nil
	}
	if c.now >= p.from {
		p.addShare(c.shareOfMembers(job, p))
	}
	if p.asked != 0 || c.now < p.from+windowTime {
		return
	}
	if w := c.windowOf(job, p, local); w != nil {
		p.from, p.shares = c.now, nil
		c.askPlacement(job, p, w, attainable, len(remote), c.localLimit(local, most), len(local))
	}
}

// returns reports whether trainers of a job, or workers that hold its streams, may still come back after a restart. Nobody
// knows before which workers should serve it.
func (c *Core) returns(job *durable.Job, p *placementState) bool {
	if p.serves != nil || c.now >= p.returnUntil {
		return false
	}
	return !c.trainersKnown(job) || slices.ContainsFunc(job.Epochs, func(epoch *durable.Epoch) bool {
		return epoch.AnyActive(func(stream *pecanv1.StoredStream) bool {
			worker := c.workers[stream.Worker.GetWorkerId()]
			return worker != nil && worker.unheardSinceRestart
		})
	})
}

func (c *Core) askPlacement(job *durable.Job, p *placementState, w *measure.Window, remote, registered, local, registeredLocal int) {
	c.versions++
	p.asked = c.versions
	known := c.state.KnownPlacement(c.placementKey(job))
	if p.last == nil && job.Placement != nil {
		// The search of an earlier process had come so far.
		known = proto.CloneOf(known)
		if known == nil {
			known = &pecanv1.PlacementKnown{}
		}
		known.Remote, known.Local = job.Placement.Remote, job.Placement.Local
	}
	c.effect(PlacementRequest{
		Number: p.asked, JobID: job.JobId, Options: job.Options.GetPlacement(), Known: known, Remote: remote, Registered: registered, Local: local,
		RegisteredLocal: registeredLocal, Window: w, Plan: c.planNumber(job), Now: c.now,
	})
}

func (c *Core) placementKey(job *durable.Job) durable.PlacementKey {
	return durable.PlacementKey{Fingerprint: c.state.Dataset(job.DatasetId).GetFingerprint(), TrainerType: job.Options.GetPlacement().GetTrainerType()}
}

// planNumber changes with what determines the cost of an element.
func (c *Core) planNumber(job *durable.Job) uint64 {
	h := fnv.New64a()
	h.Write([]byte(job.Plan.GetHash()))
	for _, step := range c.state.OrderFor(job) {
		h.Write([]byte(step + "\n"))
	}
	h.Write([]byte(c.cacheStatus(job).GetState()))
	return h.Sum64()
}

// placed takes a decision. A decision that changes the workers is recorded before it has an effect.
func (c *Core) placed(in Placed) {
	p, job := c.placements[in.JobID], c.state.Job(in.JobID)
	if p == nil || job == nil || p.asked != in.Number {
		return
	}
	p.asked = 0
	if in.Placement == nil {
		return
	}
	before := job.Placement
	p.last = in.Placement
	if d := in.Placement; before == nil || before.Remote != d.Remote || before.Local != d.Local || before.State != d.State {
		c.emit(&pecanv1.Record{Kind: &pecanv1.Record_PlacementDecided{PlacementDecided: &pecanv1.PlacementDecided{JobId: job.JobId, Placement: d}}})
		c.event("placement decided", "job", job.JobId, "remote", d.Remote, "local", d.Local, "state", d.State, "why", d.Why)
	}
	if in.Known == nil || !in.Placement.Converged {
		return
	}
	key := c.placementKey(job)
	known := proto.CloneOf(in.Known)
	known.Fingerprint, known.TrainerType, known.KeptS = key.Fingerprint, key.TrainerType, c.unix()
	kept := c.state.KnownPlacement(key)
	if key.Fingerprint != "" && (kept == nil || kept.Remote != known.Remote || kept.Local != known.Local || before == nil || !before.Converged) {
		c.emit(&pecanv1.Record{Kind: &pecanv1.Record_PlacementKept{PlacementKept: &pecanv1.PlacementKept{Known: known}}})
	}
}

// leaveMembers takes streams that can begin at any index from workers that no longer serve the job. Other streams end
// where they are, and so do those of a worker that leaves, because it hands them over itself. A worker that is away keeps its
// streams as long as it may come back. It returns whether such a worker still runs one.
func (c *Core) leaveMembers(job *durable.Job, p *placementState) (runs bool) {
	if !p.leaving {
		return false
	}
	for _, epoch := range job.Epochs {
		for _, stream := range epoch.Active() {
			id := stream.Worker.GetWorkerId()
			worker := c.workers[id]
			if stream.Worker == nil || worker == nil || p.serves[id] {
				continue
			}
			if worker.away || worker.departure != nil {
				runs = runs || !stream.Produced && !stream.Delivered
				continue
			}
			if c.moveStream(job, epoch, stream, "worker "+id+" no longer serves the job") {
				runs = true
			}
		}
	}
	p.leaving = runs
	return runs
}

const (
	// maxShares bounds the kept shares of a window. disturbance is the change of the share within a window from which the
	// window does not count: other jobs on the same workers have begun or ended.
	maxShares   = 256
	disturbance = 0.15
)

// shareOfMembers returns the job's part of the streams that run on its members.
func (c *Core) shareOfMembers(job *durable.Job, p *placementState) float64 {
	all := 0
	for _, id := range p.members {
		all += c.schedule.Load(id)
	}
	if own := c.schedule.OfJob(job).Running; all > own {
		return float64(own) / float64(all)
	}
	return 1
}

func (p *placementState) addShare(share float64) {
	if len(p.shares) == maxShares {
		// A long window keeps every second one.
		for i := range maxShares / 2 {
			p.shares[i] = p.shares[2*i]
		}
		p.shares = p.shares[:maxShares/2]
	}
	p.shares = append(p.shares, share)
}

// disturbed reports whether the job's share of its members has changed within the window.
func (p *placementState) disturbed() bool {
	mean := func(part []float64) (sum float64) {
		for _, share := range part {
			sum += share / float64(len(part))
		}
		return sum
	}
	if len(p.shares) < 2 {
		return false
	}
	half := len(p.shares) / 2
	first, second := mean(p.shares[:half]), mean(p.shares[half:])
	return max(first, second)-min(first, second) > disturbance*max(first, second)
}

// windowOf returns the measurement window since p.from; nil while trainers have taken too little.
func (c *Core) windowOf(job *durable.Job, p *placementState, local []string) *measure.Window {
	w := &measure.Window{End: c.now, Length: c.now - p.from, Disturbed: p.disturbed()}
	hosts := map[string]*pecanv1.HostLoad{}
	for _, id := range slices.Sorted(slices.Values(job.ClientIds)) {
		client := c.clients[id]
		if client == nil || !c.reads(client) {
			continue
		}
		subs := client.consumed.Since(p.from)
		if len(subs) < leastSubWindows {
			return nil
		}
		w.Gap = w.Gap || measure.Gap(subs)
		w.Trainers = append(w.Trainers, measure.Trainer{Host: client.hostID, Subs: slices.Clone(subs)})
		if client.host != nil {
			hosts[client.host.HostId] = client.host
		}
	}
	if len(w.Trainers) == 0 {
		return nil
	}
	for _, id := range p.members {
		worker := c.workers[id]
		if worker == nil {
			// It is lost, and others have not been chosen yet.
			return nil
		}
		rates, known := worker.totals.Rates(job.JobId, p.from)
		if !known {
			return nil
		}
		isLocal := slices.Contains(local, id)
		if isLocal {
			w.Local++
		} else {
			w.Remote++
		}
		if worker.host != nil && hosts[worker.host.HostId] == nil {
			hosts[worker.host.HostId] = worker.host
		}
		w.Fleet = append(w.Fleet, measure.Serving{Host: worker.address.GetHostId(), Local: isLocal, Cores: int(worker.cores), Rates: rates})
	}
	for _, id := range slices.Sorted(maps.Keys(hosts)) {
		w.Hosts = append(w.Hosts, hosts[id])
	}
	return w
}

// reads reports whether a trainer takes elements.
func (c *Core) reads(client *clientState) bool {
	newest := client.consumed.Newest()
	return newest > 0 && c.now-newest <= max(inactiveTime, inactiveSteps*client.step())
}

// step returns the median length of the client's sub-windows, which have a step of the trainer at least; 0 without one.
func (c *clientState) step() time.Duration {
	return time.Duration(measure.Median(c.consumed.Since(0), measure.SubWindow.Seconds) * float64(time.Second))
}
