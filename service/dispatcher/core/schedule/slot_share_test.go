package schedule_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/dispatcher/core/schedule"
)

// market plays jobs whose streams have random lengths, in steps of time.
type market struct {
	*host
	rng *rand.Rand
	// length draws the length of a stream of a job, in steps.
	length map[string]func() int
	ends   map[durable.Ref]int
	// paused has the jobs whose trainers take no elements.
	paused map[string]bool
	step   int
	// used counts the slots of each job over all steps.
	used map[string]int
}

func newMarket(t testing.TB, seed uint64, workers, slots int, tenants map[string]schedule.Tenant) *market {
	h := &host{t: t, state: durable.NewState(), members: map[string]map[string]bool{}}
	h.schedule = schedule.New(h, h.state, 0, tenants)
	for i := range workers {
		h.schedule.SetWorker(schedule.Worker{ID: fmt.Sprint("w", i), Usable: true, MaxStreams: slots, Order: uint64(i), Position: -1})
	}
	return &market{host: h, rng: rand.New(rand.NewPCG(seed, 0)), length: map[string]func() int{}, ends: map[durable.Ref]int{}, paused: map[string]bool{}, used: map[string]int{}}
}

// add adds a job with one epoch of very many streams.
func (m *market) add(id, tenant string, weight float64, length func() int) *durable.Job {
	m.t.Helper()
	return m.addPlan(id, tenant, weight, length, &pecanv1.Plan{NumStreams: 60_000})
}

// addPlan adds a job with one epoch.
func (m *market) addPlan(id, tenant string, weight float64, length func() int, plan *pecanv1.Plan) *durable.Job {
	m.t.Helper()
	m.length[id] = length
	apply(m.t, m.state, &pecanv1.Record{Kind: &pecanv1.Record_ClientJoined{ClientJoined: &pecanv1.ClientJoined{ClientId: "c" + id}}})
	apply(m.t, m.state, &pecanv1.Record{Kind: &pecanv1.Record_JobCreated{JobCreated: &pecanv1.JobCreated{
		JobId: id, Options: &pecanv1.JobOptions{Mode: pecanv1.Mode_MODE_EXACTLY_ONCE, Weight: weight, Tenant: tenant}, Plan: plan,
	}}})
	m.open(id)
	return m.state.Job(id)
}

// open opens a further epoch of a job.
func (m *market) open(id string) {
	job := m.state.Job(id)
	apply(m.t, m.state, &pecanv1.Record{Kind: &pecanv1.Record_EpochOpened{EpochOpened: &pecanv1.EpochOpened{JobId: id, Epoch: job.NextEpoch, Streams: durable.PlannedStreams(job)}}})
	epoch := job.Epochs[len(job.Epochs)-1]
	apply(m.t, m.state, &pecanv1.Record{Kind: &pecanv1.Record_EpochJoined{EpochJoined: &pecanv1.EpochJoined{JobId: id, Epoch: epoch.Epoch, ClientId: "c" + id}}})
	m.schedule.EpochChanged(epoch)
}

// run plays this many steps. A stream that ends is delivered at once, unless its trainer has paused.
func (m *market) run(steps int, look func()) {
	m.t.Helper()
	for range steps {
		m.step++
		for _, job := range m.state.Jobs() {
			for _, epoch := range job.Epochs {
				for _, stream := range epoch.Active() {
					ref := durable.Ref{Epoch: epoch, Stream: stream.Stream}
					if at, runs := m.ends[ref]; stream.Worker == nil || stream.Produced || runs && m.step < at {
						continue
					}
					delete(m.ends, ref)
					m.end(epoch, stream.Stream)
				}
			}
		}
		m.schedule.Run(false)
		for _, job := range m.state.Jobs() {
			m.used[job.JobId] += m.schedule.OfJob(job).Running
			for _, epoch := range job.Epochs {
				for _, stream := range epoch.Active() {
					ref := durable.Ref{Epoch: epoch, Stream: stream.Stream}
					if _, runs := m.ends[ref]; !runs && stream.Worker != nil && !stream.Produced {
						m.ends[ref] = m.step + max(1, m.length[job.JobId]())
					}
				}
			}
		}
		if look != nil {
			look()
		}
	}
}

