package dispatcher_test

import (
	"strings"
	"testing"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/dispatcher"
)

// advance moves the clock in steps that no timeout mistakes for a pause, and waits for the ticks.
func (s *service) advance(by time.Duration, alive ...*worker) {
	s.t.Helper()
	for ; by > 0; by -= 500 * time.Millisecond {
		s.clock.Advance(500 * time.Millisecond)
		for _, w := range alive {
			w.heartbeat()
		}
		s.heardFrom(alive)
	}
}

// heardFrom waits until the dispatcher has received the heartbeats of these workers. They travel on their own
// streams, and time must not continue before they have arrived.
func (s *service) heardFrom(alive []*worker) {
	s.t.Helper()
	for returned := false; !returned; {
		status, err := s.client.Status(s.ctx(), &pecanv1.StatusRequest{})
		if err != nil {
			s.t.Fatal(err)
		}
		age := map[string]float64{}
		for _, w := range status.GetWorkers() {
			age[w.GetAddress().GetWorkerId()] = w.GetLastHeartbeatS()
		}
		returned = true
		for _, w := range alive {
			returned = returned && age[w.id] == 0
		}
	}
}

// A worker has no timeouts of its own. It gets those of the dispatcher's configuration.
func TestTheWelcomeHasTheConfiguredTimes(t *testing.T) {
	c := dispatcher.DefaultConfig().Core
	c.Heartbeat, c.LeaseTTL = 700*time.Millisecond, 42*time.Minute
	s := startService(t, serviceOptions{change: func(config *dispatcher.Config) { config.Core = c }})
	welcome := s.worker(workerHello("w1", 1)).welcome
	if welcome.HeartbeatS != c.Heartbeat.Seconds() || welcome.LeaseTtlS != c.LeaseTTL.Seconds() {
		t.Fatalf("%v", welcome)
	}
}

// Metrics of nodes survive the lease, the run, the stream and the epoch that produced them.
func TestMetricsOfNodesOutliveTheirLeases(t *testing.T) {
	s := startService(t, serviceOptions{})
	job := s.begun(2)
	nodes := func(elements uint64) []*pecanv1.NodeMetrics {
		return []*pecanv1.NodeMetrics{{Node: "map", Op: "MapDataset", Elements: elements, SelfCpuS: float64(elements) / 4, BytesIn: 2 * elements, BytesOut: 3 * elements}}
	}
	report := func(w *worker, generation, sequence, elements uint64) {
		w.send(&pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Metrics{Metrics: &pecanv1.JobMetrics{
			JobId: job.JobId, Generation: generation, Sequence: sequence, Nodes: nodes(elements),
		}}})
	}
	sum := uint64(0)
	shows := func(what string, more uint64) {
		t.Helper()
		sum += more
		var last []*pecanv1.NodeMetrics
		for deadline := time.Now().Add(wait); time.Now().Before(deadline); {
			status, err := s.client.Status(s.ctx(), &pecanv1.StatusRequest{})
			if err != nil {
				t.Fatal(err)
			}
			last = status.Jobs[0].Nodes
			if len(last) == 1 && last[0].Elements == sum && last[0].SelfCpuS == float64(sum)/4 && last[0].BytesIn == 2*sum && last[0].BytesOut == 3*sum && last[0].Op == "MapDataset" {
				return
			}
		}
		t.Fatalf("%s: %v, want %d elements", what, last, sum)
	}
	first := s.worker(workerHello("w1", 4))
	first.start()
	first.start()
	report(first, 1, 1, 4)
	shows("totals", 4)
	report(first, 1, 2, 8)
	shows("later ones", 4)
	report(first, 1, 1, 4)
	report(first, 1, 2, 8)
	report(first, 2, 1, 2)
	shows("new totals, after doubled and late ones", 2)
	report(first, 1, 3, 16)
	report(first, 2, 2, 4)
	shows("totals after some of another generation", 2)
	// Both streams go to another worker.
	first.send(&pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Goodbye{Goodbye: &pecanv1.WorkerGoodbye{}}})
	second := s.worker(workerHello("w2", 4))
	one, two := second.start(), second.start()
	shows("another lease", 0)
	report(second, 1, 1, 1)
	shows("totals of another worker", 1)
	for _, start := range []*pecanv1.StartStream{one, two} {
		second.ended(start, 5, 0)
		if err := s.finish(s.ctx(), "c1", start.Id, start.Lease, 5); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.client.CloseEpoch(s.ctx(), &pecanv1.CloseEpochRequest{ClientId: "c1", JobId: job.JobId, Epoch: 0}); err != nil {
		t.Fatal(err)
	}
	shows("the epoch's end", 0)
	report(second, 1, 2, 10)
	shows("totals that come after it", 9)
	// A worker that counted as lost continues.
	first = s.worker(workerHello("w1", 4))
	report(first, 2, 2, 4)
	report(first, 2, 3, 6)
	shows("totals of a worker that came back", 2)
}

