package schedule_test

import (
	"cmp"
	"container/heap"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/dispatcher/core/schedule"
)

// division is the rule of the scheduler, written without anything that is kept between two runs: it looks at all streams
// of all epochs and at all workers for each lease.
type division struct {
	t       *testing.T
	state   *durable.State
	workers []schedule.Worker
	granted []string
}

type workerLoad struct {
	running, held int
	prefetchJobs  map[string]bool
}

type epochDemand struct {
	epoch                *durable.Epoch
	waiting              []uint32
	running, held, order int
	prefetch, skipped    bool
}

func (d *division) load(id string) *workerLoad {
	l := &workerLoad{prefetchJobs: map[string]bool{}}
	for _, held := range d.state.Leases(id) {
		stream, job := held.Epoch.Find(held.Stream), held.Epoch.Job.JobId
		if durable.AllPrefetched(held.Epoch) && !stream.Delivered && !l.prefetchJobs[job] {
			l.prefetchJobs[job] = true
			continue
		}
		if schedule.Running(held.Epoch, stream) {
			l.running++
		}
		if !stream.Delivered {
			l.held++
		}
	}
	return l
}

func (d *division) demand(epoch *durable.Epoch, order int) *epochDemand {
	w := &epochDemand{epoch: epoch, prefetch: durable.AllPrefetched(epoch), order: order}
	for number := range epoch.Total() {
		stream := epoch.Stream(number)
		if stream.Worker == nil && !epoch.Settled(number) && schedule.Needed(epoch, stream) {
			w.waiting = append(w.waiting, number)
		}
		if stream.Worker != nil && schedule.Running(epoch, stream) {
			w.running++
		}
		if stream.Worker != nil && !stream.Delivered {
			w.held++
		}
	}
	return w
}

type epochQueue []*epochDemand

func (q epochQueue) Len() int { return len(q) }

func (q epochQueue) Less(i, j int) bool {
	if q[i].prefetch != q[j].prefetch {
		return q[j].prefetch
	}
	return cmp.Or(cmp.Compare(q[i].running, q[j].running), cmp.Compare(q[i].order, q[j].order)) < 0
}

func (q epochQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }

func (q *epochQueue) Push(x any) { *q = append(*q, x.(*epochDemand)) }

func (q *epochQueue) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}

func (d *division) run() {
	var wants []*epochDemand
	for _, job := range d.state.Jobs() {
		for _, epoch := range job.Epochs {
			if w := d.demand(epoch, len(wants)); len(w.waiting) > 0 {
				wants = append(wants, w)
			}
		}
	}
	for _, w := range wants {
		all := w.epoch.Job.Plan.AllOpen || w.epoch.Job.Options.Mode == pecanv1.Mode_MODE_DETERMINISTIC
		switch {
		case w.prefetch:
		case all:
			for len(w.waiting) > 0 && d.lease(w, false) {
			}
		case w.held == 0:
			d.lease(w, false)
		}
	}
	queue := epochQueue(slices.DeleteFunc(wants, func(w *epochDemand) bool { return len(w.waiting) == 0 }))
	heap.Init(&queue)
	for len(queue) > 0 {
		next := queue[0]
		if !d.lease(next, true) {
			next.skipped, next.waiting = true, nil
		}
		if len(next.waiting) == 0 {
			heap.Pop(&queue)
		} else {
			heap.Fix(&queue, 0)
		}
	}
}

func (d *division) lease(w *epochDemand, needRoom bool) bool {
	number := w.waiting[0]
	closing := w.epoch.Job.Plan.IsClosing(number)
	if closing && w.skipped {
		return false
	}
	id := d.pick(w, needRoom && !closing)
	if id == "" {
		return false
	}
	w.waiting = w.waiting[1:]
	grantTo(d.t, d.state, w.epoch, number, id)
	d.granted = append(d.granted, fmt.Sprintf("%s/%d/%d to %s", w.epoch.Job.JobId, w.epoch.Epoch, number, id))
	if schedule.Running(w.epoch, w.epoch.Find(number)) {
		w.running++
	}
	w.held++
	return true
}

func (d *division) pick(w *epochDemand, needRoom bool) string {
	best, bestRank := "", [4]int{}
	for _, worker := range d.workers {
		l := d.load(worker.ID)
		room := l.running < worker.MaxStreams && l.held < 4*worker.MaxStreams
		fits := !needRoom || room
		if w.prefetch {
			fits = room && l.running+len(l.prefetchJobs) < worker.MaxStreams && !l.prefetchJobs[w.epoch.Job.JobId]
		}
		if !worker.Usable || !fits {
			continue
		}
		rank := [4]int{0, l.running, l.held, int(worker.Order)}
		if w.prefetch {
			rank[0] = len(l.prefetchJobs)
		}
		if best == "" || slices.Compare(rank[:], bestRank[:]) < 0 {
			best, bestRank = worker.ID, rank
		}
	}
	return best
}

