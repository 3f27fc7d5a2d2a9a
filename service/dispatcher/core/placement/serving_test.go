package placement

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/dispatcher/core/fleet"
	"github.com/pecan-ml/pecan/service/dispatcher/core/schedule"
)

// registry has placements over a state without searches.
type registry struct {
	*Placements
	t *testing.T
}

func newRegistry(t *testing.T) registry {
	state := durable.NewState()
	r := registry{t: t}
	r.Placements = New(noTime{}, state, schedule.New(nil, state, 0, nil), fleet.New(fleet.Limits{}), 0)
	return r
}

// noTime is the part of a Host that a registry needs.
type noTime struct{ Host }

func (noTime) Now() time.Duration { return 0 }

func (r registry) apply(kind any) {
	r.t.Helper()
	record := &pecanv1.Record{}
	switch kind := kind.(type) {
	case *pecanv1.ClientJoined:
		record.Kind = &pecanv1.Record_ClientJoined{ClientJoined: kind}
	case *pecanv1.ClientLeft:
		record.Kind = &pecanv1.Record_ClientLeft{ClientLeft: kind}
	case *pecanv1.JobCreated:
		record.Kind = &pecanv1.Record_JobCreated{JobCreated: kind}
	case *pecanv1.JobJoined:
		record.Kind = &pecanv1.Record_JobJoined{JobJoined: kind}
	case *pecanv1.JobLeft:
		record.Kind = &pecanv1.Record_JobLeft{JobLeft: kind}
	}
	if err := r.state.Apply(record); err != nil {
		r.t.Fatal(err)
	}
}

// join lets a client join a job, which it creates with these options if there is none.
func (r registry) join(clientID, jobID string, options *pecanv1.JobOptions, plan *pecanv1.Plan) {
	r.t.Helper()
	if r.state.Client(clientID) == nil {
		r.apply(&pecanv1.ClientJoined{ClientId: clientID})
		r.AddClient(clientID)
	}
	if r.state.Job(jobID) == nil {
		r.apply(&pecanv1.JobCreated{JobId: jobID, Name: jobID, Options: options, Plan: plan})
	}
	r.apply(&pecanv1.JobJoined{JobId: jobID, ClientId: clientID})
	r.ClientsChanged(r.state.Job(jobID))
}

// drop lets a client leave all its jobs.
func (r registry) drop(clientID string) {
	r.t.Helper()
	if r.state.Client(clientID) == nil {
		return
	}
	for _, job := range r.state.Jobs() {
		if slices.Contains(job.ClientIds, clientID) {
			r.apply(&pecanv1.JobLeft{JobId: job.JobId, ClientId: clientID})
			r.ClientsChanged(job)
		}
	}
	r.apply(&pecanv1.ClientLeft{ClientId: clientID})
	r.RemoveClient(clientID)
}

// The index of local workers names those that a look at all workers names, whatever workers and trainers come, go and change.
func TestTheIndexOfLocalWorkersAgreesWithALookAtAll(t *testing.T) {
	compared := 0
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 0))
		r, order := newRegistry(t), uint64(0)
		where := func() (host, trainer string) {
			return []string{"", "h1", "h2"}[rng.IntN(3)], []string{"", "t1", "t2"}[rng.IntN(3)]
		}
		for range 200 {
			clientID, jobID, id := fmt.Sprint("c", rng.IntN(3)), fmt.Sprint("j", rng.IntN(4)), fmt.Sprint("w", rng.IntN(5))
			switch rng.IntN(7) {
			case 0:
				host, trainer := where()
				order++
				r.RemoveWorker(id)
				r.SetWorker(Worker{ID: id, Host: host, Trainer: trainer, Local: rng.IntN(2) == 0, Caches: rng.IntN(2) == 0, Usable: true, Order: order})
			case 1:
				r.RemoveWorker(id)
			case 2:
				options, plan := &pecanv1.JobOptions{}, &pecanv1.Plan{NumStreams: 2}
				if jobID == "j0" {
					options.TargetWorkers = pecanv1.TargetWorkers_TARGET_WORKERS_LOCAL
				}
				if jobID == "j1" {
					plan.Cache = &pecanv1.CachePlan{Node: "Take", Key: "k"}
				}
				r.join(clientID, jobID, options, plan)
			case 3, 4:
				if r.state.Client(clientID) != nil {
					host, trainer := where()
					r.Reported(&pecanv1.ClientHeartbeatRequest{ClientId: clientID, HostId: host, TrainerId: trainer})
				}
			case 5:
				if rng.IntN(3) == 0 {
					r.drop(clientID)
				}
			case 6:
				if known := r.workers[id]; known != nil {
					changed := *known
					changed.Usable = !changed.Usable
					r.SetWorker(changed)
				}
			}
			compared += r.compareWithAll(seed)
		}
	}
	if compared < 1000 {
		t.Errorf("%d local workers served a job", compared)
	}
}

// compareWithAll compares the index with a look at all workers, and returns how many workers the index named.
func (r registry) compareWithAll(seed uint64) (compared int) {
	var all []string
	for id := range r.workers {
		all = append(all, id)
	}
	r.sortByOrder(all)
	for _, job := range r.state.Jobs() {
		locals, only := r.Locals(job)
		var wantRemote, wantLocal []string
		for _, id := range all {
			worker := r.workers[id]
			named, want := locals[id] || !worker.Local && !only, r.Serves(id, job)
			if named != want {
				r.t.Fatalf("seed %d: worker %s of job %s: the index says %v, a look at it %v", seed, id, job.JobId, named, want)
			}
			switch {
			case !want || !worker.Usable:
			case worker.Local:
				wantLocal = append(wantLocal, id)
			default:
				wantRemote = append(wantRemote, id)
			}
		}
		if remote, local := r.fleetOf(job); !slices.Equal(remote, wantRemote) || !slices.Equal(local, wantLocal) {
			r.t.Fatalf("seed %d: the fleet of job %s is %v and %v, and a look at all workers gives %v and %v", seed, job.JobId, remote, local, wantRemote, wantLocal)
		}
		for id := range locals {
			if r.workers[id] == nil {
				r.t.Fatalf("seed %d: a lost worker serves job %s: %v", seed, job.JobId, locals)
			}
			compared++
		}
	}
	return compared
}

// What cannot change the local workers of a job costs it nothing: a remote worker that registers, and a trainer that joins
// another job.
func TestOtherJobsAndRemoteWorkersKeepTheLocalWorkersOfAJob(t *testing.T) {
	r := newRegistry(t)
	job := func(id string) {
		r.join("c"+id, id, &pecanv1.JobOptions{}, &pecanv1.Plan{NumStreams: 1})
		r.Reported(&pecanv1.ClientHeartbeatRequest{ClientId: "c" + id, HostId: "host of " + id})
	}
	job("j1")
	r.SetWorker(Worker{ID: "w1", Host: "host of j1", Local: true})
	has := func() int {
		workers, _ := r.Locals(r.state.Job("j1"))
		return len(workers)
	}
	known := func() bool { return r.locals["j1"].version == r.localVersion }
	if has() != 1 || !known() {
		t.Fatalf("%d local workers serve the job", has())
	}
	r.SetWorker(Worker{ID: "w2", Host: "host of j1"})
	job("j2")
	if !known() {
		t.Error("the local workers of a job are looked for again, and nothing has changed for it")
	}
	r.SetWorker(Worker{ID: "w3", Host: "host of j1", Local: true})
	if known() || has() != 2 {
		t.Errorf("%d local workers serve the job after a further one has come", has())
	}
}
