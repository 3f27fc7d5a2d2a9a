package schedule

import (
	"cmp"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
)

// load of a worker.
type load struct {
	running, held int
	// prefetchJobs has the jobs of which the worker holds a stream of an epoch opened ahead of need. Those streams are not among the
	// others: each has made one element at most and waits, perhaps for ever, and must not keep others from the slot.
	prefetchJobs map[string]bool
}

// demand is an epoch with streams that wait for a worker.
type demand struct {
	job     *pecanv1.StoredJob
	epoch   *pecanv1.StoredEpoch
	waiting []*pecanv1.StoredStream
	// running streams of the epoch, and those held and not read to their end.
	running, held int
	prefetch      bool
	// order in which epochs came; breaks ties.
	order int
	// skipped: a stream found no worker, or waits for its files, so the closing stream's turn has not come.
	skipped bool
}

// round is one pass in which streams that wait are given to workers.
type round struct {
	loads map[string]*load
	// full: no worker has room for a stream that may go anywhere. Room only gets less in a pass.
	full bool
}

func (d *Division) collect() (*round, []*demand) {
	pass := &round{loads: map[string]*load{}}
	for _, worker := range d.Workers {
		pass.loads[worker.ID] = &load{prefetchJobs: map[string]bool{}}
	}
	var wants []*demand
	for _, job := range d.Jobs {
		for _, epoch := range job.Epochs {
			w := &demand{job: job, epoch: epoch, prefetch: durable.AllPrefetched(epoch), order: len(wants)}
			ready := d.Ready(job, epoch)
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

// charge adds a leased stream of the epoch to the load of its worker. Of an epoch opened ahead one stream is leased to a worker;
// what a worker holds beyond that was begun for a trainer that has left since, and is charged like any other.
func (w *demand) charge(l *load, stream *pecanv1.StoredStream) {
	if w.prefetch && !stream.Delivered && !l.prefetchJobs[w.job.JobId] {
		l.prefetchJobs[w.job.JobId] = true
		return
	}
	if Running(w.job, w.epoch, stream) {
		l.running++
	}
	if !stream.Delivered {
		l.held++
	}
}

// demandQueue is a heap, with the epoch whose turn is next on top.
type demandQueue []*demand

// Len implements heap.Interface.
func (q demandQueue) Len() int { return len(q) }

// Less implements heap.Interface: what is opened ahead comes last, then who has least comes first.
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
