package placement

import "github.com/pecan-ml/pecan/service/dispatcher/core/durable"

// WantedRemote returns how many remote workers the jobs that are read want. After a decision, a job wants the decided number,
// and at least one worker if its local workers are gone. Before a decision, it keeps the present workers. A job for which
// nothing is decided keeps them too, and wants at least one.
func (p *Placements) WantedRemote() (wanted int, keep bool) {
	least := 0
	for _, job := range p.state.Jobs() {
		switch {
		case !IsRead(job) || TargetsLocal(job):
			// The provider does not choose the trainer's host.
		case !placeable(job):
			keep, least = true, 1
		case job.Placement != nil:
			wanted += int(job.Placement.GetRemote())
			if job.Placement.GetRemote() == 0 && p.lacksLocal(job) {
				least = 1
			}
		case len(p.workers) > 0:
			// The decision is near. All workers serve the job until then.
			keep = true
		default:
			// Without any worker there may be no decision.
			least = 1
		}
	}
	return max(wanted, least), keep
}

// lacksLocal reports whether a job that should run on local workers only has none, and none is about to start or to return. A
// remote worker that serves it meanwhile is needed until a local one is there.
func (p *Placements) lacksLocal(job *durable.Job) bool {
	s := p.searches[job.JobId]
	if s == nil || p.returns(job, s) {
		return false
	}
	if _, local := p.fleetOf(job); len(local) > 0 {
		return false
	}
	remote := false
	for _, id := range s.members {
		switch worker := p.workers[id]; {
		case worker == nil:
		case !worker.Local:
			remote = true
		case !worker.Leaving && p.serves(worker, job):
			return false
		}
	}
	return remote || !p.startsLocal(s, nil)
}
