package schedule

import (
	"cmp"
	"maps"
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
)

// maxPreempted bounds the streams of one call of Preempt, and maxUnserved the epochs for which it finds none.
const maxPreempted, maxUnserved = 256, 32

// Preempt returns streams to take from their workers, because a job with a smaller share of the slots waits for one.
// Most slots get free because streams end. So a job counts only if it was in this state at the previous call too. The owner
// calls Preempt in equal intervals and takes the streams. The next Run gives the slots to the epochs that they were taken for.
//
// starved reports whether a trainer waits for elements of an epoch: a trainer that does not read takes no slots from others.
// movable reports whether the streams of an epoch can continue at once on other workers. A job gives a slot only if it then
// still has as many slots for its weight as the other job, or more. So no slot moves back. An epoch that gives keeps one stream.
// Streams that must be open together stay.
func (s *Scheduler) Preempt(starved, movable func(*durable.Epoch) bool) (taken []durable.Ref) {
	before := s.short
	s.short = map[*slotShare]bool{}
	if len(s.jobs) < 2 {
		return nil
	}
	p := s.newPreemption(starved, movable)
	for unserved := 0; len(taken) < maxPreempted && unserved < maxUnserved; {
		to := p.next()
		if to == nil {
			break
		}
		from, stream := p.giver(to)
		if from == nil {
			unserved++
			delete(p.waits, to)
			continue
		}
		job := to.slotShare.parent
		if s.short[job] = true; !before[job] {
			delete(p.waits, to)
			continue
		}
		p.move(from, to, stream)
		taken = append(taken, durable.Ref{Epoch: from.epoch, Stream: stream.Stream})
	}
	return taken
}

// leasePreempted leases the slots of streams that Preempt chose to the epochs that they were taken for.
func (s *Scheduler) leasePreempted() {
	for _, d := range s.owed {
		if s.epochs[d.epoch] == d && !d.prefetch && d.waits() && !d.slotShare.bounded() {
			s.leaseNext(d)
		}
	}
	s.owed = nil
}

// preemption counts what the jobs and workers will have after the moves that are chosen so far.
type preemption struct {
	*Scheduler
	// waits has how many streams wait, for each epoch that may get slots; -1 if they are not counted yet. readers has the readers
	// of those that are counted. givers are the epochs that may give slots, and streams has their streams, the newest lease first.
	// sorted is set if the givers are in order, the one with the most slots for its weight first.
	waits   map[*demand]int
	readers map[*demand][]*waitingReader
	givers  []*demand
	streams map[*demand][]giveable
	sorted  bool
	// gained has the slots that nodes get, less those that they give. freed has what workers lose of the streams beyond their
	// slots.
	gained map[*slotShare]int
	freed  map[*load]int
}

// giveable is a stream that an epoch may give, and the load of its worker.
type giveable struct {
	*pecanv1.StoredStream
	on *load
}

// waitingReader counts the streams of one reader that wait for a slot.
type waitingReader struct {
	streams int
	reach   map[string]Reach
	// members are the workers that may serve the reader; nil if all may.
	members map[string]bool
}

func (s *Scheduler) newPreemption(starved, movable func(*durable.Epoch) bool) *preemption {
	p := &preemption{
		Scheduler: s, waits: map[*demand]int{}, readers: map[*demand][]*waitingReader{}, streams: map[*demand][]giveable{}, gained: map[*slotShare]int{}, freed: map[*load]int{},
	}
	for _, d := range s.epochs {
		if d.prefetch {
			continue
		}
		// A stream of a statically sharded job can use the slots of one worker only.
		if d.waits() && !(s.positions > 0 && static(d.epoch.Job)) && starved(d.epoch) {
			p.waits[d] = -1
		}
		if below, _ := mustBeOpen(d.epoch); below == 0 && d.running > 1 && movable(d.epoch) {
			p.givers = append(p.givers, d)
		}
	}
	richest := p.richest()
	maps.DeleteFunc(p.waits, func(to *demand, _ int) bool {
		return !slices.ContainsFunc(richest, func(from *demand) bool { return p.mayGive(from, to) })
	})
	return p
}

// richest returns the giver with the largest share of each tenant, the tenants with the largest shares first. If none of them
// may give, no giver may.
func (p *preemption) richest() (list []*demand) {
	of := map[*slotShare]*demand{}
	for _, d := range p.givers {
		if tenant := d.slotShare.parent.parent; of[tenant] == nil || p.compare(d, of[tenant], -1) > 0 {
			of[tenant] = d
		}
	}
	return slices.SortedFunc(maps.Values(of), func(a, b *demand) int { return p.compare(b, a, -1) })
}

// countWaiting counts the streams that wait for a slot, up to maxPreempted, and those of each reader.
func (s *Scheduler) countWaiting(epoch *durable.Epoch) (n int, readers []*waitingReader) {
	of := map[string]*waitingReader{}
	s.waiting(epoch, 0, func(stream uint32) bool {
		if stream >= epoch.Regular() {
			return false
		}
		id := epoch.Find(stream).GetConsumer()
		r := of[id]
		if r == nil {
			reach := s.Reach(epoch, stream)
			r = &waitingReader{reach: reach, members: s.membersFor(epoch.Job, reach)}
			of[id], readers = r, append(readers, r)
		}
		r.streams++
		n++
		return n < maxPreempted
	})
	return n, readers
}

