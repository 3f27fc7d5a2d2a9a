package core_test

import (
	"fmt"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
)

// BenchmarkEpoch opens an epoch, runs all of its streams and closes it. Workers report each start and end, and the trainer
// each end, in a message of its own, so that nothing but the core makes lists. One operation is one epoch.
func BenchmarkEpoch(b *testing.B) {
	for _, c := range []struct{ streams, workers int }{{16, 16}, {256, 16}, {1024, 16}, {2048, 16}, {16384, 1000}, {65536, 1000}} {
		b.Run(fmt.Sprintf("%d_streams_%d_workers", c.streams, c.workers), func(b *testing.B) { benchmarkEpochs(b, 1, c.streams, c.workers, 1) })
	}
}

// BenchmarkListedEpoch is BenchmarkEpoch with 32 ends in each message.
func BenchmarkListedEpoch(b *testing.B) {
	for _, streams := range []int{16384, 65536} {
		b.Run(fmt.Sprintf("%d_streams_1000_workers", streams), func(b *testing.B) { benchmarkEpochs(b, 1, streams, 1000, 32) })
	}
}

// BenchmarkEpochsOfJobs runs epochs of 100 jobs at the same time, with 1,000 streams each, over 1,000 workers of 8 slots. No
// job waits while a slot is free.
func BenchmarkEpochsOfJobs(b *testing.B) { benchmarkEpochs(b, 100, 1000, 1000, 1) }

// BenchmarkClosingEpoch is BenchmarkEpoch with a closing stream for each 16 streams. They keep rows back, or none.
func BenchmarkClosingEpoch(b *testing.B) {
	for _, rows := range []uint64{0, 1} {
		b.Run(fmt.Sprintf("16384_streams_1000_workers_%d_rows", rows), func(b *testing.B) {
			p := newFakes(b, 1, 1000, 8, &pecanv1.Plan{NumStreams: 16384, Group: 16, BatchStrategy: pecanv1.BatchStrategy_BATCH_STRATEGY_CLOSING}, pecanv1.Mode_MODE_EXACTLY_ONCE)
			p.rows = rows
			benchmarkFake(b, p, 16384, 1)
		})
	}
}

// BenchmarkLostWorkers lets workers of 8 slots leave during an epoch of 65,536 streams: half of them, or all, which return then.
// The other streams wait until the lost ones have workers again. One operation is all of that. The metric is the CPU time of
// one lost stream, from the return on.
func BenchmarkLostWorkers(b *testing.B) {
	const streams = 1 << 16
	for _, c := range []struct{ workers, lost int }{{1000, 500}, {1000, 1000}, {4000, 4000}} {
		b.Run(fmt.Sprintf("%d_of_%d", c.lost, c.workers), func(b *testing.B) {
			cpu := time.Duration(0)
			for b.Loop() {
				p := newFakes(b, 1, c.workers, 8, &pecanv1.Plan{NumStreams: streams}, pecanv1.Mode_MODE_EXACTLY_ONCE)
				p.open()
				for i := range c.lost {
					p.decide(core.FromWorker{Session: core.SessionID(i + 1), Message: &pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Goodbye{Goodbye: &pecanv1.WorkerGoodbye{}}}})
				}
				p.starts = slices.DeleteFunc(p.starts, func(s fakeStart) bool { return s.session <= core.SessionID(c.lost) })
				p.running, p.workers = len(p.starts), c.workers-c.lost
				before := cpuTime(b)
				if p.workers == 0 {
					p.workers = c.workers
					for i := range c.workers {
						p.hello(i)
					}
				}
				p.run(1, p.waiting()-1)
				cpu += cpuTime(b) - before
			}
			b.ReportMetric(float64(cpu.Microseconds())/float64(b.N*c.lost*8), "cpu-us/stream")
		})
	}
}

