package worker

import (
	"context"
	"errors"
	"math"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/worker/dataset"
)

// withSession runs a worker under a commander.
func withSession(t *testing.T, address string) *Worker {
	t.Helper()
	w := startWorker(t, func(c *Config) { c.Dispatcher, c.DispatcherTimeout = address, deadline })
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.session.run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return w
}

// The worker uses the dispatcher's times as they are or refuses them. It never replaces them.
func TestTheDispatchersTimesHoldOrAreRefused(t *testing.T) {
	c := newCommander()
	c.ttl = 200_000
	w := withSession(t, c.listen(t, "127.0.0.1:0"))
	c.hello(t)
	waitFor(t, "the welcome", func() bool { return time.Duration(w.session.leaseTTL.Load()) == 200_000*time.Second })
	for name, change := range map[string]func(*commander){
		"no lease": func(c *commander) { c.ttl = 0 }, "a negative lease": func(c *commander) { c.ttl = -1 }, "a lease of NaN": func(c *commander) { c.ttl = math.NaN() },
		"a lease without end": func(c *commander) { c.ttl = math.Inf(1) }, "a lease of 2^63 s": func(c *commander) { c.ttl = 1 << 63 },
		"no heartbeat": func(c *commander) { c.heartbeat = 0 }, "a heartbeat of NaN": func(c *commander) { c.heartbeat = math.NaN() },
		"no end of heartbeats": func(c *commander) { c.heartbeat = math.Inf(1) }, "a negative heartbeat": func(c *commander) { c.heartbeat = -0.02 },
	} {
		t.Run(name, func(t *testing.T) {
			c := newCommander()
			change(c)
			address := c.listen(t, "127.0.0.1:0")
			w := startWorker(t, func(config *Config) { config.Dispatcher, config.DispatcherTimeout = address, deadline })
			if err := w.session.run(t.Context()); !reason.Is(err, reason.VersionMismatch) {
				t.Fatalf("got %v", err)
			}
		})
	}
}

func TestASessionReportsTheStateOfStreams(t *testing.T) {
	c := newCommander()
	w := withSession(t, c.listen(t, "127.0.0.1:0"))
	hello := c.hello(t)
	if hello.GetAddress().GetTcp() != w.identity.LocalAddress || hello.GetAddress().GetUnix() == "" || hello.GetGraphProducer() < 1000 || hello.GetMaxStreams() != 4 {
		t.Fatalf("hello %v", hello)
	}
	o := startCommand("batches")
	o.Plan = &pecanv1.Plan{NumStreams: 1, BatchStrategy: pecanv1.BatchStrategy_BATCH_STRATEGY_REMAINDER, BatchRows: 10}
	c.start(o)
	await(t, c, "the start", func(m *pecanv1.WorkerMessage) (struct{}, bool) { return struct{}{}, m.GetStarted().GetLease() == 7 })
	figures := await(t, c, "the figures", func(m *pecanv1.WorkerMessage) (*pecanv1.JobMetrics, bool) {
		if m.GetEnded() != nil {
			t.Fatal("the end came before the last figures")
		}
		return m.GetMetrics(), slices.ContainsFunc(m.GetMetrics().GetNodes(), func(n *pecanv1.NodeMetrics) bool { return n.GetElements() == 10 })
	})
	end := await(t, c, "the end", ended)
	if figures.GetJobId() != "job" || figures.GetGeneration() == 0 || figures.GetSequence() == 0 {
		t.Fatalf("%v", figures)
	}
	if end.GetCount() != 10 || end.GetRemainderRows() != 3 {
		t.Fatalf("%v", end)
	}
	heartbeat := await(t, c, "a heartbeat with the stream", func(m *pecanv1.WorkerMessage) (*pecanv1.WorkerHeartbeat, bool) {
		return m.GetHeartbeat(), len(m.GetHeartbeat().GetStreams()) == 1
	})
	if heartbeat.GetCpuS() <= 0 || heartbeat.GetResidentBytes() < 1<<20 || !slices.Equal(heartbeat.GetStreams()[0].GetProduced(), []uint64{10}) {
		t.Fatalf("%v", heartbeat)
	}
	bad := startCommand("no such graph")
	bad.Id.Stream = 1
	useGraphs(w, dataset.NewStore(w.session.fetchGraph))
	c.start(bad)
	failed := await(t, c, "the failure", func(m *pecanv1.WorkerMessage) (*pecanv1.StreamFailed, bool) {
		return m.GetFailed(), m.GetFailed() != nil
	})
	if failed.GetError().GetReason() != string(reason.DatasetUnknown) {
		t.Fatalf("%v", failed)
	}
}

