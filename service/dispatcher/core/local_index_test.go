package core

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
)

// The index of local workers names those that a look at all workers names, whatever workers and trainers come, go and change.
func TestTheIndexOfLocalWorkersAgreesWithALookAtAll(t *testing.T) {
	compared := 0
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 0))
		c, now := New(DefaultConfig(), durable.NewState()), time.Second
		c.Decide(Start{ClusterID: "c"}, now)
		c.Decide(AddDataset{DerivedIDs: []string{"f"}, Fingerprint: "f", Spec: &pecanv1.DatasetSpec{}}, now)
		place := func() (host, trainer string) {
			return []string{"", "h1", "h2"}[rng.IntN(3)], []string{"", "t1", "t2"}[rng.IntN(3)]
		}
		sessions, heartbeats := SessionID(0), uint64(0)
		for range 200 {
			now += time.Duration(rng.IntN(300)) * time.Millisecond
			var input any = Tick{}
			client, job := fmt.Sprint("c", rng.IntN(3)), fmt.Sprint("j", rng.IntN(4))
			switch rng.IntN(6) {
			case 0:
				host, trainer := place()
				sessions++
				id := fmt.Sprint("w", rng.IntN(5))
				input = Hello{Session: sessions, Message: &pecanv1.WorkerHello{
					Address: &pecanv1.WorkerAddress{WorkerId: id, Tcp: id + ":1", HostId: host}, MaxStreams: 2, TrainerId: trainer,
					Kind: []string{"local", "remote"}[rng.IntN(2)], Caches: rng.IntN(2) == 0,
				}}
			case 1:
				input = FromWorker{Session: SessionID(rng.IntN(int(sessions) + 1)), Message: &pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Goodbye{Goodbye: &pecanv1.WorkerGoodbye{}}}}
			case 2:
				options := &pecanv1.JobOptions{Mode: pecanv1.Mode_MODE_EXACTLY_ONCE}
				if job == "j0" {
					options.TargetWorkers = pecanv1.TargetWorkers_TARGET_WORKERS_LOCAL
				}
				plan := &pecanv1.Plan{NumStreams: 2}
				if job == "j1" {
					plan.Cache = &pecanv1.CachePlan{Node: "Take", Key: "k"}
				}
				heartbeats++
				input = CreateJob{JobID: job, Plan: plan, Request: &pecanv1.CreateJobRequest{
					RequestId: fmt.Sprint("r", heartbeats), ClientId: client, DatasetId: "f", JobName: job, Options: options,
				}}
			case 3, 4:
				heartbeats++
				host, trainer := place()
				input = &pecanv1.ClientHeartbeatRequest{ClientId: client, JobIds: []string{job}, Number: heartbeats, HostId: host, TrainerId: trainer}
			case 5:
				if rng.IntN(3) == 0 {
					input = &pecanv1.ClientGoodbyeRequest{ClientId: client}
				}
			}
			c.Decide(input, now)
			all := sortedKeys(c.workers)
			c.sortByOrder(all)
			for _, id := range all {
				// As a tick does: a silent worker is not usable.
				c.refreshWorker(id)
			}
			for _, job := range c.state.Jobs() {
				locals, only := c.localsOf(job)
				usable := map[string][]string{}
				for _, id := range all {
					worker := c.workers[id]
					named := locals[id] || worker.kind != "local" && !only
					want := c.serves(worker, job)
					if named != want {
						t.Fatalf("seed %d: worker %s of job %s: the index says %v, a look at it %v", seed, id, job.JobId, named, want)
					}
					if want && c.usable(worker) {
						usable[worker.kind] = append(usable[worker.kind], id)
					}
					if locals[id] {
						compared++
					}
				}
				if remote, local := c.fleetOf(job); !slices.Equal(remote, usable["remote"]) || !slices.Equal(local, usable["local"]) {
					t.Fatalf("seed %d: the fleet of job %s is %v and %v, and a look at all workers gives %v", seed, job.JobId, remote, local, usable)
				}
				if slices.ContainsFunc(sortedKeys(locals), func(id string) bool { return c.workers[id] == nil }) {
					t.Fatalf("seed %d: a lost worker serves job %s: %v", seed, job.JobId, locals)
				}
			}
		}
	}
	if compared < 1000 {
		t.Errorf("%d local workers served a job", compared)
	}
}

// What cannot change the local workers of a job costs it nothing: a remote worker that registers, and a trainer that joins
// another job.
func TestOtherJobsAndRemoteWorkersKeepTheLocalWorkersOfAJob(t *testing.T) {
	c, session := New(DefaultConfig(), durable.NewState()), SessionID(0)
	decide := func(input any) {
		t.Helper()
		if result := c.Decide(input, time.Second); result.Err != nil {
			t.Fatal(result.Err)
		}
	}
	hello := func(id, host, kind string) {
		session++
		decide(Hello{Session: session, Message: &pecanv1.WorkerHello{
			Address: &pecanv1.WorkerAddress{WorkerId: id, Tcp: id + ":1", HostId: host}, MaxStreams: 1, Kind: kind,
		}})
	}
	job := func(id string) {
		decide(CreateJob{JobID: id, Plan: &pecanv1.Plan{NumStreams: 1}, Request: &pecanv1.CreateJobRequest{
			RequestId: "r", ClientId: "c" + id, DatasetId: "f", Options: &pecanv1.JobOptions{Mode: pecanv1.Mode_MODE_EXACTLY_ONCE},
		}})
		decide(&pecanv1.ClientHeartbeatRequest{ClientId: "c" + id, JobIds: []string{id}, Number: 1, HostId: "host of " + id})
	}
	decide(Start{ClusterID: "c"})
	decide(AddDataset{DerivedIDs: []string{"f"}, Fingerprint: "f", Spec: &pecanv1.DatasetSpec{}})
	job("j1")
	hello("w1", "host of j1", "local")
	has := func() int {
		workers, _ := c.localsOf(c.state.Job("j1"))
		return len(workers)
	}
	known := func() bool { return c.locals["j1"].version == c.registered.localVersion }
	if has() != 1 || !known() {
		t.Fatalf("%d local workers serve the job", has())
	}
	hello("w2", "host of j1", "remote")
	job("j2")
	if !known() {
		t.Error("the local workers of a job are looked for again, and nothing has changed for it")
	}
	hello("w3", "host of j1", "local")
	if known() || has() != 2 {
		t.Errorf("%d local workers serve the job after a further one has come", has())
	}
}