// readerFor returns a reader of an epoch that a slot of a worker helps; nil without one.
func (p *preemption) readerFor(to *demand, l *load) *waitingReader {
	for _, r := range p.readers[to] {
		if r.streams > 0 && (r.members == nil || r.members[l.ID]) && r.reach[l.ID] == Reachable {
			return r
		}
	}
	return nil
}

// perWeight is how many slots a node will have for its weight, with this many slots more.
func (p *preemption) perWeight(n *slotShare, more int) float64 {
	return float64(n.running+p.gained[n]+more) / n.weight
}

// compare orders epochs by what their tenants, and then their jobs, would have with this many slots more.
func (p *preemption) compare(a, b *demand, more int) int {
	jobA, jobB := a.slotShare.parent, b.slotShare.parent
	return cmp.Or(
		cmp.Compare(p.perWeight(jobA.parent, more), p.perWeight(jobB.parent, more)), cmp.Compare(jobA.parent.name, jobB.parent.name),
		cmp.Compare(p.perWeight(jobA, more), p.perWeight(jobB, more)), compareEpochs(a.epoch, b.epoch))
}

// next returns the epoch that would have the least with a further slot; nil without one.
func (p *preemption) next() (least *demand) {
	for d, waiting := range p.waits {
		if waiting == 0 || p.full(d.slotShare.parent, 0) {
			delete(p.waits, d)
		} else if least == nil || p.compare(d, least, 1) < 0 {
			least = d
		}
	}
	if least != nil && p.waits[least] < 0 {
		if p.waits[least], p.readers[least] = p.countWaiting(least.epoch); p.waits[least] == 0 {
			return p.next()
		}
	}
	return least
}

// full reports whether a node has its quota, or this many slots more.
func (p *preemption) full(n *slotShare, more int) bool {
	return n.most > 0 && n.slots+p.gained[n] >= n.most+more
}

// giver returns the stream whose slot an epoch gets, and the epoch of that stream; nil if there is none.
func (p *preemption) giver(to *demand) (from *demand, stream *pecanv1.StoredStream) {
	locals, only := p.Locals(to.epoch.Job)
	keepsUp := to.keepsUp()
	p.searches++
	serves := func(l *load) bool {
		// Many streams are on one worker, so its answer is kept.
		if l.searched != p.searches {
			// The worker holds one stream less then.
			mayHold := keepsUp || l.mayHold(0)
			l.searched, l.serves = p.searches, l.Usable && mayHold && l.mayServe(locals, only) && p.readerFor(to, l) != nil
		}
		return l.serves
	}
	if !p.sorted {
		slices.SortFunc(p.givers, func(a, b *demand) int { return p.compare(b, a, -1) })
		p.sorted = true
	}
	for _, d := range p.givers {
		if d.running+p.gained[d.slotShare] <= 1 || !p.mayGive(d, to) {
			continue
		}
		if stream := p.streamOf(d, serves); stream != nil {
			return d, stream
		}
	}
	return nil, nil
}

// mayGive reports whether a job that gives a slot to another one still has as many slots for its weight, or more. For jobs of
// different tenants, the slots and weights of the tenants count, and the quota of the tenant that gets must allow the slot.
func (p *preemption) mayGive(from, to *demand) bool {
	gives, gets := from.slotShare.parent, to.slotShare.parent
	if gives.parent != gets.parent {
		if gives, gets = gives.parent, gets.parent; p.full(gets, 0) {
			return false
		}
	}
	return gives != gets && p.perWeight(gives, -1) >= p.perWeight(gets, 1)
}

// streamOf returns a stream of an epoch on one of the given workers; nil without one. A worker with more streams than slots
// has no free slot after a move either, so such workers come last. The stream that began last has the least work in its
// buffers.
func (p *preemption) streamOf(d *demand, serves func(*load) bool) (last *pecanv1.StoredStream) {
	streams, known := p.streams[d]
	if !known {
		for _, stream := range d.epoch.Active() {
			on := p.workers[stream.Worker.GetWorkerId()]
			if on != nil && !stream.Produced && !stream.Delivered && !d.epoch.Job.Plan.IsClosing(stream.Stream) {
				streams = append(streams, giveable{stream, on})
			}
		}
		slices.SortFunc(streams, func(a, b giveable) int { return cmp.Compare(b.Lease, a.Lease) })
		p.streams[d] = streams
	}
	for _, stream := range streams {
		if !serves(stream.on) {
			continue
		}
		if stream.on.running-p.freed[stream.on] <= stream.on.MaxStreams {
			return stream.StoredStream
		}
		if last == nil {
			last = stream.StoredStream
		}
	}
	return last
}

// move notes that one epoch gives a stream, and that another one gets the slot. A worker with more streams than slots has no
// slot for it, and neither has a tenant with more than its quota.
func (p *preemption) move(from, to *demand, stream *pecanv1.StoredStream) {
	p.sorted = false
	p.streams[from] = slices.DeleteFunc(p.streams[from], func(other giveable) bool { return other.StoredStream == stream })
	l, tenant := p.workers[stream.Worker.WorkerId], to.slotShare.parent.parent
	over := l.running-p.freed[l] > l.MaxStreams
	if over {
		p.freed[l]++
	}
	over = over || from.slotShare.parent.parent == tenant && p.full(tenant, 1)
	for n := from.slotShare; n != nil; n = n.parent {
		p.gained[n]--
	}
	if over {
		return
	}
	p.waits[to]--
	p.readerFor(to, l).streams--
	p.owed = append(p.owed, to)
	for n := to.slotShare; n != nil; n = n.parent {
		p.gained[n]++
	}
}