func TestARestartedDispatcherReceivesTheHeldStreams(t *testing.T) {
	c := newCommander()
	address := c.listen(t, "127.0.0.1:0")
	w := withSession(t, address)
	c.hello(t)
	c.start(startCommand("thousand"))
	await(t, c, "the end", ended)
	c.vanish()
	// The worker keeps serving meanwhile.
	r := dialTCP(t, w)
	r.open(1, opening(startCommand("thousand")))
	if elements, _, _ := r.stream(0); len(elements) != 1000 {
		t.Fatal(len(elements))
	}
	c.listen(t, address)
	hello := c.hello(t)
	if held := hello.GetHeld(); len(held) != 1 || !held[0].GetEnded() || held[0].GetCount() != 1000 || hello.GetClusterId() != "c1" {
		t.Fatalf("hello %v", hello)
	}
	await(t, c, "the end again", ended)
}

func TestAnotherClusterIsJoinedAsANewWorker(t *testing.T) {
	c := newCommander()
	address := c.listen(t, "127.0.0.1:0")
	w := withSession(t, address)
	first := c.hello(t).GetAddress().GetWorkerId()
	c.start(startCommand("thousand"))
	await(t, c, "the end", ended)
	c.vanish()
	other := newCommander()
	other.cluster = "c2"
	other.listen(t, address)
	if hello := other.hello(t); hello.GetClusterId() != "c1" {
		t.Fatalf("hello %v", hello)
	}
	if hello := other.hello(t); hello.GetClusterId() != "" || len(hello.GetHeld()) != 0 || hello.GetAddress().GetWorkerId() == first {
		t.Fatalf("hello %v", hello)
	}
	waitFor(t, "the new cluster", func() bool { return w.identity.Cluster() == "c2" })
}

func TestStreamsStopWhenTheDispatcherIsAwayForTooLong(t *testing.T) {
	c := newCommander()
	// A busy machine may stop for as long as a shorter one lasts.
	c.ttl = 2
	w := withSession(t, c.listen(t, "127.0.0.1:0"))
	c.hello(t)
	c.start(startCommand("starved"))
	waitFor(t, "the stream", func() bool { return len(w.streams.HeldStreams()) == 1 })
	r := dialTCP(t, w)
	r.open(1, opening(startCommand("starved")))
	if _, err := r.next(); err != nil {
		t.Fatal(err)
	}
	c.vanish()
	if g, err := r.next(); err != nil || g.failure == nil || g.failure.Reason != reason.StaleLease {
		t.Fatal(g, err)
	}
	waitFor(t, "the stop", func() bool { return len(w.streams.HeldStreams()) == 0 })
}

func TestAWorkerThatStopsSaysGoodbye(t *testing.T) {
	c := newCommander()
	config := testConfig()
	config.Dispatcher = c.listen(t, "127.0.0.1:0")
	ctx, cancel := context.WithCancel(context.Background())
	config.Ready = func(string) { cancel() }
	if err := Run(ctx, config); err != nil {
		t.Fatal(err)
	}
	await(t, c, "the goodbye", func(m *pecanv1.WorkerMessage) (struct{}, bool) { return struct{}{}, m.GetGoodbye() != nil })
}

func TestADispatcherThatIsNeverReachedEndsTheWorker(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	listener.Close()
	config := testConfig()
	config.Dispatcher, config.DispatcherTimeout = address, 300*time.Millisecond
	begun := time.Now()
	if err := Run(t.Context(), config); !errors.Is(err, errUnreachable) {
		t.Fatal(err)
	}
	if took := time.Since(begun); took > 10*time.Second {
		t.Fatalf("took %v", took)
	}
}

// The kernel accepts connections for a process that is stopped or is another service.
func TestADispatcherThatSaysNothingEndsTheWorker(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	config := testConfig()
	config.Dispatcher, config.DispatcherTimeout = listener.Addr().String(), 300*time.Millisecond
	begun := time.Now()
	if err := Run(t.Context(), config); !errors.Is(err, errUnreachable) {
		t.Fatal(err)
	}
	config.DispatcherTimeout = deadline
	stopped, stop := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer stop()
	if err := Run(stopped, config); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begun); took > welcomeTimeout/2 {
		t.Fatalf("took %v", took)
	}
}

func TestConfigReportsAllErrors(t *testing.T) {
	config := Config{Listen: "nowhere", Advertise: "x", MaxStreams: -1, Kind: "moon"}
	err := config.Validate()
	if err == nil {
		t.Fatal("accepted")
	}
	for _, word := range []string{"--dispatcher", "--listen", "--advertise", "--max-streams", "--window-bytes", "--kind", "--dispatcher-timeout"} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%q lacks %s", err, word)
		}
	}
}

func TestTheDispatcherChangesThePeriodOfHeartbeats(t *testing.T) {
	c := newCommander()
	c.heartbeat = 600
	withSession(t, c.listen(t, "127.0.0.1:0"))
	c.hello(t)
	for _, period := range []float64{-1, math.NaN(), 0.02} {
		c.commands <- &pecanv1.WorkerCommand{Kind: &pecanv1.WorkerCommand_SetHeartbeat{SetHeartbeat: &pecanv1.SetHeartbeat{PeriodS: period}}}
	}
	for range 2 {
		await(t, c, "a heartbeat", func(m *pecanv1.WorkerMessage) (struct{}, bool) { return struct{}{}, m.GetHeartbeat() != nil })
	}
}
