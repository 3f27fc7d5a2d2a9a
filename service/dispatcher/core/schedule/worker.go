package schedule

import (
	"cmp"

	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
)

// maxHeldPerSlot bounds the streams that a worker holds until they are delivered, per slot. Epochs whose trainers keep up may
// exceed it, see fits.
const maxHeldPerSlot = 4

// Worker is a worker that may get streams.
type Worker struct {
	ID string
	// Usable workers are connected, heard recently and not leaving.
	Usable     bool
	MaxStreams int
	// Order is the order in which workers registered. It breaks ties.
	Order uint64
	// Position is the worker's position in the configured list of workers, -1 without one.
	Position int
	// Local is set if the worker serves only the jobs for which Host.Locals has it.
	Local bool
}

// load is a worker with the number of its streams.
type load struct {
	Worker
	running, held int
	// prefetchJobs has the jobs of which the worker holds a stream of a prefetched epoch. The other counts exclude these
	// streams. Each has produced at most one element and waits, perhaps forever, so it must not keep others from the slot.
	prefetchJobs map[string]bool
	// dirty is set if the counts may be wrong.
	dirty bool
	// usableAt, freeAt, roomAt and aheadAt are the positions in the four heaps, -1 if the worker is not in the heap. Local
	// workers are in no heap. Otherwise workers that serve other jobs only could be on top.
	usableAt, freeAt, roomAt, aheadAt int
	// serves is set if a slot of the worker helps the epoch of the search with the number searched, see Preempt.
	searched uint64
	serves   bool
}

// hasSlot reports whether a slot is free.
func (l *load) hasSlot() bool { return l.running < l.MaxStreams }

// mayHold reports whether the worker may hold this many streams more for any epoch.
func (l *load) mayHold(more int) bool { return l.held+more <= maxHeldPerSlot*l.MaxStreams }

// hasRoom reports whether a slot is free for any epoch.
func (l *load) hasRoom() bool { return l.hasSlot() && l.mayHold(1) }

// mayServe reports whether the worker may get streams of a job with these local workers, by its kind. See Host.Locals.
func (l *load) mayServe(locals map[string]bool, only bool) bool {
	return !l.Local && !only || locals[l.ID]
}

// takesAhead reports whether the worker may get a stream of some prefetched epoch.
func (l *load) takesAhead() bool { return l.hasRoom() && l.running+len(l.prefetchJobs) < l.MaxStreams }

// count counts the streams of a worker again.
func (l *load) count(leases []durable.Ref) {
	l.running, l.held, l.dirty = 0, 0, false
	clear(l.prefetchJobs)
	for _, held := range leases {
		stream := held.Epoch.Find(held.Stream)
		// One stream of a prefetched epoch counts as prefetched on each worker. Further ones were started for a trainer
		// that has left, and count like any other.
		if job := held.Epoch.Job.JobId; !stream.Delivered && !l.prefetchJobs[job] && durable.AllPrefetched(held.Epoch) {
			l.prefetchJobs[job] = true
			continue
		}
		if Running(held.Epoch, stream) {
			l.running++
		}
		if !stream.Delivered {
			l.held++
		}
	}
}

// compare orders workers by their load: the fewest running streams are first, then the fewest held ones, then the earliest
// registration.
func (l *load) compare(other *load) int {
	return cmp.Or(cmp.Compare(l.running, other.running), cmp.Compare(l.held, other.held), cmp.Compare(l.Order, other.Order), cmp.Compare(l.ID, other.ID))
}

// before orders workers. The one with the smallest load comes first.
func (l *load) before(other *load) bool { return l.compare(other) < 0 }

// beforeAhead orders workers. The one with streams of the fewest prefetched epochs comes first.
func (l *load) beforeAhead(other *load) bool {
	return cmp.Or(cmp.Compare(len(l.prefetchJobs), len(other.prefetchJobs)), l.compare(other)) < 0
}
