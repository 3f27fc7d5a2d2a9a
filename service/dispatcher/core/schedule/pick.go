package schedule

import (
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
)

// Reach says whether the reader of a stream reaches a worker.
type Reach int

const (
	Reachable Reach = iota
	// Unreached workers could not be reached lately. They get the stream if no worker that may serve it is reachable.
	Unreached
	// Unreachable workers never get the stream.
	Unreachable
)

// pick chooses the worker for a stream: the one with the fewest running streams, then the fewest held ones, then
// the one that registered first. Workers that failed the stream come last. Without a worker, others is set if a worker
// has room that other readers may reach.
func (s *Scheduler) pick(d *demand, stream uint32, needRoom bool) (id string, others bool) {
	reach := s.Reach(d.epoch, stream)
	if id, decided := s.pickByPosition(d, stream, needRoom, reach); decided {
		return id, false
	}
	avoid, members := s.Avoid(d.epoch, stream), s.membersFor(d.epoch.Job, reach)
	locals, only := s.Locals(d.epoch.Job)
	off := d.epoch.Job.Options.GetMode() == pecanv1.Mode_MODE_OFF
	best, bestRank, reachable := (*load)(nil), [3]int{}, false
	consider := func(l *load) {
		if l == nil || !l.Usable || !l.mayServe(locals, only) {
			return
		}
		reachable = reachable || reach[l.ID] == Reachable
		if !d.fits(l, needRoom) {
			return
		}
		others = others || reach[l.ID] != Reachable
		rank := [3]int{}
		switch {
		case reach[l.ID] == Unreachable:
			return
		case reach[l.ID] == Unreached:
			rank[0] = 2
		case slices.Contains(avoid, l.ID):
			rank[0] = 1
		}
		if d.prefetch {
			rank[1] = len(l.prefetchJobs)
		}
		if off {
			rank[2] = s.streamsOn(d.epoch, l.ID)
		}
		if order := slices.Compare(rank[:], bestRank[:]); best == nil || order < 0 || order == 0 && l.compare(best) < 0 {
			best, bestRank = l, rank
		}
	}
	if members == nil {
		for id := range locals {
			consider(s.workers[id])
		}
	}
	heap := &s.usable
	switch {
	case len(reach) > 0:
	case d.prefetch:
		heap = &s.roomAhead
	case needRoom && d.keepsUp():
		heap = &s.free
	case needRoom:
		heap = &s.room
	}
	switch {
	case members != nil:
		for id := range members {
			consider(s.workers[id])
		}
	case only:
	case !off && len(avoid)+len(reach) == 0:
		consider(heap.first(func(l *load) bool { return d.fits(l, needRoom) }))
	default:
		for _, l := range heap.items {
			consider(l)
		}
	}
	if best == nil || reach[best.ID] == Unreached && reachable {
		return "", others
	}
	return best.ID, false
}

// membersFor returns the workers that were chosen for a job, for a stream with this reach; nil if all workers may serve the stream. That
// is also so if its readers reach none of the chosen workers.
func (s *Scheduler) membersFor(job *durable.Job, reach map[string]Reach) map[string]bool {
	members := s.Members(job)
	if len(reach) == 0 {
		return members
	}
	locals, only := s.Locals(job)
	for id := range members {
		if l := s.workers[id]; l != nil && l.Usable && l.mayServe(locals, only) && reach[id] == Reachable {
			return members
		}
	}
	return nil
}

// NeedsOthers reports whether the readers of a stream reach none of the workers that were chosen for its job. Other workers serve
// the stream then.
func (s *Scheduler) NeedsOthers(epoch *durable.Epoch, stream uint32) bool {
	return s.Members(epoch.Job) != nil && s.membersFor(epoch.Job, s.Reach(epoch, stream)) == nil
}

// stuckReaders are readers for whose streams no worker has room that they reach. The streams of others need not wait for them.
type stuckReaders map[string]bool

func (r stuckReaders) have(epoch *durable.Epoch, stream uint32) bool {
	return r[epoch.Find(stream).GetConsumer()]
}

// add adds the reader of a stream. It returns false if the stream has none. Any reader may get such a stream, so no worker has
// room for any of them.
func (r stuckReaders) add(epoch *durable.Epoch, stream uint32) bool {
	reader := epoch.Find(stream).GetConsumer()
	if reader == "" {
		return false
	}
	r[reader] = true
	return true
}

// fits reports whether a worker may get a stream of the epoch. A worker keeps streams that are produced until a trainer has
// them. If it keeps many, its free slots are only for epochs whose trainers keep up. So a trainer that pauses keeps no slot
// from others, and no epoch fills the memory of workers.
//
// A stream of a prefetched epoch always needs a free slot, and each job gets one per worker. So all jobs together have at
// most as many prefetched streams on a worker as it has free slots. If no slot is free, the epoch's streams are leased when
// a trainer adopts the epoch.
func (d *demand) fits(l *load, needRoom bool) bool {
	if d.prefetch {
		return l.takesAhead() && !l.prefetchJobs[d.epoch.Job.JobId]
	}
	return !needRoom || l.hasRoom() || l.hasSlot() && d.keepsUp()
}

// serves reports whether a worker may get streams of a job by its kind.
func (s *Scheduler) serves(l *load, job *durable.Job) bool {
	locals, only := s.Locals(job)
	return l.mayServe(locals, only)
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
// While the service starts it waits for that worker. Later any worker may take the stream. That is also so if its reader does not
// reach the worker at the position.
func (s *Scheduler) pickByPosition(d *demand, stream uint32, needRoom bool, reach map[string]Reach) (id string, decided bool) {
	if s.positions == 0 || !static(d.epoch.Job) || d.epoch.Job.Plan.IsClosing(stream) {
		return "", false
	}
	position := int(stream) % s.positions
	for id, l := range s.workers {
		if l.Position == position && l.Usable && (s.starting || reach[id] == Reachable) {
			if !d.fits(l, needRoom) {
				return "", true
			}
			return id, true
		}
	}
	return "", s.starting
}