// end ends a stream, which keeps a row back if a closing stream joins it. A trainer that has not paused has it at once.
func (m *market) end(epoch *durable.Epoch, number uint32) {
	m.t.Helper()
	stream := epoch.Find(number)
	id, worker, rows := streamID(epoch, number), stream.Worker.WorkerId, uint64(epoch.Job.Plan.Closings())
	apply(m.t, m.state, &pecanv1.Record{Kind: &pecanv1.Record_StreamProduced{StreamProduced: &pecanv1.StreamProduced{Id: id, Lease: stream.Lease, RemainderRows: min(rows, 1)}}})
	if !m.paused[epoch.Job.JobId] {
		apply(m.t, m.state, &pecanv1.Record{Kind: &pecanv1.Record_StreamsDelivered{StreamsDelivered: &pecanv1.StreamsDelivered{Opened: epoch.Opened, Streams: []int64{int64(number)}}}})
	}
	m.schedule.StreamChanged(epoch, number)
	m.schedule.WorkerChanged(worker)
}

// lengths draws lengths of streams from several distributions, with a mean up to 40 steps.
func lengths(rng *rand.Rand) func() int {
	mean := 1 + rng.IntN(40)
	switch rng.IntN(3) {
	case 0:
		return func() int { return mean }
	case 1:
		return func() int { return int(rng.ExpFloat64() * float64(mean)) }
	}
	return func() int { return mean * (1 + 9*rng.IntN(2)) / 5 }
}

func near(t *testing.T, what string, got, want, tolerance float64) {
	t.Helper()
	if math.Abs(got-want) > tolerance*want {
		t.Errorf("%s: %.3f, want %.3f", what, got, want)
	}
}

// Two jobs with the weights 1 and 3 get a quarter and three quarters of the slots, however long their streams are. A second
// iterator changes nothing.
func TestJobsGetTheSlotsOfTheirWeights(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		m := newMarket(t, seed, 4, 4, nil)
		one, three := m.add("one", "", 1, lengths(rng)), m.add("three", "", 3, lengths(rng))
		if seed%2 == 1 {
			m.open("one")
		}
		m.run(100, nil)
		clear(m.used)
		m.run(400, nil)
		near(t, fmt.Sprintf("seed %d, slots of the job of weight 3", seed), float64(m.used["three"])/400, 12, 0.03)
		near(t, fmt.Sprintf("seed %d, slots of the job of weight 1", seed), float64(m.used["one"])/400, 4, 0.03)
		if a, b := m.schedule.OfJob(one), m.schedule.OfJob(three); a.Running+b.Running != 16 {
			t.Errorf("seed %d: %d and %d of 16 slots are used", seed, a.Running, b.Running)
		}
	}
}

// Tenants share before jobs do: a tenant with many jobs gets no more than its weight.
func TestTenantsShareBeforeTheirJobs(t *testing.T) {
	m := newMarket(t, 1, 8, 4, map[string]schedule.Tenant{"large": {Weight: 1}, "small": {Weight: 1}})
	for i := range 10 {
		m.add(fmt.Sprint("large", i), "large", 1, func() int { return 1 + m.rng.IntN(9) })
	}
	m.add("small-1", "small", 1, func() int { return 1 + m.rng.IntN(9) })
	m.add("small-3", "small", 3, func() int { return 1 + m.rng.IntN(9) })
	m.run(50, nil)
	clear(m.used)
	m.run(200, nil)
	near(t, "slots of the job of weight 1", float64(m.used["small-1"])/200, 4, 0.05)
	near(t, "slots of the job of weight 3", float64(m.used["small-3"])/200, 12, 0.05)
	sum := 0
	for i := range 10 {
		sum += m.used[fmt.Sprint("large", i)]
		if mean := float64(m.used[fmt.Sprint("large", i)]) / 200; mean < 1 || mean > 2.1 {
			t.Errorf("job %d of the large tenant has %.2f slots", i, mean)
		}
	}
	near(t, "slots of the tenant with ten jobs", float64(sum)/200, 16, 0.03)
}

// A quota is never exceeded, and what it leaves goes to others. Each epoch that is read has one stream whatever the quota.
func TestQuotasAreNeverExceeded(t *testing.T) {
	for seed := range uint64(10) {
		rng := rand.New(rand.NewPCG(seed, 2))
		m := newMarket(t, seed, 4, 4, map[string]schedule.Tenant{"bounded": {Weight: 100, MaxSlots: 5, MaxSlotsPerJob: 3}, "free": {Weight: 1}})
		jobs := []*durable.Job{m.add("a", "bounded", 1, lengths(rng)), m.add("b", "bounded", 1, lengths(rng))}
		// A shuffle keeps its group open as far as the quotas allow it.
		jobs[1].Plan.Group, jobs[1].Plan.Shuffled = 16, true
		m.add("c", "free", 1, lengths(rng))
		m.run(300, func() {
			if n := m.schedule.OfTenant("bounded").Slots; n > 5 {
				t.Fatalf("seed %d: a tenant has %d of 5 slots", seed, n)
			}
			for _, job := range jobs {
				if n := m.schedule.OfJob(job).Slots; n > 3 || n == 0 {
					t.Fatalf("seed %d: a job has %d of 3 slots", seed, n)
				}
			}
			if n := m.schedule.OfTenant("free").Running; n != 11 {
				t.Fatalf("seed %d: the other tenant has %d of the 11 slots that are left", seed, n)
			}
		})
	}
}

