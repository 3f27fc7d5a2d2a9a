package core

import (
	"cmp"
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
	// members serve the job, excluded are all others. chosen: a decision chose them.
	members  []string
	excluded map[string]bool
	chosen   bool
	// wanted is how many local workers each trainer should run, if decides is true. startingSince is when one was wanted
	// last that did not run.
	wanted        map[string]int
	decides       bool
	startingSince time.Duration
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

// stepPlacements continues the searches of all jobs that are read.
func (c *Core) stepPlacements() {
	for _, job := range c.state.Jobs() {
		if !placeable(job) || !isRead(job) {
			continue
		}
		p := c.placements[job.JobId]
		if p == nil {
			p = &placementState{}
			c.placements[job.JobId] = p
		}
		if c.now >= p.due {
			p.due = c.now + placementPeriod
			c.stepPlacement(job, p)
		}
	}
}

func (c *Core) stepPlacement(job *durable.Job, p *placementState) {
	remote, local := c.fleetOf(job)
	most, attainable := c.mayRun(job), c.fleet.Attainable(c.now, len(remote))
	if attainable+len(local) == 0 {
		// A local worker is there before a remote one.
		c.wantLocal(job, p, max(1, int(job.Placement.GetLocal())), nil, most)
		return
	}
	if job.Placement != nil {
		moved := c.chooseMembers(job, p, remote, local)
		if c.leaveMembers(job, p) || moved {
			p.stable = c.now
		}
		serving := 0
		for _, id := range local {
			if slices.Contains(p.members, id) {
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
			c.askPlacement(job, p, nil, attainable, c.localLimit(local, most), len(remote))
		}
		return
	}
	if len(remote) < int(job.Placement.GetRemote()) && c.fleet.Coming() {
		// What is measured before the wanted workers are there says nothing about them.
		p.stable = c.now
	}
	p.from = max(p.from, p.stable+settleTime)
	if p.asked != 0 || c.now < p.from+windowTime {
		return
	}
	if w := c.windowOf(job, p, local); w != nil {
		p.from = c.now
		c.askPlacement(job, p, w, attainable, c.localLimit(local, most), len(remote))
	}
}

func (c *Core) askPlacement(job *durable.Job, p *placementState, w *measure.Window, remote, local, registered int) {
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
		Number: p.asked, JobID: job.JobId, Options: job.Options.GetPlacement(), Known: known, Remote: remote, Local: local, Registered: registered, Window: w,
		Plan: c.planNumber(job), Now: c.now,
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
	known.Fingerprint, known.TrainerType = key.Fingerprint, key.TrainerType
	kept := c.state.KnownPlacement(key)
	if key.Fingerprint != "" && c.state.RoomForPlacement(key) && (kept == nil || kept.Remote != known.Remote || kept.Local != known.Local || before == nil || !before.Converged) {
		c.emit(&pecanv1.Record{Kind: &pecanv1.Record_PlacementKept{PlacementKept: &pecanv1.PlacementKept{Known: known}}})
	}
}

// fleetOf returns the usable workers that may serve a job by kind, remote ones in the order of registration.
func (c *Core) fleetOf(job *durable.Job) (remote, local []string) {
	for id, worker := range c.workers {
		switch {
		case !c.usable(worker) || !c.serves(worker, job):
		case worker.placement != "local":
			remote = append(remote, id)
		default:
			local = append(local, id)
		}
	}
	for _, list := range [][]string{remote, local} {
		slices.SortFunc(list, func(a, b string) int { return int(int64(c.workers[a].order) - int64(c.workers[b].order)) })
	}
	c.inTurn(local)
	return remote, local
}

// chooseMembers chooses the workers that serve the job, as many as were decided. Remote ones that serve it stay; the ones
// with the least unfinished work leave first. Workers that serve the fewest other jobs come first. While no worker of a
// decided kind exists, one of the other kind serves. It returns whether they changed.
func (c *Core) chooseMembers(job *durable.Job, p *placementState, remote, local []string) (changed bool) {
	work := map[string]int{}
	for _, id := range p.members {
		c.eachLease(id, func(j *durable.Job, _ *durable.Epoch, stream *pecanv1.StoredStream) {
			if j == job && !stream.Delivered {
				work[id]++
			}
		})
	}
	// The sort is stable, so workers with equal work stay in the order of registration.
	slices.SortStableFunc(remote, func(a, b string) int {
		in := func(id string) int {
			if slices.Contains(p.members, id) {
				return 1 + work[id]
			}
			return 0
		}
		return cmp.Or(in(b)-in(a), c.serving[a]-c.serving[b])
	})
	members := slices.Concat(remote[:min(len(remote), int(job.Placement.GetRemote()))], local[:min(len(local), int(job.Placement.GetLocal()))])
	if exist := slices.Concat(remote, local); len(members) == 0 && len(exist) > 0 {
		members = exist[:1]
	}
	slices.Sort(members)
	excluded := map[string]bool{}
	for id := range c.workers {
		if !slices.Contains(members, id) {
			excluded[id] = true
		}
	}
	changed = !slices.Equal(members, p.members)
	if changed || !p.chosen || !maps.Equal(excluded, p.excluded) {
		c.countServing(p.members, -1)
		c.countServing(members, 1)
		p.members, p.excluded, p.chosen = members, excluded, true
		for _, epoch := range job.Epochs {
			c.touchEpoch(epoch)
		}
	}
	return changed
}

// leaveMembers takes streams that can begin at any index from workers that no longer serve the job. Other streams end
// where they are. It returns whether a worker still runs one.
func (c *Core) leaveMembers(job *durable.Job, p *placementState) (runs bool) {
	for _, id := range slices.Sorted(maps.Keys(p.excluded)) {
		c.eachLease(id, func(j *durable.Job, epoch *durable.Epoch, stream *pecanv1.StoredStream) {
			if j == job && c.moveStream(j, epoch, stream, "worker "+id+" no longer serves the job") {
				runs = true
			}
		})
	}
	return runs
}

// windowOf returns the measurement window since p.from; nil while trainers have taken too little.
func (c *Core) windowOf(job *durable.Job, p *placementState, local []string) *measure.Window {
	w := &measure.Window{End: c.now, Length: c.now - p.from}
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
	if newest == 0 {
		return false
	}
	step := time.Duration(measure.Median(client.consumed.Since(0), measure.SubWindow.Seconds) * float64(time.Second))
	return c.now-newest <= max(inactiveTime, inactiveSteps*step)
}
