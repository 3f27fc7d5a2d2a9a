package schedule_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/dispatcher/core/schedule"
)

func grantTo(t testing.TB, state *durable.State, epoch *durable.Epoch, stream uint32, id string) {
	t.Helper()
	apply(t, state, &pecanv1.Record{Kind: &pecanv1.Record_LeaseGranted{LeaseGranted: &pecanv1.LeaseGranted{
		Id: streamID(epoch, stream), Lease: state.LastLease() + 1, Worker: &pecanv1.WorkerAddress{WorkerId: id},
	}}})
}

func streamID(epoch *durable.Epoch, stream uint32) *pecanv1.StreamId {
	return &pecanv1.StreamId{JobId: epoch.Job.JobId, Epoch: epoch.Epoch, Stream: stream}
}

func apply(t testing.TB, state *durable.State, record *pecanv1.Record) {
	t.Helper()
	if err := state.Apply(proto.CloneOf(record)); err != nil {
		t.Fatal(err)
	}
}

// host lets the scheduler grant leases, and reports every change to it.
type host struct {
	t        testing.TB
	state    *durable.State
	schedule *schedule.Scheduler
	// members, locals and only have the values of each job.
	members, locals map[string]map[string]bool
	only            map[string]bool
	// reach has the workers that each reader does not reach.
	reach   map[string]map[string]schedule.Reach
	last    *lastLeases
	granted []string
}

func (h *host) Ready(*durable.Epoch) func(uint32) bool { return func(uint32) bool { return true } }

func (h *host) Later(*durable.Epoch) func(uint32) bool { return nil }

func (h *host) Avoid(*durable.Epoch, uint32) []string { return nil }

func (h *host) Reach(epoch *durable.Epoch, stream uint32) map[string]schedule.Reach {
	return h.reach[epoch.Find(stream).GetConsumer()]
}

func (h *host) Members(job *durable.Job) map[string]bool { return h.members[job.JobId] }

func (h *host) Locals(job *durable.Job) (map[string]bool, bool) {
	return h.locals[job.JobId], h.only[job.JobId]
}

func (h *host) Grant(epoch *durable.Epoch, stream uint32, id string) {
	grantTo(h.t, h.state, epoch, stream, id)
	h.schedule.StreamChanged(epoch, stream)
	h.schedule.WorkerChanged(id)
	if h.last != nil {
		h.last.count(epoch)
	}
	h.granted = append(h.granted, fmt.Sprintf("%s/%d/%d to %s", epoch.Job.JobId, epoch.Epoch, stream, id))
}

// lose takes a stream from its worker.
func (h *host) lose(epoch *durable.Epoch, number uint32) {
	h.t.Helper()
	stream := epoch.Find(number)
	worker := stream.Worker.WorkerId
	apply(h.t, h.state, &pecanv1.Record{Kind: &pecanv1.Record_LeaseLost{LeaseLost: &pecanv1.LeaseLost{Id: streamID(epoch, number), Lease: stream.Lease, Cause: pecanv1.LeaseLost_MOVED}}})
	h.schedule.StreamChanged(epoch, number)
	h.schedule.WorkerChanged(worker)
}

