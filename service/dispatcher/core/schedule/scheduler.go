package schedule

import (
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
)

// Host is the core as the scheduler sees it.
type Host interface {
	// Ready returns which of the waiting streams of an epoch may be leased now.
	Ready(epoch *durable.Epoch) func(stream uint32) bool
	// Later returns which of the waiting streams of an epoch may be leased after the others; nil if none.
	Later(epoch *durable.Epoch) func(stream uint32) bool
	// Avoid names the workers that failed a stream. They get it if no other has room.
	Avoid(epoch *durable.Epoch, stream uint32) []string
	// Reach has the workers that no reader of a stream reaches. All others are reachable.
	Reach(epoch *durable.Epoch, stream uint32) map[string]Reach
	// Members has the workers that were chosen for a job; nil if none were, and all serve it.
	Members(job *durable.Job) map[string]bool
	// Locals has the local workers that may serve a job. If only is true, no other worker may serve it. The list then has
	// all workers on the host of the job's trainers.
	Locals(job *durable.Job) (workers map[string]bool, only bool)
	// Grant leases a stream to a worker. It changes the state at once, and reports the change with EpochChanged and
	// WorkerChanged.
	Grant(epoch *durable.Epoch, stream uint32, workerID string)
}

// Scheduler leases streams to workers. It keeps the loads of workers and the demands of epochs from one run to the next;
// its owner reports what changed.
type Scheduler struct {
	Host
	state *durable.State
	// positions is the length of the configured list of workers.
	positions int

	workers map[string]*load
	// usable has the workers that may get streams of any job, and free those with a free slot. room has the workers with a
	// free slot for any epoch, and roomAhead those with a free slot for a prefetched epoch. localFree has the local workers
	// with a free slot.
	usable, free, room, roomAhead queue[load]
	localFree                     map[*load]bool
	dirtyWorkers                  []*load

	epochs map[*durable.Epoch]*demand
	// all is the root of the tree of shares of slots, and bounds has the weights and quotas of tenants. ahead has the prefetched
	// epochs with a waiting stream.
	all     *slotShare
	tenants map[string]*slotShare
	jobs    map[*durable.Job]*slotShare
	bounds  map[string]Tenant
	ahead   queue[demand]
	// grants counts leases.
	grants uint64
	// blocked has the epochs whose waiting streams no worker can take. bound has the prefetched epochs that a quota stops.
	// None of them is in a queue.
	blocked, bound map[*demand]bool
	dirtyEpochs    map[*demand]bool
	// short has the jobs that Preempt found below their share. owed has the epochs for which it took slots.
	short map[*slotShare]bool
	owed  []*demand
	// searches counts the searches of Preempt for a stream.
	searches uint64
	// starting is set if absent workers of the configured list may still come.
	starting bool
}

// New returns a scheduler over a state. positions is the length of the configured list of workers. A tenant without an
// entry in tenants has weight 1 and no quota.
func New(host Host, state *durable.State, positions int, tenants map[string]Tenant) *Scheduler {
	return &Scheduler{
		Host: host, state: state, positions: positions, workers: map[string]*load{}, localFree: map[*load]bool{}, epochs: map[*durable.Epoch]*demand{}, dirtyEpochs: map[*demand]bool{},
		all: &slotShare{weight: 1, at: -1, queue: newSlotShares()}, tenants: map[string]*slotShare{}, jobs: map[*durable.Job]*slotShare{}, bounds: tenants, blocked: map[*demand]bool{}, bound: map[*demand]bool{},
		ahead:     queue[demand]{before: (*demand).before, at: func(d *demand) *int { return &d.at }},
		usable:    queue[load]{before: (*load).before, at: func(l *load) *int { return &l.usableAt }},
		free:      queue[load]{before: (*load).before, at: func(l *load) *int { return &l.freeAt }},
		room:      queue[load]{before: (*load).before, at: func(l *load) *int { return &l.roomAt }},
		roomAhead: queue[load]{before: (*load).beforeAhead, at: func(l *load) *int { return &l.aheadAt }},
	}
}

// SetWorker adds a worker or changes it.
func (s *Scheduler) SetWorker(worker Worker) {
	l := s.workers[worker.ID]
	if l == nil {
		l = &load{prefetchJobs: map[string]bool{}, usableAt: -1, freeAt: -1, roomAt: -1, aheadAt: -1}
		s.workers[worker.ID] = l
	} else if l.Worker == worker {
		return
	} else if l.Local != worker.Local {
		// It serves other jobs now, so its room is new to them.
		s.takeOut(l)
	}
	l.Worker = worker
	s.WorkerChanged(worker.ID)
}

// Load returns the number of streams that take slots of a worker.
func (s *Scheduler) Load(id string) int {
	if l := s.workers[id]; l != nil {
		return l.running
	}
	return 0
}

