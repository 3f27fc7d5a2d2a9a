package placement

import (
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/dispatcher/core/fleet"
	"github.com/pecan-ml/pecan/service/dispatcher/core/measure"
	"github.com/pecan-ml/pecan/service/dispatcher/core/schedule"
)

const (
	// period is the time between two looks at a job.
	period = 200 * time.Millisecond
	// settleTime is the time after a change of workers in which the buffers settle. windowTime is the least length of a
	// measurement window.
	settleTime = time.Second
	windowTime = 3 * time.Second
)

// Host is the core as placements see it.
type Host interface {
	// Now is the time of the decision.
	Now() time.Duration
	// TimeOfDay is the time of day of the decision, in seconds since 1970.
	TimeOfDay() int64
	// Emit applies a record and makes it part of the decision.
	Emit(record *pecanv1.Record)
	// Log writes an event.
	Log(text string, args ...any)
	// Ask asks the caller for a decision on a job, and returns the number of the request. The answer is Placed.
	Ask(job *durable.Job, request Request) (number uint64)
	// Move takes a stream from its worker if it can begin at any index elsewhere. It returns whether the stream ran.
	Move(job *durable.Job, epoch *durable.Epoch, stream *pecanv1.StoredStream, why string) (ran bool)
	// Touch notes that the workers of an epoch's streams may have changed.
	Touch(epoch *durable.Epoch)
}

type (
	// Request asks how many workers should serve a job. The answer is Placed.
	Request struct {
		Number  uint64
		JobID   string
		Options *pecanv1.PlacementOptions
		Known   *pecanv1.PlacementKnown
		// Remote is the number of remote workers that the job can have; Registered counts the existing ones. Local is the
		// number of local workers that exist or may be started; RegisteredLocal counts the existing ones.
		Remote, Registered, Local, RegisteredLocal int
		// Running is the number of local workers that the job's trainers run, of those that they may start.
		Running int
		// Window is nil before the first one.
		Window *measure.Window
		// Left is how many elements the job's trainers are expected to take from now on; 0 if that is unknown.
		Left float64
		// Plan changes with the division, the order of steps and the cache of the job.
		Plan uint64
		// Predicted is what the newest decision on a cache expects.
		Predicted measure.Predicted
		Now       time.Duration
	}
	// Placed answers the Request with the same number.
	Placed struct {
		Number    uint64
		JobID     string
		Placement *pecanv1.Placement
		// Known is what later jobs may begin from, without its key; nil before the search has ended.
		Known *pecanv1.PlacementKnown
	}
)

// Placements has the workers, the clients, and the searches of jobs with an objective.
type Placements struct {
	peers
	host     Host
	state    *durable.State
	schedule *schedule.Scheduler
	fleet    *fleet.Fleet
	// returnGrace is how long a search waits after a restart for trainers and workers that were there.
	returnGrace time.Duration
	searches    map[string]*search
	// candidates has the workers that searches choose from.
	candidates candidates
	// memberChanges counts the jobs whose workers changed in this step.
	memberChanges int
}

// New returns the placements over a state. returnGrace is how long workers and trainers may take to return after a restart.
func New(host Host, state *durable.State, scheduler *schedule.Scheduler, workers *fleet.Fleet, returnGrace time.Duration) *Placements {
	return &Placements{
		peers: newPeers(), host: host, state: state, schedule: scheduler, fleet: workers, returnGrace: returnGrace, searches: map[string]*search{},
	}
}

// search is the volatile state of a job's search for workers.
type search struct {
	// asked is the number of the open request; 0 without one.
	asked uint64
	// members serve the job, sorted. serves has the same workers; it is nil before the first decision.
	members []string
	serves  map[string]bool
	// leaving is set if streams of the job may still run on workers that no longer serve it.
	leaving bool
	// shares are the job's shares of the running streams of its members since the begin of the window. before is the mean
	// share in the second half of the window that ended then; 0 if members have changed since.
	shares []float64
	before float64
	// waits is set if streams of the job have waited for another job since the begin of the window.
	waits bool
	// wanted is how many local workers each trainer should run, if decides is true. startingSince is the last
	// time at which a wanted worker was not running.
	wanted        map[string]int
	decides       bool
	startingSince time.Duration
	// returnUntil bounds the wait for the trainers and workers that were there before a restart.
	returnUntil time.Duration
	// stable is when members last changed. from is the begin of the window. due is the time of the next look.
	stable, from, due time.Duration
	// last is the newest decision with its candidates.
	last *pecanv1.Placement
}

