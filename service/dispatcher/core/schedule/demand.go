package schedule

import (
	"cmp"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
)

// load counts the streams of a worker.
type load struct {
	running, held int
	// prefetchJobs has the jobs of which the worker holds a stream of a prefetched epoch. The other counts
	// exclude these streams: each has produced at most one element and waits, perhaps forever. It must not keep
	// others from the slot.
	prefetchJobs map[string]bool
}

// demand is an epoch with streams that wait for a worker.
type demand struct {
	job     *pecanv1.StoredJob
	epoch   *pecanv1.StoredEpoch
	waiting []*pecanv1.StoredStream
	// running counts the epoch's running streams, held those on a worker and not delivered.
	running, held int
	prefetch      bool
	// order is the position of the epoch in the list. It breaks ties.
	order int
	// skipped: a stream found no worker or must wait, so it is too early for the closing stream.
	skipped bool
}

// roundLoads holds the loads of one round.
type roundLoads struct {
	loads map[string]*load
	// full: no worker has room for a stream without a position. Room only shrinks during a division.
	full bool
}

func (r *Round) collect() (*roundLoads, []*demand) {
	pass := &roundLoads{loads: map[string]*load{}}
	for _, worker := range r.Workers {
		pass.loads[worker.ID] = &load{prefetchJobs: map[string]bool{}}
	}
	var wants []*demand
	for _, job := range r.Jobs {
		for _, epoch := range job.Epochs {
			w := &demand{job: job, epoch: epoch, prefetch: durable.AllPrefetched(epoch), order: len(wants)}
			ready := r.Ready(job, epoch)
			for _, stream := range epoch.Streams {
				switch {
				case !waiting(job, epoch, stream):
				case !ready(stream):
					w.skipped = true
				default:
					w.waiting = append(w.waiting, stream)
				}
				if stream.Worker == nil {
					continue
				}
				if Running(job, epoch, stream) {
					w.running++
				}
				if !stream.Delivered {
					w.held++
				}
				if l := pass.loads[stream.Worker.WorkerId]; l != nil {
					w.charge(l, stream)
				}
			}
			if len(w.waiting) > 0 {
				wants = append(wants, w)
			}
		}
	}
	return pass, wants
}

// charge adds a leased stream to the load of its worker. Of a prefetched epoch, one stream per worker counts as
// prefetched. Further ones were started for a trainer that has left, and count like any other.
func (d *demand) charge(l *load, stream *pecanv1.StoredStream) {
	if d.prefetch && !stream.Delivered && !l.prefetchJobs[d.job.JobId] {
		l.prefetchJobs[d.job.JobId] = true
		return
	}
	if Running(d.job, d.epoch, stream) {
		l.running++
	}
	if !stream.Delivered {
		l.held++
	}
}

// demandQueue is a heap. The epoch whose turn is next is on top.
type demandQueue []*demand

// Len implements heap.Interface.
func (q demandQueue) Len() int { return len(q) }

// Less implements heap.Interface: prefetched epochs come last; then the epoch with the fewest running streams
// comes first.
func (q demandQueue) Less(i, j int) bool {
	a, b := q[i], q[j]
	if a.prefetch != b.prefetch {
		return b.prefetch
	}
	return cmp.Or(cmp.Compare(a.running, b.running), cmp.Compare(a.order, b.order)) < 0
}

// Swap implements heap.Interface.
func (q demandQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }

// Push implements heap.Interface.
func (q *demandQueue) Push(w any) { *q = append(*q, w.(*demand)) }

// Pop implements heap.Interface.
func (q *demandQueue) Pop() any {
	last := len(*q) - 1
	w := (*q)[last]
	*q = (*q)[:last]
	return w
}
