package placing

import (
	"slices"
	"time"

	"github.com/pecan-ml/pecan/policies/autoplacement"
	"github.com/pecan-ml/pecan/policies/autoscale"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/measure"
)

const (
	// maxCandidates bounds the configurations of a decision.
	maxCandidates = 16
	// forgetAfter is how long the search of a job without requests is kept.
	forgetAfter = 10 * time.Minute
	// mostHorizon bounds the windows in which a probe must pay for itself.
	mostHorizon = 200
)

// Request asks for a decision.
type Request struct {
	JobID   string
	Options *pecanv1.PlacementOptions
	// Known is the result of an earlier job; nil without one.
	Known *pecanv1.PlacementKnown
	// Remote is the number of remote workers that the job can have; Registered counts the existing ones. Local is the
	// number of local workers that exist or may be started; RegisteredLocal counts the existing ones.
	Remote, Registered, Local, RegisteredLocal int
	// Running is the number of local workers that the job's trainers run, of those that they may start.
	Running int
	// Prices may be zero.
	Prices autoscale.Prices
	// Window is nil before the first one. Plan changes with the division, the order of steps and the cache of the job.
	Window *measure.Window
	Plan   uint64
	// Left is how many elements the job's trainers are expected to take from now on; 0 if that is unknown.
	Left float64
	// Predicted is what the newest decision on a cache expects.
	Predicted measure.Predicted
	Now       time.Duration
}

// Placer keeps the searches of all jobs.
type Placer struct {
	jobs map[string]*search
}

// search is the search of one job.
type search struct {
	policy *autoplacement.Search
	used   time.Duration
	// seen is the window of the last decision.
	seen autoscale.Window
	// peaks has the elements per second of one worker of each kind (remote, local) in the last windows in which trainers waited.
	peaks [2][]float64
	plan  uint64
	// stage is that of the last prediction.
	stage string
	// candidates and found are those of the last decision that compared configurations.
	candidates []*pecanv1.PlacementCandidate
	found      string
}

// New returns a Placer without searches.
func New() *Placer { return &Placer{jobs: map[string]*search{}} }

// Decide decides from a window, or where to begin without one. known is what later jobs may begin from; nil before the
// search has ended.
func (p *Placer) Decide(r Request) (decided *pecanv1.Placement, known *pecanv1.PlacementKnown) {
	for id, s := range p.jobs {
		if r.Now-s.used > forgetAfter {
			delete(p.jobs, id)
		}
	}
	s := p.jobs[r.JobID]
	if s == nil {
		s = &search{policy: autoplacement.NewSearch()}
		s.policy.Known = knownOf(r.Known)
		switch predicted := predictedOf(r); {
		case r.Known != nil:
		case predicted != nil:
			s.policy.Known = &autoplacement.Known{Workers: *predicted}
		case r.Running > 1:
			s.policy.Known = &autoplacement.Known{Workers: autoscale.Configuration{Remote: 1, Local: r.Running}}
		}
		p.jobs[r.JobID] = s
	}
	s.used, s.policy.Predicted = r.Now, nil
	if s.stage != r.Predicted.Stage {
		s.stage, s.policy.Predicted = r.Predicted.Stage, predictedOf(r)
	}
	goal := Goal(r)
	if goal.Objective == autoscale.Budget && !goal.Priced() {
		return Unchanged(r, `objective "budget" needs prices of this trainer and of the workers: give the dispatcher --prices`), nil
	}
	if err := goal.Validate(); err != nil {
		return Unchanged(r, err.Error()), nil
	}
	s.seen = s.windowOf(r.Window, r.Plan)
	s.seen.Paused = s.seen.Gap && !lostReports(r.Window)
	s.policy.Horizon = horizon(r.Left, s.seen)
	d := s.policy.Next(goal, s.seen)
	if r.Window == nil {
		switch {
		case r.Known != nil:
			d.Reason = "the search begins with what an earlier job found"
		case predictedOf(r) != nil:
			d.Reason = "the search begins with the workers that the decision on a cache expects to need"
		case r.Running > 1:
			d.Reason = "the search begins with the local workers that the trainer runs"
		default:
			d.Reason = "the search begins with one worker of each kind"
		}
	}
	decided = message(d)
	switch {
	case len(decided.Candidates) > 0:
		s.candidates, s.found = decided.Candidates, decided.Why
	case d.Converged:
		// A window without a change says nothing new.
		decided.Candidates, decided.Why = s.candidates, s.found
		if why := s.seen.Unusable(); r.Window != nil && why != "" {
			decided.Why += "; the newest window is not usable: " + why
		}
	}
	return decided, keep(s.policy.Result())
}