// change changes one thing: a worker, an epoch or a stream.
func change(t *testing.T, h *host, workers *[]schedule.Worker, rng *rand.Rand) {
	jobs := h.state.Jobs()
	switch n := rng.IntN(20); {
	case n < 2 && len(*workers) < 5:
		w := schedule.Worker{ID: fmt.Sprint("w", rng.Uint32()), Usable: true, MaxStreams: 1 + rng.IntN(3), Order: rng.Uint64() >> 40, Position: -1, Local: rng.IntN(2) == 0}
		*workers = append(*workers, w)
		h.schedule.SetWorker(w)
	case n < 3 && len(*workers) > 0:
		w := &(*workers)[rng.IntN(len(*workers))]
		if rng.IntN(4) == 0 {
			w.Local = !w.Local
		} else {
			w.Usable = !w.Usable
		}
		h.schedule.SetWorker(*w)
	case n < 4 && len(*workers) > 0:
		i := rng.IntN(len(*workers))
		id := (*workers)[i].ID
		*workers = slices.Delete(*workers, i, i+1)
		h.schedule.RemoveWorker(id)
		for _, held := range h.state.Leases(id) {
			h.lose(held.Epoch, held.Stream)
		}
	case n < 6 && len(jobs) < 5:
		id, mode := fmt.Sprint("j", rng.Uint32()), pecanv1.Mode_MODE_EXACTLY_ONCE
		if rng.IntN(4) == 0 {
			mode = pecanv1.Mode_MODE_DETERMINISTIC
		}
		plan := &pecanv1.Plan{NumStreams: []int32{1, 4, 9, 70}[rng.IntN(4)], AllOpen: rng.IntN(5) == 0}
		tenant := []string{"", "a", "b", "c"}[rng.IntN(4)]
		// A quota that gets free opens further streams of a shuffle only when its epoch changes.
		plan.Group, plan.Shuffled = []int32{0, 0, 3, 16}[rng.IntN(4)], rng.IntN(2) == 0 && tenant != "a" && tenant != "b"
		if rng.IntN(3) == 0 {
			plan.BatchStrategy = pecanv1.BatchStrategy_BATCH_STRATEGY_CLOSING
		}
		apply(t, h.state, &pecanv1.Record{Kind: &pecanv1.Record_ClientJoined{ClientJoined: &pecanv1.ClientJoined{ClientId: "c" + id}}})
		apply(t, h.state, &pecanv1.Record{Kind: &pecanv1.Record_JobCreated{JobCreated: &pecanv1.JobCreated{
			JobId: id, Options: &pecanv1.JobOptions{Mode: mode, Weight: []float64{0, 1, 3, 0.25}[rng.IntN(4)], Tenant: tenant}, Plan: plan,
		}}})
	case n < 8 && len(jobs) > 0:
		job := jobs[rng.IntN(len(jobs))]
		if len(job.Epochs) > 1 {
			return
		}
		apply(t, h.state, &pecanv1.Record{Kind: &pecanv1.Record_EpochOpened{EpochOpened: &pecanv1.EpochOpened{JobId: job.JobId, Epoch: job.NextEpoch, Streams: durable.PlannedStreams(job)}}})
		epoch := job.Epochs[len(job.Epochs)-1]
		apply(t, h.state, &pecanv1.Record{Kind: &pecanv1.Record_EpochJoined{EpochJoined: &pecanv1.EpochJoined{JobId: job.JobId, Epoch: epoch.Epoch, ClientId: "c" + job.JobId, Prefetch: rng.IntN(3) == 0}}})
		h.schedule.EpochChanged(epoch)
	case n < 9 && len(jobs) > 0:
		job := jobs[rng.IntN(len(jobs))]
		for _, epoch := range job.Epochs {
			apply(t, h.state, &pecanv1.Record{Kind: &pecanv1.Record_EpochAdopted{EpochAdopted: &pecanv1.EpochAdopted{JobId: job.JobId, Epoch: epoch.Epoch, ClientId: "c" + job.JobId}}})
			h.schedule.EpochChanged(epoch)
		}
	case n < 10 && len(jobs) > 0 && len(*workers) > 0:
		job := jobs[rng.IntN(len(jobs))]
		if h.members[job.JobId] = nil; rng.IntN(3) > 0 {
			h.members[job.JobId] = map[string]bool{(*workers)[rng.IntN(len(*workers))].ID: true, (*workers)[rng.IntN(len(*workers))].ID: true}
		}
		h.locals[job.JobId], h.only[job.JobId] = map[string]bool{}, rng.IntN(4) == 0
		for _, worker := range *workers {
			if (worker.Local || h.only[job.JobId]) && rng.IntN(4) > 0 {
				h.locals[job.JobId][worker.ID] = true
			}
		}
		for _, epoch := range job.Epochs {
			h.schedule.EpochChanged(epoch)
		}
	default:
		for _, w := range *workers {
			for _, held := range h.state.Leases(w.ID) {
				stream, id := held.Epoch.Find(held.Stream), streamID(held.Epoch, held.Stream)
				switch {
				case rng.IntN(3) > 0:
					continue
				case !stream.Produced:
					apply(t, h.state, &pecanv1.Record{Kind: &pecanv1.Record_StreamProduced{StreamProduced: &pecanv1.StreamProduced{Id: id, Lease: stream.Lease}}})
				case !stream.Delivered:
					apply(t, h.state, &pecanv1.Record{Kind: &pecanv1.Record_StreamsDelivered{StreamsDelivered: &pecanv1.StreamsDelivered{Opened: held.Epoch.Opened, Streams: []int64{int64(held.Stream)}}}})
				}
				h.schedule.StreamChanged(held.Epoch, held.Stream)
				h.schedule.WorkerChanged(w.ID)
			}
		}
	}
}
