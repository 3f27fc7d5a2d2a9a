package schedule

import (
	"container/heap"
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
)

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
}

// Round is one distribution of workers among waiting streams.
type Round struct {
	// Jobs are in the order in which they were created.
	Jobs []*pecanv1.StoredJob
	// Workers are in ascending order of their ids.
	Workers []*Worker
	// Positions is the length of the configured list of workers. Starting means that absent workers of the list may still come.
	Positions int
	Starting  bool
	// Ready returns the waiting streams of an epoch that may be leased now.
	Ready func(*pecanv1.StoredJob, *pecanv1.StoredEpoch) func(*pecanv1.StoredStream) bool
	// Avoid names the workers that failed a stream, or that its client could not reach.
	Avoid func(*pecanv1.StoredJob, *pecanv1.StoredEpoch, *pecanv1.StoredStream) []string
	// Grant leases a stream to a worker. It changes the stream at once.
	Grant func(job *pecanv1.StoredJob, epoch *pecanv1.StoredEpoch, stream *pecanv1.StoredStream, workerID string)
}

// Run leases waiting streams to workers. First come those that must run under any load: all streams of epochs
// that need all open, and one stream of every epoch that has none. Otherwise a trainer with a paused iterator
// could hold all slots, and block the iterator that it waits for.
//
// Then Run shares the free slots: the epoch with the fewest running streams is next, and its streams go in order.
// Prefetched epochs come last, take only free slots (see fits) and get at most one stream per worker, even if
// they need all open. The rest is leased when a client adopts the epoch.
func (r *Round) Run() {
	pass, wants := r.collect()
	for _, w := range wants {
		switch {
		case w.prefetch:
		case needsAllOpen(w.job):
			for len(w.waiting) > 0 && r.leaseNext(pass, w, false) {
			}
		case w.held == 0:
			r.leaseNext(pass, w, false)
		}
	}
	queue := demandQueue(slices.DeleteFunc(wants, func(w *demand) bool { return len(w.waiting) == 0 }))
	heap.Init(&queue)
	for len(queue) > 0 {
		next := queue[0]
		if !r.leaseNext(pass, next, true) {
			if next.skipped = true; Static(next.job) {
				// The next stream may belong to another position.
				next.waiting = next.waiting[1:]
			} else {
				next.waiting = nil
			}
		}
		if len(next.waiting) == 0 {
			heap.Pop(&queue)
		} else {
			heap.Fix(&queue, 0)
		}
	}
}

// leaseNext leases the first waiting stream of an epoch, if a worker has room for it.
func (r *Round) leaseNext(pass *roundLoads, w *demand, needRoom bool) bool {
	stream := w.waiting[0]
	closing := durable.IsClosing(w.job, stream)
	if closing && w.skipped {
		return false
	}
	id := r.pick(pass, w, stream, needRoom && !closing)
	if id == "" {
		return false
	}
	w.waiting = w.waiting[1:]
	r.Grant(w.job, w.epoch, stream, id)
	if Running(w.job, w.epoch, stream) {
		w.running++
	}
	w.held++
	w.charge(pass.loads[id], stream)
	return true
}
