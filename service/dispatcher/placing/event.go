package placing

import (
	"github.com/pecan-ml/pecan/policies/autoscale"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// Event is one line of the log of decisions, as JSON. Its measurements are those that the policy decided from.
// docs/formats/decisions.md describes it. Lines of earlier versions lack the fields that are pointers.
type Event struct {
	// AtS is in seconds of the dispatcher's clock.
	AtS       float64          `json:"at_s"`
	Job       string           `json:"job"`
	Objective string           `json:"objective"`
	Budget    float64          `json:"budget"`
	Prices    autoscale.Prices `json:"prices"`
	Limits    autoscale.Limits `json:"limits"`
	// Plan changes with what determines the cost of an element.
	Plan uint64 `json:"plan"`
	// Seconds is the length of the measurement window, Trainers the number of trainers that read; 0 without a window.
	Seconds  float64 `json:"seconds"`
	Trainers int     `json:"trainers"`
	Remote   int     `json:"remote"`
	Local    int     `json:"local"`
	ElementS float64 `json:"element_s"`
	Wait     float64 `json:"wait"`
	// Busy is the mean busy share of the workers, ProducedS the elements that they produced per second. LocalBusy and
	// LocalProducedS are those of the local workers alone.
	Busy           float64 `json:"busy"`
	ProducedS      float64 `json:"produced_s"`
	LocalBusy      float64 `json:"local_busy"`
	LocalProducedS float64 `json:"local_produced_s"`
	// CPU is the mean use of the remote workers' processors, from 0 to 1. Queue is the mean number of ready elements of a trainer.
	CPU   *float64 `json:"cpu"`
	Queue *float64 `json:"queue"`
	// Load is the load of the most loaded host of a trainer.
	Load float64 `json:"load"`
	// Horizon is in how many windows a probe must pay for itself.
	Horizon int `json:"horizon"`
	// Share is the least share of a worker's elements that were the job's. Disturbed: other jobs changed it. Gap: reports are
	// missing, or the training loop paused. A window with either does not count.
	Share      float64                       `json:"share"`
	Disturbed  bool                          `json:"disturbed"`
	Gap        bool                          `json:"gap"`
	Target     Target                        `json:"target"`
	State      string                        `json:"state"`
	Why        string                        `json:"why"`
	SearchCost float64                       `json:"search_cost"`
	Candidates []*pecanv1.PlacementCandidate `json:"candidates"`
}

// Target is the wanted number of workers of each kind.
type Target struct {
	Remote int `json:"remote"`
	Local  int `json:"local"`
}

// Event describes the last decision on a job, whose request was r.
func (p *Placer) Event(r Request, decided *pecanv1.Placement) Event {
	goal, w, horizon := Goal(r), autoscale.Window{}, 0
	if s := p.jobs[r.JobID]; s != nil {
		w, horizon = s.seen, s.policy.Horizon
	}
	e := Event{
		AtS: r.Now.Seconds(), Job: r.JobID, Objective: string(goal.Objective), Budget: goal.Budget, Prices: goal.Prices, Limits: goal.Limits,
		Plan: w.Plan, Seconds: w.Seconds, Trainers: len(w.Consumers), Remote: w.Workers.Remote, Local: w.Workers.Local, ElementS: w.ElementTime(),
		Wait: w.Wait(), Target: Target{int(decided.Remote), int(decided.Local)}, State: decided.State, Why: decided.Why, SearchCost: decided.SearchCost,
		Candidates: decided.Candidates, Horizon: horizon, Gap: w.Gap,
	}
	if queue := w.Queue(); len(w.Consumers) > 0 {
		e.Queue = &queue
	}
	remote, remoteBusy, remotes := w.Produced(false)
	local, localBusy, locals := w.Produced(true)
	e.LocalBusy, e.LocalProducedS, e.ProducedS = localBusy, local, remote+local
	if all := float64(remotes + locals); all > 0 {
		e.Busy = (remoteBusy*float64(remotes) + localBusy*float64(locals)) / all
	}
	if remotes > 0 {
		cpu := 0.0
		for _, worker := range w.Fleet {
			if !worker.Local {
				cpu += worker.CPU / float64(remotes)
			}
		}
		e.CPU = &cpu
	}
	for _, host := range w.Hosts {
		for _, c := range w.Consumers {
			if c.Host == host.ID {
				e.Load = max(e.Load, host.Load)
			}
		}
	}
	if w := r.Window; w != nil {
		e.Share, e.Disturbed = 1, w.Disturbed
		for _, worker := range w.Fleet {
			e.Share = min(e.Share, worker.Share)
		}
	}
	return e
}