// An epoch of 65,536 streams opens, runs and closes without a message or a record of more than 1 MiB.
func TestNoMessageOfALargeEpochIsLarge(t *testing.T) {
	if testing.Short() {
		t.Skip("65,536 streams take seconds")
	}
	for name, c := range map[string]struct {
		mode    pecanv1.Mode
		workers int
		plan    *pecanv1.Plan
		rows    uint64
		// The most bytes for each stream, in the journal and in a snapshot.
		journal, snapshot float64
	}{
		"many workers":       {pecanv1.Mode_MODE_EXACTLY_ONCE, 1000, &pecanv1.Plan{Group: 16}, 0, 44, 12},
		"mode deterministic": {pecanv1.Mode_MODE_DETERMINISTIC, 2, &pecanv1.Plan{Group: 16, AllOpen: true}, 0, 44, 12},
		"closing streams":    {pecanv1.Mode_MODE_EXACTLY_ONCE, 1000, &pecanv1.Plan{Group: 16, BatchStrategy: pecanv1.BatchStrategy_BATCH_STRATEGY_CLOSING}, 1, 52, 12},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.plan.NumStreams = 1 << 16
			p := newFakes(t, 1, c.workers, 8, c.plan, c.mode)
			p.rows = c.rows
			p.epoch(32)
			journal, snapshot := float64(p.recordBytes)/(1<<16), float64(p.snapshot)/(1<<16)
			t.Logf("the largest has %d bytes; for each stream, the journal has %.3g and a snapshot %.3g", p.largest, journal, snapshot)
			if p.largest > 1<<20 {
				t.Errorf("a message or a record has %d bytes", p.largest)
			}
			if journal > c.journal || snapshot > c.snapshot {
				t.Errorf("a stream has %.3g bytes in the journal and %.3g in a snapshot, want at most %g and %g", journal, snapshot, c.journal, c.snapshot)
			}
			// Closing streams wait without a slot.
			if most := 8*c.workers + 16; p.most > most && !c.plan.HasClosing() {
				t.Errorf("%d streams run at the same time, want at most %d", p.most, most)
			}
		})
	}
}

// The memory of an epoch hardly depends on the number of its streams: those that are not open are bits.
func TestAStreamThatIsNotOpenNeedsFewBytesOfMemory(t *testing.T) {
	const streams = 1 << 16
	p := newFakes(t, 1, 2, 8, &pecanv1.Plan{NumStreams: streams, Group: 16}, pecanv1.Mode_MODE_EXACTLY_ONCE)
	heap := func() int {
		// A pool keeps what it has over one collection.
		runtime.GC()
		runtime.GC()
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return int(stats.HeapAlloc)
	}
	before := heap()
	p.open()
	opened := heap()
	p.run(512, streams*7/8)
	begun := heap()
	t.Logf("for each stream, %.3g bytes when the epoch is open, and %.3g when an eighth of it was read", float64(opened-before)/streams, float64(begun-before)/streams)
	if most := max(opened, begun) - before; most > 8*streams {
		t.Errorf("%d streams need %d bytes", streams, most)
	}
	runtime.KeepAlive(p)
}

// Many jobs share the slots. After each end, no job waits while a slot is free.
func TestNoJobWaitsWhileASlotIsFree(t *testing.T) {
	for name, c := range map[string]struct {
		plan *pecanv1.Plan
		mode pecanv1.Mode
	}{
		"in groups":                     {&pecanv1.Plan{NumStreams: 120, Group: 16}, pecanv1.Mode_MODE_EXACTLY_ONCE},
		"in groups, mode deterministic": {&pecanv1.Plan{NumStreams: 120, Group: 16, AllOpen: true}, pecanv1.Mode_MODE_DETERMINISTIC},
		"few streams in each job":       {&pecanv1.Plan{NumStreams: 12}, pecanv1.Mode_MODE_EXACTLY_ONCE},
	} {
		t.Run(name, func(t *testing.T) {
			p := newFakes(t, 20, 25, 4, c.plan, c.mode)
			p.epoch(1)
			p.epoch(7)
			if slots := 25 * 4; p.most < slots {
				t.Errorf("at most %d streams run on %d slots", p.most, slots)
			}
		})
	}
}