// The only stream that a worker holds is a closing stream, which waits for a lost one. The lost stream runs again, although the
// other job of the tenant uses the quota.
func TestAShuffleHasAStreamWhateverTheQuota(t *testing.T) {
	m := newMarket(t, 1, 1, 8, map[string]schedule.Tenant{"bounded": {Weight: 1, MaxSlots: 2}})
	m.add("early", "bounded", 1, endless)
	m.run(1, nil)
	plan := &pecanv1.Plan{NumStreams: 8, Group: 4, Shuffled: true, BatchStrategy: pecanv1.BatchStrategy_BATCH_STRATEGY_CLOSING}
	epoch := m.addPlan("shuffles", "bounded", 1, endless, plan).Epochs[0]
	for stream := range uint32(4) {
		m.schedule.Run(false)
		m.end(epoch, stream)
	}
	m.schedule.Run(false)
	if epoch.Find(8).GetWorker() == nil {
		t.Fatal("the closing stream of the first group has no worker")
	}
	m.lose(epoch, 0)
	m.schedule.Run(false)
	if epoch.Find(0).Worker == nil {
		t.Error("the lost stream has no worker")
	}
}

// A job that comes last gets one stream at once. From then on, no job that has more than it gets a free slot. So it has its
// share when the jobs above theirs have ended as many streams as it lacks.
func TestALateJobGetsTheNextFreeSlots(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 3))
		m := newMarket(t, seed, 4, 4, nil)
		for i := range 3 {
			m.add(fmt.Sprint("early", i), "", 1, lengths(rng))
		}
		m.run(50, nil)
		late, begun := m.add("late", "", 1, func() int { return 1000 }), m.step
		for m.schedule.OfJob(late).Running < 4 {
			m.granted = nil
			m.run(1, func() {
				has := m.schedule.OfJob(late).Running
				if has == 0 || m.step > begun+900 {
					t.Fatalf("seed %d: after %d steps the late job has %d slots", seed, m.step-begun, has)
				}
				for _, job := range m.state.Jobs() {
					got := slices.ContainsFunc(m.granted, func(g string) bool { return strings.HasPrefix(g, job.JobId+"/") })
					if n := m.schedule.OfJob(job).Running; got && n > has+1 {
						t.Fatalf("seed %d: job %s got a slot and has %d, the late one %d", seed, job.JobId, n, has)
					}
				}
			})
		}
	}
}

// Trainers pause, one after another, and workers keep the streams that are produced for them. However many there are, a job
// whose trainer reads gets all free slots. The workers keep a bounded number of streams for each paused trainer.
func TestPausedTrainersKeepNoSlotFromOthers(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 5))
		workers, each, pauses := 1+rng.IntN(4), 1+rng.IntN(4), 1+rng.IntN(12)
		slots := workers * each
		m := newMarket(t, seed, workers, each, nil)
		for i := range pauses {
			id := fmt.Sprint("paused", i)
			m.paused[id] = rng.IntN(2) == 0
			m.add(id, "", 1, lengths(rng))
			m.run(20, nil)
			m.paused[id] = true
			m.run(400, nil)
			for _, epoch := range m.state.Job(id).Epochs {
				if n := schedule.RunningStreams(epoch); n > 0 {
					t.Errorf("seed %d: %d streams still run for trainer %d, which has paused", seed, n, i)
				}
			}
		}
		reads := m.add("reads", "", 1, lengths(rng))
		m.run(100, func() {
			if n := m.schedule.OfJob(reads).Running; n != slots {
				t.Fatalf("seed %d: a job has %d of %d slots, and %d other trainers have paused", seed, n, slots, pauses)
			}
		})
		held := 0
		for i := range workers {
			held += len(m.state.Leases(fmt.Sprint("w", i)))
		}
		if most := 4 * (pauses + 1) * slots; held > most {
			t.Errorf("seed %d: workers hold %d streams, want at most %d for %d jobs on %d slots", seed, held, most, pauses+1, slots)
		}
	}
}
