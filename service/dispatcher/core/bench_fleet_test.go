package core_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/dispatcher/core/placement"
	"github.com/pecan-ml/pecan/service/dispatcher/core/schedule"
)

// BenchmarkFleet plays 10,000 workers of 4 slots and 1,000 jobs of 80 streams, of 20 tenants and with weights. Half of the
// jobs have an objective. In the last case, 100 more workers are local ones of other trainers, so they stay idle. One
// operation is one second: 10,000 heartbeats of workers, 1,000 of trainers, and 10 ticks. About 2,000 streams end and others
// start. Epochs are prefetched, adopted and closed, and workers are decided on. The metrics are the median, the 99th
// percentile and the greatest of the CPU times of single decisions in ms. Each kind has its 99th percentile. Garbage
// collection in the background is left out. Two more are the share of one core that heartbeats take, and the memory.
// With -v, the number, the median and the greatest of each kind.
func BenchmarkFleet(b *testing.B) {
	for _, c := range []struct{ workers, jobs, local int }{{1000, 100, 0}, {10_000, 1000, 0}, {10_000, 1000, 100}} {
		name := fmt.Sprintf("%d_workers_%d_jobs", c.workers, c.jobs)
		if c.local > 0 {
			name += fmt.Sprintf("_%d_local", c.local)
		}
		b.Run(name, func(b *testing.B) { benchmarkFleet(b, c.workers, c.jobs, c.local) })
	}
}

const (
	fleetSlots   = 4
	fleetStreams = 80
	fleetLength  = 10 * time.Second
)

// threadTime is the CPU time of this thread, which other processes do not change.
func threadTime(b testing.TB) time.Duration {
	var at unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &at); err != nil {
		b.Fatal(err)
	}
	return time.Duration(at.Nano())
}

type fleetRun struct {
	start *pecanv1.StartStream
	ends  time.Duration
}

type fleetJob struct {
	client, job string
	heartbeats  uint64
	subs        uint64
	elements    uint64
	epoch       uint64
	// ahead is set if the next epoch is open.
	ahead bool
	// left are the streams of the epoch that are not delivered.
	left int
}

type largeFleet struct {
	b     testing.TB
	core  *core.Core
	rng   *rand.Rand
	now   time.Duration
	jobs  []*fleetJob
	byID  map[string]*fleetJob
	runs  []map[pecanv1.StreamKey]fleetRun
	asked []placement.Request
	// windows counts the measurement windows that the core asked about.
	windows int
	watches core.WatchID
	took    map[string][]time.Duration
}

func benchmarkFleet(b *testing.B, workers, jobs, local int) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f := newFleet(b, workers, jobs)
	for i := range local {
		f.runs = append(f.runs, map[pecanv1.StreamKey]fleetRun{})
		f.helloAs(workers+i, "local")
	}
	for range 12 {
		f.second()
	}
	clear(f.took)
	for b.Loop() {
		f.second()
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	ms := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }
	var all, heartbeats []time.Duration
	for kind, took := range f.took {
		all = append(all, took...)
		if kind == "heartbeat" {
			heartbeats = took
		}
		slices.Sort(took)
		b.ReportMetric(ms(took[len(took)*99/100]), "p99-ms/"+kind)
		if testing.Verbose() {
			b.Logf("%-10s %8d decisions: median %v, 99th percentile %v, most %v", kind, len(took), took[len(took)/2], took[len(took)*99/100], took[len(took)-1])
		}
	}
	slices.Sort(all)
	sum := time.Duration(0)
	for _, one := range heartbeats {
		sum += one
	}
	b.ReportMetric(ms(all[len(all)/2]), "cpu-ms/p50")
	b.ReportMetric(ms(all[len(all)*99/100]), "cpu-ms/p99")
	b.ReportMetric(ms(all[len(all)-1]), "cpu-ms/most")
	b.ReportMetric(float64(len(all))/float64(b.N), "decisions/s")
	b.ReportMetric(sum.Seconds()/float64(b.N), "cores/heartbeats")
	b.ReportMetric(float64(after.HeapAlloc-min(before.HeapAlloc, after.HeapAlloc))/1e6, "MB")
	runtime.KeepAlive(f)
}

