package core

import (
	"cmp"
	"maps"
	"slices"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/graph/split"
)

// localStartTime is how long a search waits for the local workers that trainers start. They load TensorFlow first.
const localStartTime = 30 * time.Second

// maxLocalWorkers bounds the local workers that count for a job. The search looks at each number of them, and a trainer may
// claim to start any.
const maxLocalWorkers = 1024

// localKey is a host or a trainer.
type localKey struct{ host, trainer string }

// localsOfJob has the local workers that may serve a job, as of a version of the workers.
type localsOfJob struct {
	version uint64
	workers map[string]bool
}

// registeredWorkers has the registered workers by kind and place.
type registeredWorkers struct {
	// local has the local workers. near has all workers of each host, and those that each trainer started.
	local map[string]bool
	near  map[localKey]map[string]bool
	// version changes with any worker, localVersion with local ones only.
	version, localVersion uint64
}

// enterFleet notes that a worker has registered.
func (c *Core) enterFleet(id string, worker *workerState) {
	r := &c.registered
	for _, key := range worker.localKeys() {
		if r.near[key] == nil {
			r.near[key] = map[string]bool{}
		}
		r.near[key][id] = true
	}
	if worker.kind == "local" {
		r.local[id] = true
	}
	c.fleetChanged(worker)
}

// leaveFleet notes that a worker is lost, or about to register again with what may be other properties.
func (c *Core) leaveFleet(id string, worker *workerState) {
	r := &c.registered
	for _, key := range worker.localKeys() {
		if delete(r.near[key], id); len(r.near[key]) == 0 {
			delete(r.near, key)
		}
	}
	delete(r.local, id)
	c.fleetChanged(worker)
}

func (c *Core) fleetChanged(worker *workerState) {
	c.candidates.built = false
	c.registered.version++
	if worker.kind == "local" {
		c.registered.localVersion++
		c.localsMoved = true
	}
}

// localKeys returns the host of a worker, and the trainer that started it.
func (w *workerState) localKeys() (keys []localKey) {
	if host := w.address.GetHostId(); host != "" {
		keys = append(keys, localKey{host: host})
	}
	if w.trainer != "" {
		keys = append(keys, localKey{trainer: w.trainer})
	}
	return keys
}

// trainersChanged notes that a trainer of a job has come or gone, or has said where it is. Other workers may serve the job.
func (c *Core) trainersChanged(job *durable.Job) {
	delete(c.locals, job.JobId)
	if len(c.registered.local) == 0 && !targetsLocal(job) {
		return
	}
	c.localsMoved = true
	for _, epoch := range job.Epochs {
		c.schedule.EpochChanged(epoch)
	}
}

// serves reports whether a worker may get streams of a job. A local worker serves the trainers of its host. One that a
// trainer started serves only jobs of this trainer, because it has the trainer's rights and ends with it. Each trainer
// of a job may get any stream, so all of them must be on that host.
func (c *Core) serves(worker *workerState, job *durable.Job) bool {
	onlyLocal := targetsLocal(job)
	if worker.kind != "local" && !onlyLocal {
		return true
	}
	if worker.trainer != "" && !worker.caches && !onlyLocal && c.cacheKey(job) != "" {
		// Its streams would be missing in the cache.
		return false
	}
	own := worker.trainer == ""
	for _, id := range job.ClientIds {
		client := c.clients[id]
		if client == nil {
			return false
		}
		mine := worker.trainer != "" && client.trainerID == worker.trainer
		if !mine && (client.hostID == "" || client.hostID != worker.address.GetHostId()) {
			return false
		}
		own = own || mine
	}
	return own && len(job.ClientIds) > 0
}

func targetsLocal(job *durable.Job) bool {
	return job.Options.GetTargetWorkers() == pecanv1.TargetWorkers_TARGET_WORKERS_LOCAL
}

