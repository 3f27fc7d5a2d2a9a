package schedule

import (
	"cmp"
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
)

// demand is an epoch that may have streams that wait for a worker.
type demand struct {
	epoch    *durable.Epoch
	running  int
	prefetch bool
	// closings has the closing streams that run. Those in unsure may have begun to run, or stopped.
	closings, unsure map[uint32]bool
	// slotShare is the epoch in the tree of shares of slots. at is the position in the queue of prefetched epochs, -1 outside of it.
	slotShare *slotShare
	at        int
	// members are the workers that serve the job, as of the last time that no worker could take a stream.
	members map[string]bool
}

// before orders prefetched epochs. The epoch with the fewest running streams comes first. Of equal epochs, the oldest does.
func (d *demand) before(other *demand) bool {
	return cmp.Or(cmp.Compare(d.running, other.running), compareEpochs(d.epoch, other.epoch)) < 0
}

func compareEpochs(a, b *durable.Epoch) int {
	return cmp.Or(cmp.Compare(a.Job.Sequence, b.Job.Sequence), cmp.Compare(a.Epoch, b.Epoch))
}

func sortDemands(list []*demand) {
	slices.SortFunc(list, func(a, b *demand) int { return compareEpochs(a.epoch, b.epoch) })
}

// refreshDemand brings the demand of an epoch up to date.
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
	s.unblock(d)
}

// waits reports whether the epoch may have a stream that waits for a slot. Closing streams need none, except those of
// prefetched epochs.
func (d *demand) waits() bool {
	if !Read(d.epoch) {
		return false
	}
	stream, waits := nextWaiting(d.epoch, 0)
	return waits && (d.prefetch || stream < d.epoch.Regular())
}

// computes reports whether a worker computes a stream of the epoch, or keeps elements of it that the trainer has not read.
// A closing stream that waits for rows does neither.
func (d *demand) computes() bool {
	waiting := 0
	for _, closing := range d.epoch.Closings() {
		if !closing.Delivered && !d.closings[closing.Stream] {
			waiting++
		}
	}
	return d.epoch.Held() > waiting
}

// keepsUp reports whether the trainers of the epoch read nearly as fast as workers produce: no more streams wait for them
// than run.
func (d *demand) keepsUp() bool { return d.epoch.Unread() <= d.running+1 }

// nextWaiting returns the first stream from one on that needs a worker and has none; false if there is none.
func nextWaiting(e *durable.Epoch, from uint32) (uint32, bool) {
	idle, anyIdle := nextIdle(e, from)
	fresh, anyFresh := e.NextFresh(from)
	if anyIdle && (!anyFresh || idle < fresh) {
		return idle, true
	}
	return fresh, anyFresh
}

// nextIdle returns the first stream from one on that needs a worker again; false if there is none.
func nextIdle(e *durable.Epoch, from uint32) (uint32, bool) {
	return e.NextIdle(from, func(stream *pecanv1.StoredStream) bool { return Needed(e, stream) })
}

// waiting visits the streams from one on that wait for a worker and may be leased now, until visit returns false. Streams
// come in ascending order. If no streams must be open together, the streams that the host wants later come last. Closing
// streams come when no stream that they join waits.
func (s *Scheduler) waiting(e *durable.Epoch, from uint32, visit func(stream uint32) bool) {
	if !Read(e) {
		return
	}
	var later func(uint32) bool
	if below, _ := mustBeOpen(e); below == 0 {
		later = s.Later(e)
	}
	var last []uint32
	ready, regular := s.Ready(e), e.Regular()
	for stream, more := nextWaiting(e, from); more; stream, more = nextWaiting(e, stream+1) {
		if stream >= regular && sourcesWait(e, stream) {
			// Later closing streams join later streams, or this one.
			break
		}
		switch {
		case !ready(stream):
		case later != nil && stream < regular && later(stream):
			last = append(last, stream)
		case !visit(stream):
			return
		}
	}
	for _, stream := range last {
		if !visit(stream) {
			return
		}
	}
}

// sourcesWait reports whether a stream that a closing stream joins waits for a worker.
func sourcesWait(e *durable.Epoch, closing uint32) bool {
	first, below := e.Sources(closing)
	idle, anyIdle := nextIdle(e, first)
	return anyIdle && idle < below || e.AnyFresh(first, below)
}