func newFleet(b testing.TB, workers, jobs int) *largeFleet {
	cfg := core.DefaultConfig()
	cfg.Tenants = map[string]schedule.Tenant{}
	for i := range 20 {
		cfg.Tenants[fmt.Sprint("t", i)] = schedule.Tenant{Weight: float64(1 + i%4), MaxSlots: workers * fleetSlots / 4}
	}
	f := &largeFleet{
		b: b, core: core.New(cfg, durable.NewState()), rng: rand.New(rand.NewPCG(1, 1)), now: time.Second, byID: map[string]*fleetJob{},
		took: map[string][]time.Duration{},
	}
	f.decide("other", core.Start{ClusterID: "c"})
	f.decide("other", core.AddDataset{DerivedIDs: []string{"f"}, Fingerprint: "f", Spec: &pecanv1.DatasetSpec{}})
	for i := range workers {
		f.runs = append(f.runs, map[pecanv1.StreamKey]fleetRun{})
		f.hello(i)
	}
	plan := &pecanv1.Plan{NumStreams: fleetStreams, Determinism: pecanv1.DeterminismClass_DETERMINISM_CLASS_B, Resume: &pecanv1.Resume{Strategy: pecanv1.Resume_SEEK}, Cardinality: -2}
	for i := range jobs {
		j := &fleetJob{client: fmt.Sprintf("%032d", i), job: fmt.Sprintf("j%032d", i)}
		f.jobs, f.byID[j.job] = append(f.jobs, j), j
		options := &pecanv1.JobOptions{Mode: pecanv1.Mode_MODE_EXACTLY_ONCE, Sharding: pecanv1.Sharding_SHARDING_DYNAMIC, Weight: float64(1 + i%3), Tenant: fmt.Sprint("t", i%20)}
		if i%2 == 0 {
			options.Placement = &pecanv1.PlacementOptions{Objective: "cost"}
		}
		f.decide("job", core.CreateJob{JobID: j.job, Plan: plan, Request: &pecanv1.CreateJobRequest{RequestId: "r", ClientId: j.client, DatasetId: "f", Options: options}})
		f.open(j, false)
	}
	return f
}

// hello registers a remote worker.
func (f *largeFleet) hello(w int) { f.helloAs(w, "remote") }

// helloAs registers a worker. A local one is alone on its host.
func (f *largeFleet) helloAs(w int, kind string) {
	id := fmt.Sprintf("%032d", w)
	f.decide("hello", core.Hello{Session: core.SessionID(w + 1), Message: &pecanv1.WorkerHello{
		Address:    &pecanv1.WorkerAddress{WorkerId: id, Tcp: fmt.Sprintf("10.0.%d.%d:40000", w/256, w%256), Unix: "@pecan-worker-" + id, HostId: id},
		MaxStreams: fleetSlots, Cores: fleetSlots, Kind: kind,
	}})
}

// decide times one decision and plays the peers that its effects reach.
func (f *largeFleet) decide(kind string, input any) {
	begun := threadTime(f.b)
	result := f.core.Decide(input, f.now)
	f.took[kind] = append(f.took[kind], threadTime(f.b)-begun)
	if result.Err != nil {
		f.b.Fatal(result.Err)
	}
	for _, effect := range result.Effects {
		switch e := effect.(type) {
		case placement.Request:
			f.asked = append(f.asked, e)
			if e.Window != nil {
				f.windows++
			}
		case core.Command:
			runs := f.runs[e.Session-1]
			if stops := e.Message.GetStopStreams(); stops != nil {
				streams, err := pecanv1.Numbers[uint32](stops.Streams)
				if err != nil {
					f.b.Fatal(err)
				}
				for _, stream := range streams {
					delete(runs, pecanv1.StreamKey{Job: stops.JobId, Epoch: stops.Epoch, Stream: stream})
				}
			}
			if starts := e.Message.GetStartStreams(); starts != nil {
				for _, start := range starts.Starts(nil) {
					runs[start.Id.Key()] = fleetRun{start, f.now + time.Duration(f.rng.ExpFloat64()*float64(fleetLength))}
				}
			}
		}
	}
}

func (f *largeFleet) open(j *fleetJob, ahead bool) {
	number := j.epoch
	if ahead {
		number++
	}
	f.decide("open", &pecanv1.OpenEpochRequest{RequestId: fmt.Sprint("o", number), ClientId: j.client, JobId: j.job, Prefetch: ahead, HeartbeatNumber: j.heartbeats})
	f.watches++
	f.decide("watch", core.Watch{ID: f.watches, Request: &pecanv1.WatchEpochRequest{ClientId: j.client, JobId: j.job, Epoch: number}})
	if j.ahead = ahead; !ahead {
		j.left = fleetStreams
	}
}