// localsOf returns the local workers that may serve a job. only: no other worker may, and the list has all workers on the host
// of the job's trainers. It does not depend on decisions. The caller must not change the list.
func (c *Core) localsOf(job *durable.Job) (workers map[string]bool, only bool) {
	r, only := &c.registered, targetsLocal(job)
	if len(r.local) == 0 && !only {
		return nil, false
	}
	version := r.localVersion
	if only {
		version = r.version
	}
	if known, is := c.locals[job.JobId]; is && known.version == version {
		return known.workers, only
	}
	workers = map[string]bool{}
	if len(job.ClientIds) > 0 {
		// A worker that may serve the job is near to all its trainers, so it is near to the first one.
		if first := c.clients[job.ClientIds[0]]; first != nil {
			for _, key := range []localKey{{host: first.hostID}, {trainer: first.trainerID}} {
				for id := range r.near[key] {
					if worker := c.workers[id]; (only || worker.kind == "local") && c.serves(worker, job) {
						workers[id] = true
					}
				}
			}
		}
	}
	c.locals[job.JobId] = localsOfJob{version, workers}
	return workers, only
}

// leaveOtherHosts takes streams from local workers that may no longer serve their job, because a trainer on another host
// has joined it. Streams that cannot move end where they are.
func (c *Core) leaveOtherHosts() {
	if !c.localsMoved {
		return
	}
	c.localsMoved = false
	for _, id := range sortedKeys(c.registered.local) {
		c.eachLease(id, func(job *durable.Job, epoch *durable.Epoch, stream *pecanv1.StoredStream) {
			if c.trainersKnown(job) && !c.serves(c.workers[id], job) {
				c.moveStream(job, epoch, stream, "worker "+id+" serves other trainers only")
			}
		})
	}
}

// trainersKnown reports whether all trainers of a job have said where they are. After a restart they have not.
func (c *Core) trainersKnown(job *durable.Job) bool {
	return len(job.ClientIds) > 0 && !slices.ContainsFunc(job.ClientIds, func(id string) bool {
		client := c.clients[id]
		return client == nil || client.hostID == "" && client.trainerID == ""
	})
}

// moveStream takes a stream from its worker if it can begin at any index elsewhere. It returns whether the stream ran.
func (c *Core) moveStream(job *durable.Job, epoch *durable.Epoch, stream *pecanv1.StoredStream, why string) (ran bool) {
	if stream.Produced || stream.Delivered {
		return false
	}
	closing := job.Plan.IsClosing(stream.Stream)
	strategy := job.Plan.GetResume().GetStrategy()
	cheap := (strategy == pecanv1.Resume_SEEK || strategy == pecanv1.Resume_PARTIAL) && split.IsRepeatable(job.Plan)
	if closing || !cheap || job.Options.GetMode() == pecanv1.Mode_MODE_AT_MOST_ONCE || job.Plan.GetWritesFiles() || job.Plan.GetCache() != nil {
		return !closing
	}
	key := keyOf(job, epoch, stream)
	c.stopRun(job, stream.Worker.GetWorkerId(), key, stream.Lease)
	c.loseLease(key, stream, pecanv1.LeaseLost_MOVED, why)
	return true
}

// inTurn sorts local workers so that each trainer and each host has one before any has two. Those of one trainer keep
// the order of registration, in which the trainer started them; it stops the newest first.
func (c *Core) inTurn(local []string) {
	turn, count := map[string]int{}, map[string]int{}
	for _, id := range local {
		of := c.ownerOf(id)
		turn[id] = count[of]
		count[of]++
	}
	slices.SortStableFunc(local, func(a, b string) int { return cmp.Compare(turn[a], turn[b]) })
}

// ownerOf returns whom a local worker belongs to: a trainer, or a host.
func (c *Core) ownerOf(id string) string {
	if worker := c.workers[id]; worker.trainer == "" {
		return "host " + worker.address.GetHostId()
	}
	return "trainer " + c.workers[id].trainer
}

// mayRun returns how many local workers each trainer of a job may run, by trainer; nil if trainers on several hosts read
// the job, or none lets the dispatcher decide.
func (c *Core) mayRun(job *durable.Job) map[string]int {
	var first *clientState
	var most map[string]int
	for _, id := range job.ClientIds {
		client := c.clients[id]
		if client == nil {
			return nil
		}
		if first == nil {
			first = client
		}
		sameTrainer, sameHost := client.trainerID == first.trainerID, client.hostID == first.hostID && client.hostID != ""
		if client.trainerID == "" || !sameTrainer && !sameHost {
			return nil
		}
		if client.mayRun != nil {
			if most == nil {
				most = map[string]int{}
			}
			most[client.trainerID] = max(most[client.trainerID], int(client.mayRun.Most))
		}
	}
	if job.Options.GetPlacement().GetMaxLocal() < 0 || c.cacheKey(job) != "" && !targetsLocal(job) && !c.cachesLocally(most) {
		return nil
	}
	return most
}

