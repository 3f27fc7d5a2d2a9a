package schedule

import (
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
)

// maxHeldPerSlot bounds the produced streams that a worker keeps until they are delivered, per slot.
const maxHeldPerSlot = 4

// pick chooses the worker for a stream: the one with the fewest running streams, then the fewest held ones, then
// the one that registered first. Workers that failed the stream come last.
func (r *Round) pick(pass *roundLoads, w *demand, stream *pecanv1.StoredStream, needRoom bool) string {
	if id, decided := r.pickByPosition(pass, w, stream, needRoom); decided {
		return id
	}
	if pass.full && needRoom {
		return ""
	}
	avoid := r.Avoid(w.job, w.epoch, stream)
	best, bestRank := (*Worker)(nil), [5]int{}
	for _, worker := range r.Workers {
		id, l := worker.ID, pass.loads[worker.ID]
		if !worker.Usable || !w.fits(worker, l, needRoom) {
			continue
		}
		rank := [5]int{0, 0, 0, l.running, l.held}
		if slices.Contains(avoid, id) {
			rank[0] = 1
		}
		if w.prefetch {
			rank[1] = len(l.prefetchJobs)
		}
		if w.job.Options.GetMode() == pecanv1.Mode_MODE_OFF {
			rank[2] = streamsOn(w.epoch, id)
		}
		order := slices.Compare(rank[:], bestRank[:])
		if best == nil || order < 0 || order == 0 && worker.Order < best.Order {
			best, bestRank = worker, rank
		}
	}
	if best == nil {
		pass.full = pass.full || needRoom && !w.prefetch
		return ""
	}
	return best.ID
}

// fits reports whether a worker may get a stream of the epoch. A stream of a prefetched epoch needs a free slot
// in any case, and each job gets one per worker. So all jobs together have at most as many prefetched streams on
// a worker as it has free slots. If a trainer finds none free, its next pass is leased when it adopts the pass.
func (d *demand) fits(worker *Worker, l *load, needRoom bool) bool {
	if d.prefetch {
		return hasRoom(worker, l) && l.running+len(l.prefetchJobs) < worker.MaxStreams && !l.prefetchJobs[d.job.JobId]
	}
	return !needRoom || hasRoom(worker, l)
}

func hasRoom(worker *Worker, l *load) bool {
	return l.running < worker.MaxStreams && l.held < maxHeldPerSlot*worker.MaxStreams
}

func streamsOn(epoch *pecanv1.StoredEpoch, workerID string) int {
	n := 0
	for _, stream := range epoch.Streams {
		if stream.Worker.GetWorkerId() == workerID && stream.Worker != nil && !stream.Delivered {
			n++
		}
	}
	return n
}

// pickByPosition assigns stream i of a statically sharded job to the worker at position i of the configured list.
// While the service starts it waits for that worker. Later any worker may take the stream.
func (r *Round) pickByPosition(pass *roundLoads, w *demand, stream *pecanv1.StoredStream, needRoom bool) (id string, decided bool) {
	if r.Positions == 0 || !Static(w.job) || durable.IsClosing(w.job, stream) {
		return "", false
	}
	position := int(stream.Stream) % r.Positions
	for _, worker := range r.Workers {
		if worker.Position == position && worker.Usable {
			if !w.fits(worker, pass.loads[worker.ID], needRoom) {
				return "", true
			}
			return worker.ID, true
		}
	}
	return "", r.Starting
}