// RemoveWorker removes a worker.
func (s *Scheduler) RemoveWorker(id string) {
	if l := s.workers[id]; l != nil {
		s.takeOut(l)
		delete(s.workers, id)
	}
}

func (s *Scheduler) takeOut(l *load) {
	s.usable.set(l, false)
	s.free.set(l, false)
	s.room.set(l, false)
	s.roomAhead.set(l, false)
	delete(s.localFree, l)
}

// WorkerChanged notes that the streams of a worker have changed.
func (s *Scheduler) WorkerChanged(id string) {
	if l := s.workers[id]; l != nil && !l.dirty {
		l.dirty = true
		s.dirtyWorkers = append(s.dirtyWorkers, l)
	}
}

// EpochChanged notes that an epoch has opened, or that its streams or readers have changed.
func (s *Scheduler) EpochChanged(epoch *durable.Epoch) {
	d := s.epochs[epoch]
	if d == nil {
		d = &demand{epoch: epoch, at: -1, closings: map[uint32]bool{}, unsure: map[uint32]bool{}}
		d.slotShare = s.slotShareOf(d)
		s.epochs[epoch] = d
		for _, closing := range epoch.Closings() {
			d.unsure[closing.Stream] = true
		}
	}
	s.dirtyEpochs[d] = true
}

// StreamChanged notes that a stream of an epoch has changed.
func (s *Scheduler) StreamChanged(epoch *durable.Epoch, stream uint32) {
	s.EpochChanged(epoch)
	d, plan := s.epochs[epoch], epoch.Job.Plan
	if plan.IsClosing(stream) {
		d.unsure[stream] = true
	}
	if closing, exists := plan.ClosingOf(stream); exists {
		d.unsure[closing] = true
	}
}

// EpochEnded notes that an epoch is closed.
func (s *Scheduler) EpochEnded(epoch *durable.Epoch) {
	if d := s.epochs[epoch]; d != nil {
		s.ahead.set(d, false)
		s.dropSlotShare(d)
		delete(s.blocked, d)
		delete(s.bound, d)
		s.freeBound()
		delete(s.dirtyEpochs, d)
		delete(s.epochs, epoch)
	}
}

// refresh brings the loads of workers up to date.
func (s *Scheduler) refresh() {
	for _, l := range s.dirtyWorkers {
		if s.workers[l.ID] != l {
			continue
		}
		hadSlot, running, held, ahead := l.freeAt >= 0 || s.localFree[l], l.running, l.held, len(l.prefetchJobs)
		l.count(s.state.Leases(l.ID))
		shared, free := l.Usable && !l.Local, l.Usable && l.hasSlot()
		s.usable.set(l, shared)
		s.free.set(l, shared && free)
		s.room.set(l, shared && l.hasRoom())
		s.roomAhead.set(l, shared && l.takesAhead())
		if delete(s.localFree, l); free && l.Local {
			s.localFree[l] = true
		}
		gained := !hadSlot || l.running < running || l.held < held || len(l.prefetchJobs) < ahead
		if !free || !gained {
			continue
		}
		for d := range s.blocked {
			if (d.members == nil || d.members[l.ID]) && d.fits(l, true) && s.serves(l, d.epoch.Job) {
				s.unblock(d)
			}
		}
	}
	s.dirtyWorkers = s.dirtyWorkers[:0]
}

// Retry unblocks all blocked epochs. Some reasons to unblock one, such as elapsed time, are not reported as changes.
func (s *Scheduler) Retry() {
	for d := range s.blocked {
		if !d.prefetch {
			s.unblock(d)
		}
	}
}

// enqueue moves an epoch to its place in its queue, or out of it.
func (s *Scheduler) enqueue(d *demand, waits bool) {
	running := d.running
	if d.prefetch {
		running = 0
	}
	freed := d.running < d.slotShare.slots
	d.slotShare.set(running, d.running, waits && !d.prefetch)
	s.ahead.set(d, waits && d.prefetch)
	if freed {
		s.freeBound()
	}
}

// freeBound lets prefetched epochs that a quota stopped wait for a worker again, because a slot is free.
func (s *Scheduler) freeBound() {
	for d := range s.bound {
		delete(s.bound, d)
		s.unblock(d)
	}
}

// block sets an epoch aside until a worker has room for it. If the workers that serve its job change, the owner reports the
// epoch.
func (s *Scheduler) block(d *demand) {
	s.blocked[d], d.members = true, s.Members(d.epoch.Job)
	s.enqueue(d, false)
}

func (s *Scheduler) unblock(d *demand) {
	delete(s.blocked, d)
	delete(s.bound, d)
	s.enqueue(d, d.waits())
}