// cachesLocally reports whether some trainer's workers have a cache directory, as in a private cluster.
func (c *Core) cachesLocally(trainers map[string]int) bool {
	for id := range c.registered.local {
		worker := c.workers[id]
		if _, known := trainers[worker.trainer]; known && worker.caches {
			return true
		}
	}
	return false
}

// localLimit returns the number of local workers that may serve a job: those that exist, and those that trainers may
// start, at most maxLocalWorkers in all.
func (c *Core) localLimit(local []string, most map[string]int) (n int) {
	exist := map[string]int{}
	for _, id := range local {
		if _, decided := most[c.workers[id].trainer]; decided {
			exist[c.workers[id].trainer]++
		} else {
			n++
		}
	}
	for trainer, limit := range most {
		n += max(limit, exist[trainer])
	}
	return min(n, maxLocalWorkers)
}

// wantLocal divides the wanted local workers among the trainers that may start them, in turn. Workers that no trainer of
// these started come first, and then trainers whose workers serve the job.
func (c *Core) wantLocal(job *durable.Job, p *placementState, wanted int, local []string, most map[string]int) {
	if !c.trainersKnown(job) {
		return
	}
	for _, id := range local {
		if _, decided := most[c.workers[id].trainer]; !decided {
			wanted--
		}
	}
	want := map[string]int{}
	trainers := c.inOrderOfUse(p, most)
	for given := true; given && wanted > 0; {
		given = false
		for _, trainer := range trainers {
			if wanted > 0 && want[trainer] < most[trainer] {
				want[trainer]++
				wanted--
				given = true
			}
		}
	}
	for _, trainer := range trainers {
		if want[trainer] > p.wanted[trainer] {
			p.startingSince = c.now
		}
		if p.wanted[trainer] != want[trainer] {
			c.event("local workers wanted", "trainer", trainer, "number", want[trainer], "before", p.wanted[trainer])
		}
	}
	p.wanted, p.decides = want, true
}

// inOrderOfUse returns trainers: first those whose local workers serve a job, and then those that have registered ones.
func (c *Core) inOrderOfUse(p *placementState, trainers map[string]int) []string {
	list := slices.Sorted(maps.Keys(trainers))
	if len(list) < 2 {
		return list
	}
	use := map[string]int{}
	for id := range c.registered.local {
		trainer := c.workers[id].trainer
		if use[trainer] = max(use[trainer], 1); p.serves[id] {
			use[trainer] = 2
		}
	}
	slices.SortStableFunc(list, func(a, b string) int { return cmp.Compare(use[b], use[a]) })
	return list
}

// startsLocal reports whether trainers are starting local workers that a search waits for.
func (c *Core) startsLocal(p *placementState, local []string) bool {
	wanted := 0
	for _, n := range p.wanted {
		wanted += n
	}
	for _, id := range local {
		if p.wanted[c.workers[id].trainer] > 0 {
			wanted--
		}
	}
	return wanted > 0 && c.now-p.startingSince < localStartTime
}

// wantedOf returns how many local workers a trainer should run for jobs; nil if nothing is decided.
func (c *Core) wantedOf(client *clientState, jobs []string) (wanted *pecanv1.WantedLocalWorkers) {
	if client.mayRun == nil {
		return nil
	}
	for _, id := range jobs {
		p, job := c.placements[id], c.state.Job(id)
		if p == nil || job == nil || !p.decides {
			continue
		}
		if n := uint32(p.wanted[client.trainerID]); wanted == nil || n > wanted.Number {
			wanted = &pecanv1.WantedLocalWorkers{Number: n, Why: "no worker is registered"}
			if status := c.placementStatus(job); status != nil {
				wanted.Why = status.GetWhy()
			}
		}
	}
	return wanted
}