// second plays a second in ten steps. Each peer sends its heartbeat in one of them.
func (f *largeFleet) second() {
	for tenth := range 10 {
		f.now += 100 * time.Millisecond
		f.decide("tick", core.Tick{})
		for w := tenth; w < len(f.runs); w += 10 {
			f.workerHeartbeat(w)
		}
		for n := tenth; n < len(f.jobs); n += 10 {
			f.clientHeartbeat(f.jobs[n])
		}
		for w := range f.runs {
			f.endStreams(w)
		}
		asked := f.asked
		f.asked = nil
		for _, a := range asked {
			decided := &pecanv1.Placement{Remote: uint32(2 + f.rng.IntN(max(1, 2*len(f.runs)/len(f.jobs)))), State: "search", Why: "played"}
			f.decide("placed", placement.Placed{Number: a.Number, JobID: a.JobID, Placement: decided})
		}
	}
}

func (f *largeFleet) workerHeartbeat(w int) {
	heartbeat := &pecanv1.WorkerHeartbeat{UptimeS: f.now.Seconds(), ComputedS: f.now.Seconds() * 3, BlockedS: f.now.Seconds(), CpuS: f.now.Seconds() * 2}
	var loads []*pecanv1.WorkerHeartbeat_StreamLoad
	for key, run := range f.runs[w] {
		loads = append(loads, &pecanv1.WorkerHeartbeat_StreamLoad{Id: key.ID(), Lease: run.start.Lease, Opened: true, Produced: uint64(f.now.Seconds() * 10), Acked: uint64(f.now.Seconds() * 9)})
	}
	heartbeat.Streams = pecanv1.PackLoads(loads)
	f.decide("heartbeat", core.FromWorker{Session: core.SessionID(w + 1), Message: &pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Heartbeat{Heartbeat: heartbeat}}})
}

func (f *largeFleet) clientHeartbeat(j *fleetJob) {
	j.heartbeats++
	j.elements += 100
	heartbeat := &pecanv1.ClientHeartbeatRequest{ClientId: j.client, JobIds: []string{j.job}, Number: j.heartbeats, HostId: j.client}
	// A heartbeat repeats the sub-windows of earlier ones.
	j.subs += 2
	for n := j.subs - min(j.subs, 8) + 1; n <= j.subs; n++ {
		heartbeat.SubWindows = append(heartbeat.SubWindows, &pecanv1.SubWindow{Number: n, AgeS: 0.5 * float64(j.subs-n), Seconds: 0.5, Elements: 50, WaitedS: 0.1, Queue: 3})
	}
	heartbeat.Passes = append(heartbeat.Passes, &pecanv1.ClientHeartbeatRequest_Pass{JobId: j.job, Epoch: j.epoch, Elements: j.elements, Starved: f.rng.IntN(10) == 0})
	if j.ahead {
		heartbeat.Passes = append(heartbeat.Passes, &pecanv1.ClientHeartbeatRequest_Pass{JobId: j.job, Epoch: j.epoch + 1})
	}
	f.decide("heartbeat", heartbeat)
}

// endStreams ends the streams of a worker whose time is over. Their trainers have read them by then.
func (f *largeFleet) endStreams(w int) {
	var over []fleetRun
	for key, run := range f.runs[w] {
		if j := f.byID[key.Job]; run.ends <= f.now && key.Epoch == j.epoch {
			over = append(over, run)
		}
	}
	slices.SortFunc(over, func(a, b fleetRun) int { return int(int64(a.start.Lease) - int64(b.start.Lease)) })
	for _, run := range over {
		id, lease := run.start.Id, run.start.Lease
		if _, runs := f.runs[w][id.Key()]; !runs {
			continue
		}
		delete(f.runs[w], id.Key())
		session := core.SessionID(w + 1)
		f.decide("started", core.FromWorker{Session: session, Message: &pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Started{Started: &pecanv1.StreamStarted{Id: id, Lease: lease}}}})
		f.decide("ended", core.FromWorker{Session: session, Message: &pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Ended{Ended: &pecanv1.StreamEnded{Id: id, Lease: lease, Count: 100_000}}}})
		j := f.byID[id.JobId]
		f.decide("finish", &pecanv1.FinishStreamsRequest{ClientId: j.client, JobId: j.job, Epoch: id.Epoch, Streams: []*pecanv1.FinishedStream{{Stream: id.Stream, Lease: lease, Count: 100_000, Assignment: 1}}})
		switch j.left--; {
		case j.left == fleetStreams/20:
			f.open(j, true)
		case j.left == 0:
			f.decide("close", &pecanv1.CloseEpochRequest{ClientId: j.client, JobId: j.job, Epoch: j.epoch})
			j.epoch++
			j.ahead, j.left = false, fleetStreams
			f.decide("adopt", &pecanv1.AdoptEpochRequest{ClientId: j.client, JobId: j.job, Epoch: j.epoch})
		}
	}
}
