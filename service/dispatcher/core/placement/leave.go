package placement

import (
	"maps"
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
)

// leaveMembers takes streams that can begin at any index from workers that no longer serve the job. All other
// streams end on their workers. A leaving worker's streams do too, because that worker hands its streams over. A worker that is
// away keeps its streams as long as it may come back. A stream whose readers reach no chosen worker stays. leaveMembers returns
// whether a worker still runs one of the others.
func (p *Placements) leaveMembers(job *durable.Job, s *search) (runs bool) {
	if !s.leaving {
		return false
	}
	for _, epoch := range job.Epochs {
		for _, stream := range epoch.Active() {
			id := stream.Worker.GetWorkerId()
			worker := p.workers[id]
			if stream.Worker == nil || worker == nil || s.serves[id] || p.schedule.NeedsOthers(epoch, stream.Stream) {
				continue
			}
			if worker.Away || worker.Leaving {
				runs = runs || !stream.Produced && !stream.Delivered
				continue
			}
			if p.host.Move(job, epoch, stream, "worker "+id+" no longer serves the job") {
				runs = true
			}
		}
	}
	s.leaving = runs
	return runs
}

// LeaveOtherHosts takes streams from local workers that may no longer serve their job, because no trainer of it is left on their
// host. Streams that cannot move end where they are.
func (p *Placements) LeaveOtherHosts() {
	if !p.localsMoved {
		return
	}
	p.localsMoved = false
	for _, id := range slices.Sorted(maps.Keys(p.local)) {
		p.state.EachLease(id, func(job *durable.Job, epoch *durable.Epoch, stream *pecanv1.StoredStream) {
			if p.clientsKnown(job) && !p.Serves(id, job) {
				p.host.Move(job, epoch, stream, "worker "+id+" serves other trainers only")
			}
		})
	}
}