func benchmarkEpochs(b *testing.B, jobs, streams, workers, listed int) {
	benchmarkFake(b, newFakes(b, jobs, workers, 8, &pecanv1.Plan{NumStreams: int32(streams)}, pecanv1.Mode_MODE_EXACTLY_ONCE), streams, listed)
}

func benchmarkFake(b *testing.B, p *fakes, streams, listed int) {
	jobs := p.jobs
	before := cpuTime(b)
	for b.Loop() {
		p.epoch(listed)
	}
	cpu := cpuTime(b) - before
	n := float64(b.N) * float64(jobs*streams)
	b.ReportMetric(float64(cpu.Microseconds())/n, "cpu-us/stream")
	b.ReportMetric(float64(p.opening.Microseconds())/1e3/float64(b.N*jobs), "ms/open")
	b.ReportMetric(float64(p.recordBytes)/n, "journal-B/stream")
	b.ReportMetric(float64(p.updateBytes)/n, "update-B/stream")
	b.ReportMetric(float64(p.commandBytes)/n, "command-B/stream")
	b.ReportMetric(float64(p.largest)/1e3, "largest-kB")
	b.ReportMetric(float64(p.snapshot)/float64(jobs*streams), "snapshot-B/stream")
	if p.largest > 1<<20 {
		b.Errorf("a message or a record of %d bytes", p.largest)
	}
}

// cpuTime is the CPU time of this process, garbage collection and fake peers included.
func cpuTime(b *testing.B) time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// fakes is a core with fake workers and fake trainers.
type fakes struct {
	b           testing.TB
	core        *core.Core
	jobs, slots int
	workers     int
	number      uint64
	// rows are what each stream keeps back.
	rows    uint64
	running int
	// most is the highest number of streams that ran at the same time.
	most int
	// starts are the streams that workers run.
	starts []fakeStart
	// opening sums the time of the calls that open an epoch.
	opening time.Duration
	// The bytes of records, updates and commands, those of the largest one, and those of a snapshot in mid-epoch.
	recordBytes, updateBytes, commandBytes, largest, snapshot int
}

type fakeStart struct {
	session core.SessionID
	start   *pecanv1.StartStream
}

func playedClient(job int) string { return fmt.Sprintf("%032d", job) }

func playedJob(job int) string { return fmt.Sprintf("j%032d", job) }

func newFakes(b testing.TB, jobs, workers, slots int, plan *pecanv1.Plan, mode pecanv1.Mode) *fakes {
	plan.Determinism = pecanv1.DeterminismClass_DETERMINISM_CLASS_B
	p := &fakes{b: b, core: core.New(core.DefaultConfig(), durable.NewState()), jobs: jobs, workers: workers, slots: slots}
	p.decide(core.Start{ClusterID: "c"})
	p.decide(core.AddDataset{DerivedIDs: []string{"f"}, Fingerprint: "f", Spec: &pecanv1.DatasetSpec{}})
	for job := range jobs {
		p.decide(core.CreateJob{
			JobID: playedJob(job), Plan: plan,
			Request: &pecanv1.CreateJobRequest{
				RequestId: "r", ClientId: playedClient(job), DatasetId: "f", Options: &pecanv1.JobOptions{Mode: mode},
			},
		})
	}
	for i := range workers {
		p.hello(i)
	}
	p.recordBytes, p.commandBytes = 0, 0
	return p
}

// hello registers a worker.
func (p *fakes) hello(i int) {
	id := fmt.Sprintf("%032d", i)
	p.decide(core.Hello{Session: core.SessionID(i + 1), Message: &pecanv1.WorkerHello{
		Address: &pecanv1.WorkerAddress{WorkerId: id, Tcp: fmt.Sprintf("10.0.0.%d:40000", i), Unix: "@pecan-worker-" + id, HostId: id}, MaxStreams: int32(p.slots),
	}})
}

