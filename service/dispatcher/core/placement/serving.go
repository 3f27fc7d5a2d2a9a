package placement

import (
	"cmp"
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/dispatcher/core/measure"
)

// Worker has the facts about a registered worker that placements use.
type Worker struct {
	ID string
	// Host is empty if it is not known. Trainer is the trainer that started the worker; empty if none did.
	Host, Trainer string
	// Local workers serve only jobs of the trainers of their host. Caches is set if the worker has a cache directory.
	Local, Caches bool
	// Usable workers are connected, heard recently and not leaving.
	Usable bool
	// Away is set if the connection broke, and the worker may come back. Leaving is set if its departure is planned.
	// Unheard is set if it held leases before a restart and has not come back.
	Away, Leaving, Unheard bool
	// Order is the order in which workers registered. It breaks ties.
	Order uint64
	Cores int
	// Totals has the worker's work of the last seconds. Load is the load of its host.
	Totals *measure.Worker
	Load   *pecanv1.HostLoad
}

// client has a client's report of its trainer.
type client struct {
	// host and trainer are empty before the client's first heartbeat. trainer is the trainer's process.
	host, trainer string
	// mayRun has the trainer's local workers; nil if the dispatcher does not decide on them.
	mayRun *pecanv1.LocalWorkers
	// consumed counts the elements that the training loop took in the last seconds. load is the load of its host.
	consumed measure.Consumer
	load     *pecanv1.HostLoad
}

// place is a host or a trainer.
type place struct{ host, trainer string }

// localsOfJob has the local workers that may serve a job, as of a version of the workers.
type localsOfJob struct {
	version uint64
	workers map[string]bool
}

// peers has the registered workers and the clients.
type peers struct {
	workers map[string]*Worker
	clients map[string]*client
	// local has the local workers. near has all workers of each host, and those that each trainer started.
	local map[string]bool
	near  map[place]map[string]bool
	// version changes with any worker, localVersion with local ones only.
	version, localVersion uint64
	// locals has the local workers that may serve each job, as far as they were needed. localsMoved is set if local workers
	// may hold streams of jobs that they no longer serve.
	locals      map[string]localsOfJob
	localsMoved bool
}

func newPeers() peers {
	return peers{workers: map[string]*Worker{}, clients: map[string]*client{}, local: map[string]bool{}, near: map[place]map[string]bool{}, locals: map[string]localsOfJob{}}
}

// SetWorker adds a worker, or changes what may change while it is registered. A worker that registers again is removed first.
func (p *Placements) SetWorker(worker Worker) {
	known := p.workers[worker.ID]
	if known != nil {
		if known.Usable != worker.Usable {
			p.candidates.built = false
		}
		*known = worker
		return
	}
	added := worker
	p.workers[worker.ID] = &added
	for _, at := range worker.places() {
		if p.near[at] == nil {
			p.near[at] = map[string]bool{}
		}
		p.near[at][worker.ID] = true
	}
	if worker.Local {
		p.local[worker.ID] = true
	}
	p.workersChanged(&added)
}

// RemoveWorker notes that a worker is lost, or about to register again with what may be other properties.
func (p *Placements) RemoveWorker(id string) {
	worker := p.workers[id]
	if worker == nil {
		return
	}
	for _, at := range worker.places() {
		if delete(p.near[at], id); len(p.near[at]) == 0 {
			delete(p.near, at)
		}
	}
	delete(p.workers, id)
	delete(p.local, id)
	p.workersChanged(worker)
}

func (p *Placements) workersChanged(worker *Worker) {
	p.candidates.built = false
	p.version++
	if worker.Local {
		p.localVersion++
		p.localsMoved = true
	}
}

// places returns the host of a worker, and the trainer that started it.
func (w *Worker) places() (list []place) {
	if w.Host != "" {
		list = append(list, place{host: w.Host})
	}
	if w.Trainer != "" {
		list = append(list, place{trainer: w.Trainer})
	}
	return list
}

// AddClient notes that a client lives. It has not said yet where it is.
func (p *Placements) AddClient(id string) { p.clients[id] = &client{} }

// RemoveClient notes that a client has left.
func (p *Placements) RemoveClient(id string) { delete(p.clients, id) }

// Reported keeps what a client's newest heartbeat reports of its training loop and of its host.
func (p *Placements) Reported(req *pecanv1.ClientHeartbeatRequest) {
	c := p.clients[req.ClientId]
	// A client does not move. If one reported another host in each heartbeat, its jobs would get other workers each time.
	host, trainer := cmp.Or(c.host, req.HostId), cmp.Or(c.trainer, req.TrainerId)
	moved := c.host != host || c.trainer != trainer
	c.host, c.trainer, c.mayRun = host, trainer, req.LocalWorkers
	if req.Host != nil {
		c.load = req.Host
	}
	c.consumed.Add(p.host.Now(), req.SubWindows)
	if !moved {
		return
	}
	for _, job := range p.state.Jobs() {
		if slices.Contains(job.ClientIds, req.ClientId) {
			p.ClientsChanged(job)
		}
	}
}

