package core

import (
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
)

// placementStatus returns the newest decision on the workers of a job; nil without one.
func (c *Core) placementStatus(job *durable.Job) *pecanv1.Placement {
	if p := c.placements[job.JobId]; p != nil && p.last != nil {
		return p.last
	}
	return job.Placement
}

// fleetStatus counts the workers that serve a job now and the trainers that read it. A worker that was released counts
// until its last stream has ended.
func (c *Core) fleetStatus(job *durable.Job) *pecanv1.JobFleet {
	serving := map[string]bool{}
	if p := c.placements[job.JobId]; p != nil && len(job.Epochs) > 0 {
		for _, id := range p.members {
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
	fleet := &pecanv1.JobFleet{Trainers: uint32(len(c.consumersStatus(job)))}
	for id := range serving {
		switch worker := c.workers[id]; {
		case worker == nil || !c.usable(worker):
		case worker.kind == "local":
			fleet.Local++
		default:
			fleet.Remote++
		}
	}
	return fleet
}

// explainPlacement adds the decision on the workers of a job, and what it rests on.
func (c *Core) explainPlacement(job *durable.Job, response *pecanv1.ExplainResponse) {
	response.Fleet = c.fleetStatus(job)
	options := job.Options.GetPlacement()
	if options.GetObjective() == "" {
		return
	}
	response.PlacementOptions, response.Placement = options, c.placementStatus(job)
	if response.Placement != nil {
		return
	}
	why := "nothing is decided before a trainer reads; all workers serve the job until then"
	if !placeable(job) {
		why = "all workers serve the job: it has failed, or each worker has a fixed part of the dataset"
	}
	response.Placement = &pecanv1.Placement{Remote: response.Fleet.Remote, Local: response.Fleet.Local, State: "start", Why: why}
}

// recordedPlacement returns the last recorded decision on the workers of the first of some jobs that has one.
func (c *Core) recordedPlacement(jobIDs []string) *pecanv1.Placement {
	for _, id := range jobIDs {
		if job := c.state.Job(id); job != nil && job.Placement != nil {
			p := job.Placement
			return &pecanv1.Placement{Remote: p.Remote, Local: p.Local, State: p.State, Converged: p.Converged, Why: p.Why}
		}
	}
	return nil
}
