package schedule_test

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/dispatcher/core/schedule"
)

// division is the rule of the scheduler, without anything that is kept between two runs. For each lease it looks at all
// streams of all epochs and at all workers.
type division struct {
	t               *testing.T
	state           *durable.State
	workers         []schedule.Worker
	tenants         map[string]schedule.Tenant
	members, locals map[string]map[string]bool
	only            map[string]bool
	// last has the number of the last lease of each tenant, job and epoch.
	last    *lastLeases
	epochs  []*epochDemand
	granted []string
}

// lastLeases numbers leases, over all runs.
type lastLeases struct {
	n  float64
	of map[string]float64
}

func names(epoch *durable.Epoch) [3]string {
	return [3]string{"tenant " + epoch.Job.Options.EffectiveTenant(), epoch.Job.JobId, fmt.Sprint(epoch.Job.JobId, "/", epoch.Epoch)}
}

func (l *lastLeases) count(epoch *durable.Epoch) {
	l.n++
	for _, name := range names(epoch) {
		l.of[name] = l.n
	}
}

func (l *lastLeases) clone() *lastLeases { return &lastLeases{l.n, maps.Clone(l.of)} }

type workerLoad struct {
	running, held int
	prefetchJobs  map[string]bool
}

type epochDemand struct {
	epoch                *durable.Epoch
	waiting              []uint32
	running, held, order int
	// unread streams are produced and not delivered.
	unread            int
	prefetch, skipped bool
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
			if stream.Produced {
				w.unread++
			}
		}
	}
	return w
}

func (d *division) tenantOf(e *epochDemand) (string, schedule.Tenant) {
	name := e.epoch.Job.Options.EffectiveTenant()
	if tenant, known := d.tenants[name]; known {
		return name, tenant
	}
	return name, schedule.Tenant{Weight: 1}
}

// next returns the epoch whose turn is next; nil without one. Prefetched ones come after all others.
func (d *division) next(prefetch bool) (best *epochDemand) {
	var bestRank []any
	for _, e := range d.epochs {
		if e.skipped || len(e.waiting) == 0 || e.prefetch != prefetch {
			continue
		}
		name, tenant := d.tenantOf(e)
		ofTenant, ofJob, slotsOfTenant, slotsOfJob := 0, 0, 0, 0
		for _, other := range d.epochs {
			n := other.running
			if other.prefetch {
				n = 0
			}
			if theirs, _ := d.tenantOf(other); theirs == name {
				ofTenant += n
				slotsOfTenant += other.running
			}
			if other.epoch.Job == e.epoch.Job {
				ofJob += n
				slotsOfJob += other.running
			}
		}
		if tenant.MaxSlots > 0 && slotsOfTenant >= tenant.MaxSlots || tenant.MaxSlotsPerJob > 0 && slotsOfJob >= tenant.MaxSlotsPerJob {
			continue
		}
		last := names(e.epoch)
		rank := []any{
			float64(ofTenant) / tenant.Weight, d.last.of[last[0]], name,
			float64(ofJob) / e.epoch.Job.Options.EffectiveWeight(), d.last.of[last[1]], float64(e.epoch.Job.Sequence),
			float64(e.running), d.last.of[last[2]], float64(e.order),
		}
		if prefetch {
			rank = []any{float64(e.running), float64(e.order)}
		}
		if best == nil || slices.CompareFunc(rank, bestRank, compareAny) < 0 {
			best, bestRank = e, rank
		}
	}
	return best
}

func compareAny(a, b any) int {
	if name, isName := a.(string); isName {
		return cmp.Compare(name, b.(string))
	}
	return cmp.Compare(a.(float64), b.(float64))
}

func (d *division) run() {
	for _, job := range d.state.Jobs() {
		for _, epoch := range job.Epochs {
			d.epochs = append(d.epochs, d.demand(epoch, len(d.epochs)))
		}
	}
	for _, e := range d.epochs {
		all := e.epoch.Job.Plan.AllOpen || e.epoch.Job.Options.Mode == pecanv1.Mode_MODE_DETERMINISTIC
		switch {
		case e.prefetch || len(e.waiting) == 0:
		case all:
			for len(e.waiting) > 0 && d.lease(e, false) {
			}
		case e.held == 0:
			d.lease(e, false)
		}
	}
	for _, prefetch := range []bool{false, true} {
		for e := d.next(prefetch); e != nil; e = d.next(prefetch) {
			e.skipped = !d.lease(e, true)
		}
	}
}

func (d *division) lease(w *epochDemand, needRoom bool) bool {
	number := w.waiting[0]
	id := d.pick(w, needRoom)
	if id == "" {
		return false
	}
	w.waiting = w.waiting[1:]
	grantTo(d.t, d.state, w.epoch, number, id)
	d.last.count(w.epoch)
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
		slot := l.running < worker.MaxStreams
		room := slot && l.held < 4*worker.MaxStreams
		fits := !needRoom || room || slot && w.unread <= w.running+1
		if w.prefetch {
			fits = room && l.running+len(l.prefetchJobs) < worker.MaxStreams && !l.prefetchJobs[w.epoch.Job.JobId]
		}
		job := w.epoch.Job.JobId
		members, excluded := d.members[job], (worker.Local || d.only[job]) && !d.locals[job][worker.ID]
		if !worker.Usable || !fits || members != nil && !members[worker.ID] || excluded {
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
	last            *lastLeases
	granted         []string
}

func (h *host) Ready(*durable.Epoch) func(uint32) bool { return func(uint32) bool { return true } }

func (h *host) Later(*durable.Epoch) func(uint32) bool { return nil }

func (h *host) Avoid(*durable.Epoch, uint32) []string { return nil }

func (h *host) Unreachable(*durable.Epoch) map[string]bool { return nil }

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

// The scheduler looks at what has changed, and grants the leases that a look at everything grants. No plan here has closing
// streams: the scheduler leases those at the end of a run.
func TestTheSchedulerGrantsWhatALookAtEverythingGrants(t *testing.T) {
	leases := 0
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 0))
		h := &host{t: t, state: durable.NewState(), members: map[string]map[string]bool{}, locals: map[string]map[string]bool{}, only: map[string]bool{}, last: &lastLeases{of: map[string]float64{}}}
		tenants := map[string]schedule.Tenant{"a": {Weight: 2, MaxSlots: 4}, "b": {Weight: 0.5, MaxSlotsPerJob: 2}}
		h.schedule = schedule.New(h, h.state, 0, tenants)
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
			d := &division{t: t, state: before, workers: workers, tenants: tenants, members: h.members, locals: h.locals, only: h.only, last: h.last.clone()}
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
			JobId: id, Options: &pecanv1.JobOptions{Mode: mode, Weight: []float64{0, 1, 3, 0.25}[rng.IntN(4)], Tenant: []string{"", "a", "b", "c"}[rng.IntN(4)]}, Plan: &pecanv1.Plan{NumStreams: []int32{1, 4, 9, 70}[rng.IntN(4)], AllOpen: rng.IntN(5) == 0},
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