// ClientsChanged notes that a client of a job has come or gone, or has said where it is. Other workers may serve the job.
func (p *Placements) ClientsChanged(job *durable.Job) {
	delete(p.locals, job.JobId)
	if len(p.local) == 0 && !TargetsLocal(job) {
		return
	}
	p.localsMoved = true
	for _, epoch := range job.Epochs {
		p.schedule.EpochChanged(epoch)
	}
}

// TargetsLocal reports whether only workers on the trainers' host may serve a job.
func TargetsLocal(job *durable.Job) bool {
	return job.Options.GetTargetWorkers() == pecanv1.TargetWorkers_TARGET_WORKERS_LOCAL
}

// Serves reports whether a worker may get streams of a job. A local worker serves jobs of the trainers of its host. One that a
// trainer started serves only jobs of this trainer, because it has the trainer's rights and ends with it. The trainers of a
// job may be on several hosts, unless only workers on their host may serve it: each trainer may get any stream.
func (p *Placements) Serves(id string, job *durable.Job) bool {
	worker := p.workers[id]
	return worker != nil && p.serves(worker, job)
}

func (p *Placements) serves(worker *Worker, job *durable.Job) bool {
	onlyLocal := TargetsLocal(job)
	if !worker.Local && !onlyLocal {
		return true
	}
	if worker.Trainer != "" && !worker.Caches && !onlyLocal && job.Plan.GetCache() != nil {
		// Its streams would be missing in the cache.
		return false
	}
	near, own := 0, worker.Trainer == ""
	for _, id := range job.ClientIds {
		if c := p.clients[id]; c != nil && worker.near(c) {
			near++
			own = own || c.trainer == worker.Trainer
		}
	}
	return own && near > 0 && (near == len(job.ClientIds) || !onlyLocal)
}

// near reports whether a worker is on the host of a client.
func (w *Worker) near(c *client) bool {
	return c.host != "" && c.host == w.Host || w.Trainer != "" && c.trainer == w.Trainer
}

// Near reports whether no other client is nearer to a worker: the worker is remote, or on the client's host.
func (p *Placements) Near(id, clientID string) bool {
	worker, c := p.workers[id], p.clients[clientID]
	return worker == nil || !worker.Local || c != nil && worker.near(c)
}

// HostOf returns the host of a client; empty if the client has not said it.
func (p *Placements) HostOf(clientID string) string {
	if c := p.clients[clientID]; c != nil {
		return c.host
	}
	return ""
}

// Apart reports whether a worker and a client have said that they are on two hosts.
func (p *Placements) Apart(id, clientID string) bool {
	worker, c := p.workers[id], p.clients[clientID]
	return worker != nil && c != nil && worker.Host != "" && c.host != "" && !worker.near(c)
}

// Locals returns the local workers that may serve a job. only is true if no other worker may, and the list has all workers
// on the host of the job's trainers. The list does not depend on decisions. The caller must not change it.
func (p *Placements) Locals(job *durable.Job) (workers map[string]bool, only bool) {
	only = TargetsLocal(job)
	if len(p.local) == 0 && !only {
		return nil, false
	}
	version := p.localVersion
	if only {
		version = p.version
	}
	if known, is := p.locals[job.JobId]; is && known.version == version {
		return known.workers, only
	}
	workers = map[string]bool{}
	looked := map[place]bool{}
	for _, clientID := range job.ClientIds {
		c := p.clients[clientID]
		if c == nil {
			continue
		}
		for _, at := range []place{{host: c.host}, {trainer: c.trainer}} {
			if looked[at] {
				continue
			}
			looked[at] = true
			for id := range p.near[at] {
				if worker := p.workers[id]; (only || worker.Local) && p.serves(worker, job) {
					workers[id] = true
				}
			}
		}
	}
	p.locals[job.JobId] = localsOfJob{version, workers}
	return workers, only
}

// fleetOf returns the usable workers that may serve a job by kind, each in the order of registration. The caller must not
// change the lists.
func (p *Placements) fleetOf(job *durable.Job) (remote, local []string) {
	near, only := p.Locals(job)
	for id := range near {
		switch worker := p.workers[id]; {
		case !worker.Usable:
		case worker.Local:
			local = append(local, id)
		default:
			remote = append(remote, id)
		}
	}
	p.sortByOrder(local)
	if !only {
		return p.remoteCandidates().remote, local
	}
	p.sortByOrder(remote)
	return remote, local
}

// sortByOrder sorts workers by the order of registration.
func (p *Placements) sortByOrder(ids []string) {
	slices.SortFunc(ids, p.compareOrder)
}

// compareOrder orders two workers by their registration.
func (p *Placements) compareOrder(a, b string) int {
	return cmp.Or(cmp.Compare(p.workers[a].Order, p.workers[b].Order), cmp.Compare(a, b))
}

// clientsKnown reports whether all clients of a job have said where they are. After a restart they have not.
func (p *Placements) clientsKnown(job *durable.Job) bool {
	return len(job.ClientIds) > 0 && !slices.ContainsFunc(job.ClientIds, func(id string) bool {
		c := p.clients[id]
		return c == nil || c.host == "" && c.trainer == ""
	})
}
