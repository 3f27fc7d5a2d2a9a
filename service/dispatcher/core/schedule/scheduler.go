package schedule

import (
	"container/heap"
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
)

// Host is the core as the scheduler sees it.
type Host interface {
	// Ready returns which of the waiting streams of an epoch may be leased now.
	Ready(epoch *durable.Epoch) func(stream uint32) bool
	// Avoid names the workers that failed a stream, or that its client could not reach.
	Avoid(epoch *durable.Epoch, stream uint32) []string
	// Excluded has the workers that do not serve a job; nil if all do.
	Excluded(job *durable.Job) map[string]bool
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

	workers      map[string]*load
	usable, room loadHeap
	dirtyWorkers []*load

	epochs      map[*durable.Epoch]*demand
	queue       demandQueue
	dirtyEpochs map[*demand]bool
	// starting: absent workers of the configured list may still come.
	starting bool
}

// New returns a scheduler over a state. positions is the length of the configured list of workers.
func New(host Host, state *durable.State, positions int) *Scheduler {
	return &Scheduler{
		Host: host, state: state, positions: positions, workers: map[string]*load{}, epochs: map[*durable.Epoch]*demand{}, dirtyEpochs: map[*demand]bool{},
		usable: loadHeap{at: func(l *load) *int { return &l.usableAt }}, room: loadHeap{at: func(l *load) *int { return &l.roomAt }},
	}
}

// SetWorker adds a worker or changes it.
func (s *Scheduler) SetWorker(worker Worker) {
	l := s.workers[worker.ID]
	if l == nil {
		l = &load{prefetchJobs: map[string]bool{}, usableAt: -1, roomAt: -1}
		s.workers[worker.ID] = l
	} else if l.Worker == worker {
		return
	}
	l.Worker = worker
	s.WorkerChanged(worker.ID)
}

// RemoveWorker removes a worker.
func (s *Scheduler) RemoveWorker(id string) {
	if l := s.workers[id]; l != nil {
		s.usable.set(l, false)
		s.room.set(l, false)
		delete(s.workers, id)
	}
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
		s.queue.set(d, false)
		delete(s.dirtyEpochs, d)
		delete(s.epochs, epoch)
	}
}

// refresh brings loads and demands up to date.
func (s *Scheduler) refresh() {
	for _, l := range s.dirtyWorkers {
		if s.workers[l.ID] == l {
			l.count(s.state.Leases(l.ID))
			s.usable.set(l, l.Usable)
			s.room.set(l, l.Usable && l.hasRoom())
		}
	}
	s.dirtyWorkers = s.dirtyWorkers[:0]
}

func (s *Scheduler) refreshDemand(d *demand) {
	if prefetch := durable.AllPrefetched(d.epoch); prefetch != d.prefetch {
		d.prefetch = prefetch
		for _, stream := range d.epoch.Active() {
			s.WorkerChanged(stream.Worker.GetWorkerId())
		}
	}
	for number := range d.unsure {
		closing := d.epoch.Find(number)
		runs := closing != nil && Running(d.epoch, closing)
		if runs != d.closings[number] && closing != nil {
			// Its last source was produced, or lost.
			s.WorkerChanged(closing.Worker.GetWorkerId())
		}
		if delete(d.closings, number); runs {
			d.closings[number] = true
		}
	}
	clear(d.unsure)
	d.running = d.epoch.Running() + len(d.closings)
	s.queue.set(d, d.waits())
}

// Run leases waiting streams to workers. First come those that must run under any load: all streams that must be open
// at the same time, and one stream of every epoch that has none. Otherwise a trainer with a paused iterator could hold
// all slots, and block the iterator that it waits for.
//
// Then Run shares the free slots: the epoch with the fewest running streams is next, and its streams go in order.
// Prefetched epochs come last, take only free slots (see fits) and get at most one stream per worker, even if
// they need all open. The rest is leased when a client adopts the epoch.
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
	s.share()
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

func sortDemands(list []*demand) {
	slices.SortFunc(list, func(a, b *demand) int { return compareEpochs(a.epoch, b.epoch) })
}

// grant leases a stream and brings the load of its worker and the demand of its epoch up to date.
func (s *Scheduler) grant(d *demand, stream uint32, id string) {
	s.Grant(d.epoch, stream, id)
	s.refreshDemand(d)
	s.refresh()
}

// leaseUrgent leases the streams that must run under any load; false if no worker can take them.
func (s *Scheduler) leaseUrgent(d *demand) bool {
	if d.prefetch || !Read(d.epoch) {
		return true
	}
	from, below := mustBeOpen(d.epoch)
	one := from == below
	if one {
		below = d.epoch.Total()
	}
	met := true
	for more := !one || d.epoch.Held() == 0; more && met; more = more && !one {
		stream, found := uint32(0), false
		s.waiting(d.epoch, from, func(next uint32) bool {
			stream, found = next, next < below
			return false
		})
		if more = found; !found {
			break
		}
		if id := s.pick(d, stream, false); id != "" {
			s.grant(d, stream, id)
		} else {
			met = false
		}
		from = stream + 1
	}
	return met
}