func TestASilentWorkersStreamsMove(t *testing.T) {
	s := startService(t, serviceOptions{})
	job := s.begun(1)
	silent := s.worker(workerHello("w1", 1))
	first := silent.start()
	watch := s.watch("c1", job.JobId, 0)
	watch.until("with the stream leased", ready)
	other := s.worker(workerHello("w2", 1))
	s.advance(12*time.Second, other)
	second := other.start()
	if second.Lease <= first.Lease {
		t.Fatalf("lease %d after %d", second.Lease, first.Lease)
	}
	update := watch.until("with the new lease", func(u *pecanv1.EpochUpdate) bool { return u.Streams[0].Lease == second.Lease })
	if watch.workerOf(update.Streams[0]).GetWorkerId() != "w2" {
		t.Fatalf("update %v", update)
	}
	_, err := silent.stream.Recv()
	wantReason(t, err, reason.Unavailable)
}

func TestAWorkerThatComesBackAtOnceKeepsItsStreams(t *testing.T) {
	s := startService(t, serviceOptions{})
	job := s.begun(1)
	w := s.worker(workerHello("w1", 1))
	start := w.start()
	watch := s.watch("c1", job.JobId, 0)
	watch.until("with the stream leased", ready)
	w.cancel()
	update := watch.until("that says what is waited for", func(u *pecanv1.EpochUpdate) bool { return u.Waiting != "" })
	if !strings.Contains(update.Waiting, "w1") {
		t.Fatalf("waiting: %s", update.Waiting)
	}
	hello := workerHello("w1", 1)
	hello.Held = []*pecanv1.HeldStream{{Id: start.Id, Lease: start.Lease}}
	s.worker(hello)
	update = watch.until("that goes on", func(u *pecanv1.EpochUpdate) bool { return u.Waiting == "" })
	if update.Streams[0].Lease != start.Lease {
		t.Fatalf("update %v", update)
	}
}

func TestANewerConnectionOfAWorkerEndsTheOlder(t *testing.T) {
	s := startService(t, serviceOptions{})
	first := s.worker(workerHello("w1", 1))
	s.worker(workerHello("w1", 1))
	_, err := first.stream.Recv()
	wantReason(t, err, reason.Closed)
	status, err := s.client.Status(s.ctx(), &pecanv1.StatusRequest{})
	if err != nil || len(status.Workers) != 1 || status.Workers[0].State != "connected" {
		t.Fatalf("%v %v", status, err)
	}
}

func TestANewerWatchEndsTheOlder(t *testing.T) {
	s := startService(t, serviceOptions{})
	job := s.begun(1)
	first := s.watch("c1", job.JobId, 0)
	first.until("at all", func(*pecanv1.EpochUpdate) bool { return true })
	s.watch("c1", job.JobId, 0).until("at all", func(*pecanv1.EpochUpdate) bool { return true })
	_, err := first.stream.Recv()
	wantReason(t, err, reason.Closed)
}

func TestASilentClientIsRemoved(t *testing.T) {
	s := startService(t, serviceOptions{})
	w := s.worker(workerHello("w1", 1))
	job := s.begun(1)
	w.start()
	watch := s.watch("c1", job.JobId, 0)
	watch.until("with the stream leased", ready)
	s.advance(62*time.Second, w)
	if stop := w.next().GetStopStreams(); stop.GetJobId() != job.JobId || !stop.Over {
		t.Fatalf("stop %v", stop)
	}
	for {
		if _, err := watch.stream.Recv(); err != nil {
			break
		}
	}
	_, err := s.client.ClientHeartbeat(s.ctx(), &pecanv1.ClientHeartbeatRequest{ClientId: "c1", JobIds: []string{job.JobId}})
	wantReason(t, err, reason.ClientUnknown)
}

func TestAFailedStreamReachesTheClient(t *testing.T) {
	s := startService(t, serviceOptions{})
	job := s.begun(1)
	w := s.worker(workerHello("w1", 1))
	start := w.start()
	w.send(&pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Failed{Failed: &pecanv1.StreamFailed{
		Id: start.Id, Lease: start.Lease, Error: reason.New(reason.FileNotVisible, "worker w1 cannot see /data/a").Detail(),
	}}})
	update := s.watch("c1", job.JobId, 0).until("with the error", func(u *pecanv1.EpochUpdate) bool { return u.Error != nil })
	if got := reason.FromDetail(update.Error); got.Reason != reason.FileNotVisible || !strings.Contains(got.Message, "/data/a") {
		t.Fatalf("error %v", got)
	}
	w.stopped()
}

// The closing stream's worker learns of every remainder.
func TestRemaindersAreAnnounced(t *testing.T) {
	s := startService(t, serviceOptions{})
	dataset := s.register(&pecanv1.Plan{NumStreams: 1, BatchStrategy: pecanv1.BatchStrategy_BATCH_STRATEGY_REMAINDER, BatchRows: 8})
	job := s.job("c1", "", dataset, nil)
	s.open("c1", job.JobId, 0)
	w := s.worker(workerHello("w1", 1))
	start, closing := w.start(), w.start()
	if !closing.Closing || closing.Id.Stream != 1 || len(closing.Remainders) != 1 || closing.Remainders[0].Ready {
		t.Fatalf("closing %v", closing)
	}
	w.ended(start, 3, 5)
	again := w.start()
	if again.Lease != closing.Lease || !again.Remainders[0].Ready || again.Remainders[0].Rows != 5 || again.Remainders[0].Worker.WorkerId != "w1" {
		t.Fatalf("closing again %v", again)
	}
}