// placeable reports whether the job has an objective, and may run on any number of workers.
func placeable(job *durable.Job) bool {
	static := job.Options.GetSharding() != pecanv1.Sharding_SHARDING_DYNAMIC
	return job.Options.GetPlacement().GetObjective() != "" && job.Error == nil && !static && job.Options.GetMode() != pecanv1.Mode_MODE_OFF
}

// IsRead reports whether a trainer has an iterator over the job.
func IsRead(job *durable.Job) bool {
	return job.Error == nil && slices.ContainsFunc(job.Epochs, func(e *durable.Epoch) bool { return len(e.Passes) > 0 && !durable.AllPrefetched(e) })
}

// Step continues the searches that are due.
func (p *Placements) Step() {
	p.memberChanges = 0
	for _, job := range p.state.Jobs() {
		if job.Options.GetPlacement().GetObjective() == "" {
			continue
		}
		s := p.searches[job.JobId]
		if s != nil && p.host.Now() < s.due || !placeable(job) || !IsRead(job) {
			continue
		}
		if s == nil {
			s = &search{}
			if job.Placement != nil {
				s.returnUntil = p.host.Now() + p.returnGrace
			}
			p.searches[job.JobId] = s
		}
		s.due = p.host.Now() + period
		p.stepSearch(job, s)
	}
}

// stepSearch continues one search. It chooses members and wants local workers as decided. It measures a window after the
// last change of workers, and then asks for the next decision.
func (p *Placements) stepSearch(job *durable.Job, s *search) {
	remote, local := p.fleetOf(job)
	most, attainable := p.mayRun(job), len(remote)
	if !TargetsLocal(job) {
		attainable = p.fleet.Attainable(p.host.Now(), len(remote))
	}
	if attainable+len(local) == 0 {
		// A local worker is there before a remote one. Those that trainers started without a decision stay.
		wanted := max(1, int(job.Placement.GetLocal()))
		if job.Placement == nil {
			wanted = max(wanted, p.running(job))
		}
		p.wantLocal(job, s, wanted, nil, most)
		return
	}
	if job.Placement != nil {
		if len(remote)+len(local) == 0 || p.returns(job, s) {
			// Those that serve the job may come back.
			s.stable = p.host.Now()
		} else {
			moved := p.chooseMembers(job, s, remote, local)
			if p.leaveMembers(job, s) || moved {
				s.stable = p.host.Now()
			}
		}
		serving := 0
		for _, id := range local {
			if s.serves[id] {
				serving++
			}
		}
		p.wantLocal(job, s, max(serving, int(job.Placement.GetLocal())), local, most)
		if p.startsLocal(s, local) {
			s.stable = p.host.Now()
		}
	}
	if s.last == nil {
		if s.asked == 0 {
			p.ask(job, s, nil, attainable, len(remote), p.localLimit(local, most), len(local))
		}
		return
	}
	if len(remote) < int(job.Placement.GetRemote()) && p.fleet.Coming() {
		// A measurement before the wanted workers are there says nothing about them.
		s.stable = p.host.Now()
	}
	if from := s.stable + settleTime; s.from < from {
		s.from, s.shares, s.before, s.waits = from, nil, 0, false
	}
	if p.host.Now() >= s.from {
		s.addShare(p.shareOfMembers(job, s))
	}
	if s.asked != 0 || p.host.Now() < s.from+windowTime {
		return
	}
	if w := p.windowOf(job, s, local); w != nil {
		_, s.before = s.meanShares()
		s.from, s.shares, s.waits = p.host.Now(), nil, false
		p.ask(job, s, w, attainable, len(remote), p.localLimit(local, most), len(local))
	}
}