// lostReports reports whether reports of a trainer are missing in a window.
func lostReports(w *measure.Window) bool {
	return slices.ContainsFunc(w.Trainers, func(t measure.Trainer) bool { return measure.Lost(t.Subs) })
}

// predictedOf returns the predicted workers; nil without a prediction.
func predictedOf(r Request) *autoscale.Configuration {
	workers := autoscale.Configuration{Remote: r.Predicted.Remote, Local: r.Predicted.Local}
	if workers == (autoscale.Configuration{}) {
		return nil
	}
	return &workers
}

// Unchanged keeps the workers that exist, because no decision is possible. A job has one at least.
func Unchanged(r Request, why string) *pecanv1.Placement {
	remote, local := min(r.Registered, r.Remote), min(r.RegisteredLocal, r.Local)
	if remote+local == 0 {
		remote = min(1, r.Remote)
		local = min(1-remote, r.Local)
	}
	return &pecanv1.Placement{Remote: uint32(remote), Local: uint32(local), State: "start", Why: why}
}

func message(d autoscale.Decision) *pecanv1.Placement {
	m := &pecanv1.Placement{
		Remote: uint32(d.Target.Remote), Local: uint32(d.Target.Local), State: d.State, Converged: d.Converged, Why: d.Reason, SearchCost: d.SearchCost,
		SearchWindows: uint32(d.SearchWindows), SearchLostS: d.SearchLost, SearchBill: d.SearchBill,
	}
	for _, c := range d.Candidates[:min(len(d.Candidates), maxCandidates)] {
		m.Candidates = append(m.Candidates, &pecanv1.PlacementCandidate{
			Remote: uint32(c.Workers.Remote), Local: uint32(c.Workers.Local), PredictedS: c.Predicted, MeasuredS: c.Measured, Windows: uint32(c.Windows), Score: c.Score,
		})
	}
	return m
}

// keep returns a result as it is stored, without its key.
func keep(k *autoplacement.Known) *pecanv1.PlacementKnown {
	if k == nil {
		return nil
	}
	curve := func(c autoplacement.Curve) *pecanv1.PlacementCurve {
		return &pecanv1.PlacementCurve{Rate: c.Rate, Exponent: c.Exponent, Limit: c.Limit}
	}
	return &pecanv1.PlacementKnown{
		Remote: uint32(k.Workers.Remote), Local: uint32(k.Workers.Local), RemoteCurve: curve(k.Remote), LocalCurve: curve(k.Local),
		Load: &pecanv1.PlacementLoad{Base: k.Load.Base, PerLocal: k.Load.PerLocal, PerRemote: k.Load.PerRemote, Slowdown: k.Load.Slowdown},
	}
}

func knownOf(m *pecanv1.PlacementKnown) *autoplacement.Known {
	if m == nil {
		return nil
	}
	curve := func(c *pecanv1.PlacementCurve) autoplacement.Curve {
		return autoplacement.Curve{Rate: c.GetRate(), Exponent: c.GetExponent(), Limit: c.GetLimit()}
	}
	l := m.GetLoad()
	return &autoplacement.Known{
		Workers: autoscale.Configuration{Remote: int(m.Remote), Local: int(m.Local)}, Remote: curve(m.RemoteCurve), Local: curve(m.LocalCurve),
		Load: autoplacement.Load{Base: l.GetBase(), PerLocal: l.GetPerLocal(), PerRemote: l.GetPerRemote(), Slowdown: l.GetSlowdown()},
	}
}