// share leases the free slots.
func (s *Scheduler) share() {
	var blocked []*demand
	for len(s.queue) > 0 && len(s.room.loads) > 0 {
		d := s.queue[0]
		if !s.leaseNext(d) {
			s.queue.set(d, false)
			blocked = append(blocked, d)
		}
	}
	for _, d := range blocked {
		heap.Push(&s.queue, d)
	}
}

// leaseNext leases the next stream of an epoch for which a worker has room; false without one.
func (s *Scheduler) leaseNext(d *demand) (leased bool) {
	// Where streams belong to workers, the next stream may belong to another one. As many streams in a row belong to
	// all of them.
	tries := 1
	if s.positions > 0 && static(d.epoch.Job) {
		tries = s.positions
	}
	s.waiting(d.epoch, 0, func(stream uint32) bool {
		tries--
		if id := s.pick(d, stream, !d.epoch.Job.Plan.IsClosing(stream)); id != "" {
			s.grant(d, stream, id)
			leased = true
		}
		return !leased && tries > 0
	})
	return leased
}

// leaseClosings leases the closing streams of an epoch that wait for nothing; false if no worker can take them. They
// need no slot.
func (s *Scheduler) leaseClosings(d *demand) (met bool) {
	if d.prefetch || !d.epoch.Job.Plan.HasClosing() || s.epochs[d.epoch] != d {
		return true
	}
	for from := d.epoch.Regular(); ; {
		closing, found := uint32(0), false
		s.waiting(d.epoch, from, func(next uint32) bool {
			closing, found = next, true
			return false
		})
		if !found {
			return true
		}
		id := s.pick(d, closing, false)
		if id == "" {
			return false
		}
		s.grant(d, closing, id)
		from = closing + 1
	}
}

// pick chooses the worker for a stream: the one with the fewest running streams, then the fewest held ones, then
// the one that registered first. Workers that failed the stream come last.
func (s *Scheduler) pick(d *demand, stream uint32, needRoom bool) string {
	if id, decided := s.pickByPosition(d, stream, needRoom); decided {
		return id
	}
	avoid, excluded := s.Avoid(d.epoch, stream), s.Excluded(d.epoch.Job)
	off := d.epoch.Job.Options.GetMode() == pecanv1.Mode_MODE_OFF
	if !d.prefetch && !off && len(avoid) == 0 && len(excluded) == 0 {
		best := s.usable.top()
		if needRoom {
			best = s.room.top()
		}
		if best == nil {
			return ""
		}
		return best.ID
	}
	best, bestRank := (*load)(nil), [3]int{}
	for id, l := range s.workers {
		if !l.Usable || excluded[id] || !d.fits(l, needRoom) {
			continue
		}
		rank := [3]int{}
		if slices.Contains(avoid, id) {
			rank[0] = 1
		}
		if d.prefetch {
			rank[1] = len(l.prefetchJobs)
		}
		if off {
			rank[2] = s.streamsOn(d.epoch, id)
		}
		if order := slices.Compare(rank[:], bestRank[:]); best == nil || order < 0 || order == 0 && l.compare(best) < 0 {
			best, bestRank = l, rank
		}
	}
	if best == nil {
		return ""
	}
	return best.ID
}

// fits reports whether a worker may get a stream of the epoch. A stream of a prefetched epoch needs a free slot
// in any case, and each job gets one per worker. So all jobs together have at most as many prefetched streams on
// a worker as it has free slots. If a trainer finds none free, its next pass is leased when it adopts the pass.
func (d *demand) fits(l *load, needRoom bool) bool {
	if d.prefetch {
		return l.hasRoom() && l.running+len(l.prefetchJobs) < l.MaxStreams && !l.prefetchJobs[d.epoch.Job.JobId]
	}
	return !needRoom || l.hasRoom()
}

func (s *Scheduler) streamsOn(epoch *durable.Epoch, workerID string) (n int) {
	for _, held := range s.state.Leases(workerID) {
		if held.Epoch == epoch && !epoch.Find(held.Stream).Delivered {
			n++
		}
	}
	return n
}

// pickByPosition assigns stream i of a statically sharded job to the worker at position i of the configured list.
// While the service starts it waits for that worker. Later any worker may take the stream.
func (s *Scheduler) pickByPosition(d *demand, stream uint32, needRoom bool) (id string, decided bool) {
	if s.positions == 0 || !static(d.epoch.Job) || d.epoch.Job.Plan.IsClosing(stream) {
		return "", false
	}
	position := int(stream) % s.positions
	for id, l := range s.workers {
		if l.Position == position && l.Usable {
			if !d.fits(l, needRoom) {
				return "", true
			}
			return id, true
		}
	}
	return "", s.starting
}
