package schedule

import (
	"cmp"
	"maps"
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
)

// maxPreempted bounds the streams of one call of Preempt.
const maxPreempted = 256

// Preempt returns streams to take from their workers, because a job with a smaller part of the slots waits for one.
// Most slots get free because streams end. So a job counts only if it was in this state at the previous call too. The owner
// calls Preempt in equal intervals and takes the streams, and the next Run leases the slots.
//
// starved reports whether a trainer waits for elements of an epoch: a trainer that does not read takes no slots from others.
// movable reports whether the streams of an epoch can continue at once on other workers. After a move, the job that gives still has at least
// the part of the job that gets, so no slot moves back. An epoch that gives keeps one stream. Streams that must be open
// together stay.
func (s *Scheduler) Preempt(starved, movable func(*durable.Epoch) bool) (taken []durable.Ref) {
	before := s.short
	s.short = map[*share]bool{}
	if len(s.jobs) < 2 {
		return nil
	}
	p := s.newPreemption(starved, movable)
	for len(taken) < maxPreempted {
		to := p.next()
		if to == nil {
			break
		}
		from, stream, enough := p.giver(to)
		switch job := to.share.parent; {
		case !enough:
			p.dropTenant(job.parent)
		case from == nil:
			delete(p.waits, to)
		case !before[job]:
			s.short[job] = true
			delete(p.waits, to)
		default:
			s.short[job] = true
			p.move(from, to, stream)
			taken = append(taken, durable.Ref{Epoch: from.epoch, Stream: stream.Stream})
		}
	}
	return taken
}

// preemption counts what the jobs and workers will have after the moves that are chosen so far.
type preemption struct {
	*Scheduler
	// waits has how many streams wait, for each epoch that may get slots; -1 if they are not counted yet. givers are the epochs
	// that may give slots.
	waits  map[*demand]int
	givers []*demand
	// gained has the slots that nodes get, less those that they give. freed has what workers lose of the streams beyond their
	// slots.
	gained map[*share]int
	freed  map[*load]int
	taken  map[*pecanv1.StoredStream]bool
}

func (s *Scheduler) newPreemption(starved, movable func(*durable.Epoch) bool) *preemption {
	p := &preemption{
		Scheduler: s, waits: map[*demand]int{}, gained: map[*share]int{}, freed: map[*load]int{},
		taken: map[*pecanv1.StoredStream]bool{},
	}
	for _, d := range s.epochs {
		if d.prefetch {
			continue
		}
		if d.waits() && starved(d.epoch) {
			p.waits[d] = -1
		}
		if below, _ := mustBeOpen(d.epoch); below == 0 && d.running > 1 && movable(d.epoch) {
			p.givers = append(p.givers, d)
		}
	}
	sortDemands(p.givers)
	return p
}

// countWaiting counts the streams that wait for a slot, up to maxPreempted.
func (s *Scheduler) countWaiting(epoch *durable.Epoch) (n int) {
	s.waiting(epoch, 0, func(stream uint32) bool {
		if stream < epoch.Regular() {
			n++
		}
		return n < maxPreempted && stream < epoch.Regular()
	})
	return n
}

// part is what a node will have, compared with its weight, with this many slots more.
func (p *preemption) part(n *share, more int) float64 {
	return float64(n.running+p.gained[n]+more) / n.weight
}

// compare orders epochs by what their tenants, and then their jobs, would have with this many slots more.
func (p *preemption) compare(a, b *demand, more int) int {
	jobA, jobB := a.share.parent, b.share.parent
	return cmp.Or(
		cmp.Compare(p.part(jobA.parent, more), p.part(jobB.parent, more)), cmp.Compare(jobA.parent.name, jobB.parent.name),
		cmp.Compare(p.part(jobA, more), p.part(jobB, more)), compareEpochs(a.epoch, b.epoch))
}

// next returns the epoch that would have the least with a further slot; nil without one.
func (p *preemption) next() (least *demand) {
	for d, waiting := range p.waits {
		if waiting == 0 || p.bounded(d.share) {
			delete(p.waits, d)
		} else if least == nil || p.compare(d, least, 1) < 0 {
			least = d
		}
	}
	if least != nil && p.waits[least] < 0 {
		if p.waits[least] = p.countWaiting(least.epoch); p.waits[least] == 0 {
			return p.next()
		}
	}
	return least
}

// dropTenant gives up for the jobs of a tenant. Those after the first one would have more with a further slot, so no job has
// enough for them either.
func (p *preemption) dropTenant(tenant *share) {
	maps.DeleteFunc(p.waits, func(d *demand, _ int) bool { return d.share.parent.parent == tenant })
}

// bounded reports whether a quota forbids a further slot.
func (p *preemption) bounded(n *share) bool {
	for ; n != nil; n = n.parent {
		if n.most > 0 && n.slots+p.gained[n] >= n.most {
			return true
		}
	}
	return false
}

// giver returns the stream whose slot an epoch gets, and the epoch of that stream; nil if there is none. enough is set if
// some job has enough to give.
func (p *preemption) giver(to *demand) (from *demand, stream *pecanv1.StoredStream, enough bool) {
	slices.SortFunc(p.givers, func(a, b *demand) int { return p.compare(b, a, -1) })
	members, unreachable := p.Members(to.epoch.Job), p.Unreachable(to.epoch)
	for _, d := range p.givers {
		if d.running+p.gained[d.share] <= 1 || !p.mayGive(d, to) {
			continue
		}
		enough = true
		if stream := p.streamOf(d, func(l *load) bool {
			return l.Usable && p.serves(l, to.epoch.Job) && (members == nil || members[l.ID]) && !unreachable[l.ID]
		}); stream != nil {
			return d, stream, true
		}
	}
	return nil, nil, enough
}

// mayGive reports whether one job still has the part of another one after it gave a slot to it. Jobs of different tenants
// compare the parts of the tenants.
func (p *preemption) mayGive(from, to *demand) bool {
	gives, gets := from.share.parent, to.share.parent
	if gives.parent != gets.parent {
		gives, gets = gives.parent, gets.parent
	}
	return gives != gets && p.part(gives, -1) >= p.part(gets, 1)
}

// streamOf returns a stream of an epoch on one of the given workers; nil without one. Of a worker with more streams than
// slots, no slot gets free, so such workers come last. The stream that began last has the least work in its buffers.
func (p *preemption) streamOf(d *demand, serves func(*load) bool) (last *pecanv1.StoredStream) {
	full := false
	for _, stream := range d.epoch.Active() {
		l := p.workers[stream.Worker.GetWorkerId()]
		if l == nil || stream.Produced || d.epoch.Job.Plan.IsClosing(stream.Stream) || p.taken[stream] || !serves(l) {
			continue
		}
		if over := l.running-p.freed[l] > l.MaxStreams; last == nil || full && !over || full == over && stream.Lease > last.Lease {
			last, full = stream, over
		}
	}
	return last
}

// move notes that one epoch gives a stream, and that another one gets the slot. A worker with more streams than slots has no
// slot for it.
func (p *preemption) move(from, to *demand, stream *pecanv1.StoredStream) {
	p.taken[stream] = true
	for n := from.share; n != nil; n = n.parent {
		p.gained[n]--
	}
	if l := p.workers[stream.Worker.GetWorkerId()]; l.running-p.freed[l] > l.MaxStreams {
		p.freed[l]++
		return
	}
	p.waits[to]--
	for n := to.share; n != nil; n = n.parent {
		p.gained[n]++
	}
}