// returns reports whether trainers of a job, or workers that hold its streams, may still come back after a restart. Nobody
// knows before which workers should serve it.
func (p *Placements) returns(job *durable.Job, s *search) bool {
	if s.serves != nil || p.host.Now() >= s.returnUntil {
		return false
	}
	return !p.clientsKnown(job) || slices.ContainsFunc(job.Epochs, func(epoch *durable.Epoch) bool {
		return epoch.AnyActive(func(stream *pecanv1.StoredStream) bool {
			worker := p.workers[stream.Worker.GetWorkerId()]
			return worker != nil && worker.Unheard
		})
	})
}

func (p *Placements) ask(job *durable.Job, s *search, w *measure.Window, remote, registered, local, registeredLocal int) {
	known := p.state.KnownPlacement(p.keyOf(job))
	if s.last == nil && job.Placement != nil {
		// The search of an earlier process had come so far.
		known = proto.CloneOf(known)
		if known == nil {
			known = &pecanv1.PlacementKnown{}
		}
		known.Remote, known.Local = job.Placement.Remote, job.Placement.Local
	}
	s.asked = p.host.Ask(job, Request{
		JobID: job.JobId, Options: job.Options.GetPlacement(), Known: known, Remote: remote, Registered: registered, Local: local,
		RegisteredLocal: registeredLocal, Running: p.running(job), Window: w, Now: p.host.Now(),
	})
}

func (p *Placements) keyOf(job *durable.Job) durable.PlacementKey {
	return durable.PlacementKey{Fingerprint: p.state.Dataset(job.DatasetId).GetFingerprint(), TrainerType: job.Options.GetPlacement().GetTrainerType()}
}

// Placed takes a decision. A decision that changes the workers is recorded before it has an effect.
func (p *Placements) Placed(in Placed) {
	s, job := p.searches[in.JobID], p.state.Job(in.JobID)
	if s == nil || job == nil || s.asked != in.Number {
		return
	}
	s.asked = 0
	if in.Placement == nil {
		return
	}
	before := job.Placement
	s.last = in.Placement
	if d := in.Placement; before == nil || before.Remote != d.Remote || before.Local != d.Local || before.State != d.State {
		p.host.Emit(&pecanv1.Record{Kind: &pecanv1.Record_PlacementDecided{PlacementDecided: &pecanv1.PlacementDecided{JobId: job.JobId, Placement: d}}})
		p.host.Log("placement decided", "job", job.JobId, "remote", d.Remote, "local", d.Local, "state", d.State, "why", d.Why)
	}
	if in.Known == nil || !in.Placement.Converged {
		return
	}
	key := p.keyOf(job)
	known := proto.CloneOf(in.Known)
	known.Fingerprint, known.TrainerType, known.KeptS = key.Fingerprint, key.TrainerType, p.host.TimeOfDay()
	kept := p.state.KnownPlacement(key)
	if key.Fingerprint != "" && (kept == nil || kept.Remote != known.Remote || kept.Local != known.Local || before == nil || !before.Converged) {
		p.host.Emit(&pecanv1.Record{Kind: &pecanv1.Record_PlacementLearned{PlacementLearned: &pecanv1.PlacementLearned{Known: known}}})
	}
}

// Members returns the workers that were chosen for a job; nil if none were, and all serve it.
func (p *Placements) Members(job *durable.Job) map[string]bool {
	if job.Options.GetPlacement().GetObjective() == "" {
		return nil
	}
	if s := p.searches[job.JobId]; s != nil {
		return s.serves
	}
	return nil
}

// RemoveJob drops what is kept of a job.
func (p *Placements) RemoveJob(jobID string) {
	if s := p.searches[jobID]; s != nil {
		p.setMembers(s, nil)
		delete(p.searches, jobID)
	}
	delete(p.locals, jobID)
}