func (p *fakes) decide(input any) {
	result := p.core.Decide(input, time.Second)
	if result.Err != nil {
		p.b.Fatal(result.Err)
	}
	sum := func(total *int, message proto.Message) {
		n := proto.Size(message)
		*total += n
		p.largest = max(p.largest, n)
	}
	for _, record := range result.Records {
		sum(&p.recordBytes, record)
	}
	for _, effect := range result.Effects {
		switch e := effect.(type) {
		case core.Update:
			sum(&p.updateBytes, e.Message)
		case core.Command:
			sum(&p.commandBytes, e.Message)
			if starts := e.Message.GetStartStreams(); starts != nil {
				for _, start := range starts.Starts(nil) {
					p.starts = append(p.starts, fakeStart{e.Session, start})
					p.running++
					p.most = max(p.most, p.running)
				}
			}
		}
	}
}

// epoch plays one epoch of each job. A message has the ends of this many streams at most.
func (p *fakes) epoch(listed int) {
	p.open()
	p.run(listed, 0)
	for job := range p.jobs {
		p.decide(&pecanv1.CloseEpochRequest{ClientId: playedClient(job), JobId: playedJob(job), Epoch: p.number})
		if closed := p.core.State().Job(playedJob(job)).Closed; !closed[len(closed)-1].Delivered {
			p.b.Fatal("an epoch was not delivered")
		}
	}
	p.number++
}

// open opens an epoch of each job.
func (p *fakes) open() {
	for job := range p.jobs {
		begun := time.Now()
		p.decide(&pecanv1.OpenEpochRequest{RequestId: fmt.Sprint("o", p.number), ClientId: playedClient(job), JobId: playedJob(job)})
		p.decide(core.Watch{ID: core.WatchID(p.number*uint64(p.jobs) + uint64(job) + 1), Request: &pecanv1.WatchEpochRequest{
			ClientId: playedClient(job), JobId: playedJob(job), Epoch: p.number,
		}})
		p.opening += time.Since(begun)
	}
	data, err := p.core.State().Marshal()
	if err != nil {
		p.b.Fatal(err)
	}
	p.snapshot = max(p.snapshot, len(data))
}

// run plays the streams until at most this many have had no lease; 0: until all have ended.
func (p *fakes) run(listed int, left uint32) {
	for len(p.starts) > 0 {
		waiting := p.waiting()
		if left > 0 && waiting <= left {
			return
		}
		if p.running < p.workers*p.slots && waiting > 0 {
			p.b.Fatalf("%d streams run on %d slots while others wait", p.running, p.workers*p.slots)
		}
		finish := map[string]*pecanv1.FinishStreamsRequest{}
		for range min(listed, len(p.starts)) {
			next := p.starts[0]
			p.starts = p.starts[1:]
			p.running--
			id, lease := next.start.Id, next.start.Lease
			p.decide(core.FromWorker{Session: next.session, Message: &pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Started{Started: &pecanv1.StreamStarted{Id: id, Lease: lease}}}})
			p.decide(core.FromWorker{Session: next.session, Message: &pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Ended{Ended: &pecanv1.StreamEnded{Id: id, Lease: lease, Count: 32, RemainderRows: p.rows}}}})
			call := finish[id.JobId]
			if call == nil {
				call = &pecanv1.FinishStreamsRequest{ClientId: id.JobId[1:], JobId: id.JobId, Epoch: id.Epoch}
				finish[id.JobId] = call
			}
			call.Streams = append(call.Streams, &pecanv1.FinishedStream{Stream: id.Stream, Lease: lease, Count: 32, Assignment: 1})
		}
		for _, job := range sorted(finish) {
			p.decide(finish[job])
		}
	}
}

// waiting counts the streams that have had no lease.
func (p *fakes) waiting() (n uint32) {
	for _, job := range p.core.State().Jobs() {
		for _, epoch := range job.Epochs {
			n += epoch.FreshStreams()
		}
	}
	return n
}