// Run leases waiting streams to workers. First come those that must run under any load. These are all streams that must be
// open at the same time, and one stream of every epoch that has none. Otherwise a trainer with a paused iterator could hold
// all slots, and block the iterator that it waits for.
//
// Then Run shares the free slots. The next tenant is the one with the fewest running streams for its weight. Its job with
// the fewest for its weight is next, and then the job's epoch with the fewest. Its streams go in order. Tenants and jobs
// that have reached their quota get none. Prefetched epochs come last, take only free slots (see fits) and get at most one
// stream per worker, even if they need all open. The rest is leased when a client adopts the epoch.
func (s *Scheduler) Run(starting bool) {
	s.starting = starting
	changed := make([]*demand, 0, len(s.dirtyEpochs))
	for d := range s.dirtyEpochs {
		changed = append(changed, d)
		s.refreshDemand(d)
	}
	sortDemands(changed)
	s.refresh()
	clear(s.dirtyEpochs)
	unmet := map[*demand]bool{}
	for _, d := range changed {
		unmet[d] = !s.leaseUrgent(d)
	}
	s.leasePreempted()
	s.shareSlots()
	for d := range s.dirtyEpochs {
		if _, known := unmet[d]; !known {
			changed = append(changed, d)
		}
	}
	sortDemands(changed)
	for _, d := range changed {
		unmet[d] = !s.leaseClosings(d) || unmet[d]
	}
	clear(s.dirtyEpochs)
	for d, again := range unmet {
		if again && s.epochs[d.epoch] == d {
			s.dirtyEpochs[d] = true
		}
	}
}

// grant leases a stream and brings the load of its worker and the demand of its epoch up to date.
func (s *Scheduler) grant(d *demand, stream uint32, id string) {
	s.Grant(d.epoch, stream, id)
	s.grants++
	for n := d.slotShare; n != nil; n = n.parent {
		n.last = s.grants
	}
	s.refreshDemand(d)
	s.refresh()
}

// leaseUrgent leases the streams that must run under any load; false if no worker can take them.
func (s *Scheduler) leaseUrgent(d *demand) bool {
	if d.prefetch || !Read(d.epoch) {
		return true
	}
	from := uint32(0)
	below, withinQuota := mustBeOpen(d.epoch)
	one := below == 0
	if one {
		below = d.epoch.Total()
	}
	met, id, others, stuck := true, "", false, stuckReaders{}
	for !one || id == "" && !d.computes() {
		stream, found := uint32(0), false
		s.waiting(d.epoch, from, func(next uint32) bool {
			stream, found = next, next < below && !stuck.have(d.epoch, next)
			return next < below && !found
		})
		// A shuffle reads more streams than it must, but not beyond a quota.
		if !found || d.computes() && withinQuota && d.slotShare.bounded() {
			break
		}
		if id, others = s.pick(d, stream, false); id != "" {
			s.grant(d, stream, id)
		} else if met = false; !others || !stuck.add(d.epoch, stream) {
			break
		}
		from = stream + 1
	}
	return met
}

// shareSlots leases the free slots.
func (s *Scheduler) shareSlots() {
	for len(s.free.items)+len(s.localFree) > 0 {
		d := s.all.next()
		if d == nil {
			d = s.ahead.top()
		}
		if d == nil {
			return
		}
		switch {
		case d.prefetch && d.slotShare.bounded():
			s.ahead.set(d, false)
			s.bound[d] = true
		case !s.leaseNext(d):
			s.block(d)
		}
	}
}

// leaseNext leases the next stream of an epoch for which a worker has room; false without one.
func (s *Scheduler) leaseNext(d *demand) (leased bool) {
	// With static sharding, consecutive streams belong to different workers. So leaseNext tries one stream for each
	// worker.
	tries := 1
	if s.positions > 0 && static(d.epoch.Job) {
		tries = s.positions
	}
	stuck := stuckReaders{}
	s.waiting(d.epoch, 0, func(stream uint32) bool {
		if stuck.have(d.epoch, stream) {
			return true
		}
		tries--
		id, others := s.pick(d, stream, !d.epoch.Job.Plan.IsClosing(stream))
		if id != "" {
			s.grant(d, stream, id)
			leased = true
			return false
		}
		return others && stuck.add(d.epoch, stream) || tries > 0
	})
	return leased
}

// leaseClosings leases the closing streams of an epoch that wait for nothing; false if no worker can take them. Closing
// streams need no slot.
func (s *Scheduler) leaseClosings(d *demand) (met bool) {
	if d.prefetch || !d.epoch.Job.Plan.HasClosing() || s.epochs[d.epoch] != d {
		return true
	}
	met = true
	for from, stuck := d.epoch.Regular(), (stuckReaders{}); ; {
		closing, found := uint32(0), false
		s.waiting(d.epoch, from, func(next uint32) bool {
			closing, found = next, !stuck.have(d.epoch, next)
			return !found
		})
		if !found {
			return met
		}
		if id, others := s.pick(d, closing, false); id != "" {
			s.grant(d, closing, id)
		} else if met = false; !others || !stuck.add(d.epoch, closing) {
			return false
		}
		from = closing + 1
	}
}
