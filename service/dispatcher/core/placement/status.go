package placement

import (
	"slices"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/dispatcher/core/measure"
)

// RecentTime is the time that status and metrics look back.
const RecentTime = 5 * time.Second

// Show adds the workers and the trainers of a job to its status.
func (p *Placements) Show(job *durable.Job, status *pecanv1.JobStatus) {
	status.Consumers, status.Placement, status.Fleet = p.consumers(job), p.newest(job), p.fleetNow(job)
}

// newest returns the newest decision on the workers of a job; nil without one.
func (p *Placements) newest(job *durable.Job) *pecanv1.Placement {
	if s := p.searches[job.JobId]; s != nil && s.last != nil {
		return s.last
	}
	return job.Placement
}

// fleetNow counts the workers that serve a job now and the trainers that read it. A worker that was released counts
// until its last stream has ended.
func (p *Placements) fleetNow(job *durable.Job) *pecanv1.JobFleet {
	serving := map[string]bool{}
	if s := p.searches[job.JobId]; s != nil && len(job.Epochs) > 0 {
		for _, id := range s.members {
			serving[id] = true
		}
	}
	for _, epoch := range job.Epochs {
		for _, stream := range epoch.Active() {
			if stream.Worker != nil && !stream.Produced && !stream.Delivered {
				serving[stream.Worker.WorkerId] = true
			}
		}
	}
	count := &pecanv1.JobFleet{Trainers: uint32(len(p.consumers(job)))}
	for id := range serving {
		switch worker := p.workers[id]; {
		case worker == nil || !worker.Usable:
		case worker.Local:
			count.Local++
		default:
			count.Remote++
		}
	}
	return count
}

// Trainers returns what the trainers of a job have taken in the last seconds.
func (p *Placements) Trainers(job *durable.Job) (list []measure.Trainer) {
	for _, id := range slices.Sorted(slices.Values(job.ClientIds)) {
		c := p.clients[id]
		if c == nil {
			continue
		}
		if subs := c.consumed.Since(p.host.Now() - RecentTime); len(subs) > 0 {
			list = append(list, measure.Trainer{Subs: slices.Clone(subs)})
		}
	}
	return list
}

// consumers returns the trainers of a job that have read in the last seconds, and how fast.
func (p *Placements) consumers(job *durable.Job) (list []*pecanv1.ConsumerStatus) {
	for _, id := range slices.Sorted(slices.Values(job.ClientIds)) {
		c := p.clients[id]
		if c == nil {
			continue
		}
		subs := c.consumed.Since(p.host.Now() - RecentTime)
		if len(subs) == 0 {
			continue
		}
		list = append(list, &pecanv1.ConsumerStatus{
			ClientId: id, HostId: c.host, ElementS: measure.Median(subs, measure.SubWindow.ElementTime), Wait: measure.Median(subs, measure.SubWindow.Wait),
			Queue: measure.Median(subs, func(s measure.SubWindow) float64 { return s.Queue }), SubWindows: uint32(len(subs)), Host: c.load,
		})
	}
	return list
}

// Explain adds the decision on the workers of a job, and what it rests on.
func (p *Placements) Explain(job *durable.Job, response *pecanv1.ExplainResponse) {
	response.Fleet = p.fleetNow(job)
	options := job.Options.GetPlacement()
	if options.GetObjective() == "" {
		return
	}
	response.PlacementOptions, response.Placement = options, p.newest(job)
	if response.Placement != nil {
		return
	}
	why := "nothing is decided before a trainer reads; all workers serve the job until then"
	if !placeable(job) {
		why = "all workers serve the job: it has failed, or each worker has a fixed part of the dataset"
	}
	response.Placement = &pecanv1.Placement{Remote: response.Fleet.Remote, Local: response.Fleet.Local, State: "start", Why: why}
}

// Recorded returns the last recorded decision on the workers of the first of some jobs that has one.
func (p *Placements) Recorded(jobIDs []string) *pecanv1.Placement {
	for _, id := range jobIDs {
		if job := p.state.Job(id); job != nil && job.Placement != nil {
			d := job.Placement
			return &pecanv1.Placement{Remote: d.Remote, Local: d.Local, State: d.State, Converged: d.Converged, Why: d.Why}
		}
	}
	return nil
}