func grantTo(t *testing.T, state *durable.State, epoch *durable.Epoch, stream uint32, id string) {
	t.Helper()
	apply(t, state, &pecanv1.Record{Kind: &pecanv1.Record_LeaseGranted{LeaseGranted: &pecanv1.LeaseGranted{
		Id: streamID(epoch, stream), Lease: state.LastLease() + 1, Worker: &pecanv1.WorkerAddress{WorkerId: id},
	}}})
}

func streamID(epoch *durable.Epoch, stream uint32) *pecanv1.StreamId {
	return &pecanv1.StreamId{JobId: epoch.Job.JobId, Epoch: epoch.Epoch, Stream: stream}
}

func apply(t *testing.T, state *durable.State, record *pecanv1.Record) {
	t.Helper()
	if err := state.Apply(proto.CloneOf(record)); err != nil {
		t.Fatal(err)
	}
}

// host lets the scheduler grant leases, and reports every change to it.
type host struct {
	t        *testing.T
	state    *durable.State
	schedule *schedule.Scheduler
	granted  []string
}

func (h *host) Ready(*durable.Epoch) func(uint32) bool { return func(uint32) bool { return true } }

func (h *host) Avoid(*durable.Epoch, uint32) []string { return nil }

func (h *host) Excluded(*durable.Job) map[string]bool { return nil }

func (h *host) Grant(epoch *durable.Epoch, stream uint32, id string) {
	grantTo(h.t, h.state, epoch, stream, id)
	h.schedule.StreamChanged(epoch, stream)
	h.schedule.WorkerChanged(id)
	h.granted = append(h.granted, fmt.Sprintf("%s/%d/%d to %s", epoch.Job.JobId, epoch.Epoch, stream, id))
}

// The scheduler looks at what has changed, and grants the leases that a look at everything grants. No plan here has closing
// streams: the scheduler leases those at the end of a run.
func TestTheSchedulerGrantsWhatALookAtEverythingGrants(t *testing.T) {
	leases := 0
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 0))
		h := &host{t: t, state: durable.NewState()}
		h.schedule = schedule.New(h, h.state, 0)
		var workers []schedule.Worker
		for range 150 {
			change(t, h, &workers, rng)
			data, err := h.state.Marshal()
			if err != nil {
				t.Fatal(err)
			}
			before, err := durable.Restore(data)
			if err != nil {
				t.Fatal(err)
			}
			d := &division{t: t, state: before, workers: workers}
			d.run()
			h.granted = nil
			h.schedule.Run(false)
			leases += len(h.granted)
			if !slices.Equal(h.granted, d.granted) {
				t.Fatalf("seed %d: the scheduler grants\n%q\nand a look at everything\n%q", seed, h.granted, d.granted)
			}
		}
	}
	if leases < 1000 {
		t.Errorf("%d leases", leases)
	}
}

// change changes one thing: a worker, an epoch or a stream.
func change(t *testing.T, h *host, workers *[]schedule.Worker, rng *rand.Rand) {
	jobs := h.state.Jobs()
	switch n := rng.IntN(20); {
	case n < 2 && len(*workers) < 5:
		w := schedule.Worker{ID: fmt.Sprint("w", rng.Uint32()), Usable: true, MaxStreams: 1 + rng.IntN(3), Order: rng.Uint64() >> 40, Position: -1}
		*workers = append(*workers, w)
		h.schedule.SetWorker(w)
	case n < 3 && len(*workers) > 0:
		w := &(*workers)[rng.IntN(len(*workers))]
		w.Usable = !w.Usable
		h.schedule.SetWorker(*w)
	case n < 4 && len(*workers) > 0:
		i := rng.IntN(len(*workers))
		id := (*workers)[i].ID
		*workers = slices.Delete(*workers, i, i+1)
		h.schedule.RemoveWorker(id)
		for _, held := range h.state.Leases(id) {
			apply(t, h.state, &pecanv1.Record{Kind: &pecanv1.Record_LeaseLost{LeaseLost: &pecanv1.LeaseLost{
				Id: streamID(held.Epoch, held.Stream), Lease: held.Epoch.Find(held.Stream).Lease, Cause: pecanv1.LeaseLost_MOVED,
			}}})
			h.schedule.StreamChanged(held.Epoch, held.Stream)
		}
	case n < 6 && len(jobs) < 5:
		id, mode := fmt.Sprint("j", rng.Uint32()), pecanv1.Mode_MODE_EXACTLY_ONCE
		if rng.IntN(4) == 0 {
			mode = pecanv1.Mode_MODE_DETERMINISTIC
		}
		apply(t, h.state, &pecanv1.Record{Kind: &pecanv1.Record_ClientJoined{ClientJoined: &pecanv1.ClientJoined{ClientId: "c" + id}}})
		apply(t, h.state, &pecanv1.Record{Kind: &pecanv1.Record_JobCreated{JobCreated: &pecanv1.JobCreated{
			JobId: id, Options: &pecanv1.JobOptions{Mode: mode}, Plan: &pecanv1.Plan{NumStreams: []int32{1, 4, 9, 70}[rng.IntN(4)], AllOpen: rng.IntN(5) == 0},
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
