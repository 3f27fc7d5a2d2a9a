package worker

import (
	"cmp"
	"context"
	"errors"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/worker/dataset"
)

// commander is the dispatcher's end of a session, driven by a test.
type commander struct {
	pecanv1.UnimplementedDispatcherServer
	cluster string
	ttl     float64
	beat    float64
	graphs  string

	hellos   chan *pecanv1.WorkerHello
	messages chan *pecanv1.WorkerMessage
	commands chan *pecanv1.WorkerCommand
	mu       sync.Mutex
	server   *grpc.Server
}

func newCommander() *commander {
	return &commander{
		cluster: "c1", ttl: 30, beat: 0.02, graphs: filepath.Join("..", "..", "native", "tf", "testdata"), hellos: make(chan *pecanv1.WorkerHello, 16),
		messages: make(chan *pecanv1.WorkerMessage, 4096), commands: make(chan *pecanv1.WorkerCommand, 16),
	}
}

func (c *commander) WorkerSession(stream grpc.BidiStreamingServer[pecanv1.WorkerMessage, pecanv1.WorkerCommand]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	hello := first.GetHello()
	c.hellos <- hello
	if hello.GetClusterId() != "" && hello.GetClusterId() != c.cluster {
		return reason.New(reason.ClusterMismatch, "this is %s", c.cluster)
	}
	welcome := &pecanv1.WorkerCommand{Kind: &pecanv1.WorkerCommand_Welcome{Welcome: &pecanv1.Welcome{
		ClusterId: c.cluster, HeartbeatS: c.beat, LeaseTtlS: c.ttl}}}
	if err := stream.Send(welcome); err != nil {
		return err
	}
	received := make(chan error, 1)
	go func() {
		for {
			message, err := stream.Recv()
			if err != nil {
				received <- err
				return
			}
			for _, report := range singleReports(message) {
				c.messages <- report
			}
			if message.GetGoodbye() != nil {
				received <- nil
				return
			}
		}
	}()
	for {
		select {
		case command := <-c.commands:
			if err := stream.Send(command); err != nil {
				return err
			}
		case <-received:
			return nil
		}
	}
}

func (c *commander) FetchGraph(request *pecanv1.FetchGraphRequest, stream grpc.ServerStreamingServer[pecanv1.FetchGraphResponse]) error {
	data, err := os.ReadFile(filepath.Join(c.graphs, request.GetFingerprint()+".graph"))
	if err != nil {
		return reason.New(reason.DatasetUnknown, "no graph %s", request.GetFingerprint())
	}
	for len(data) > 0 {
		n := min(len(data), 1000)
		if err := stream.Send(&pecanv1.FetchGraphResponse{TotalBytes: int64(len(data)), Chunk: data[:n]}); err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

// listen serves at address ("127.0.0.1:0" at first) and gives it.
func (c *commander) listen(t *testing.T, address string) string {
	t.Helper()
	var listener net.Listener
	waitFor(t, "the port", func() (ok bool) {
		var err error
		listener, err = net.Listen("tcp", address)
		return err == nil
	})
	server := grpc.NewServer()
	pecanv1.RegisterDispatcherServer(server, c)
	c.mu.Lock()
	c.server = server
	c.mu.Unlock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() {
		server.Stop()
		<-done
	})
	return listener.Addr().String()
}

func (c *commander) vanish() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.server.Stop()
}

func (c *commander) start(o *pecanv1.StartStream) {
	c.commands <- &pecanv1.WorkerCommand{Kind: &pecanv1.WorkerCommand_Start{Start: o}}
}

// await returns the first message that f accepts.
func await[T any](t *testing.T, c *commander, what string, f func(*pecanv1.WorkerMessage) (T, bool)) T {
	t.Helper()
	timeout := time.After(deadline)
	for {
		select {
		case message := <-c.messages:
			if found, ok := f(message); ok {
				return found
			}
		case <-timeout:
			t.Fatalf("waited %v for %s", deadline, what)
		}
	}
}

func (c *commander) hello(t *testing.T) *pecanv1.WorkerHello {
	t.Helper()
	select {
	case hello := <-c.hellos:
		return hello
	case <-time.After(deadline):
		t.Fatal("no hello")
		return nil
	}
}

// singleReports returns the reports of a list.
func singleReports(message *pecanv1.WorkerMessage) []*pecanv1.WorkerMessage {
	started, ended := message.GetStreamsStarted(), message.GetStreamsEnded()
	if started == nil && ended == nil {
		return []*pecanv1.WorkerMessage{message}
	}
	streams, err := pecanv1.Numbers[uint32](append(slices.Clone(started.GetStreams()), ended.GetStreams()...))
	leases, leasesErr := pecanv1.Numbers[uint64](append(slices.Clone(started.GetLeases()), ended.GetLeases()...))
	if err := cmp.Or(err, leasesErr); err != nil {
		panic(err)
	}
	var reports []*pecanv1.WorkerMessage
	for i, stream := range streams {
		id := &pecanv1.StreamId{JobId: cmp.Or(started.GetJobId(), ended.GetJobId()), Epoch: started.GetEpoch() + ended.GetEpoch(), Stream: stream}
		if started != nil {
			reports = append(reports, &pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Started{Started: &pecanv1.StreamStarted{Id: id, Lease: leases[i]}}})
		} else {
			reports = append(reports, &pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Ended{Ended: &pecanv1.StreamEnded{
				Id: id, Lease: leases[i], Count: ended.Counts[i], RemainderRows: ended.RemainderRows[i],
			}}})
		}
	}
	return reports
}

func ended(m *pecanv1.WorkerMessage) (*pecanv1.StreamEnded, bool) {
	return m.GetEnded(), m.GetEnded() != nil
}

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
		"no heartbeat": func(c *commander) { c.beat = 0 }, "a heartbeat of NaN": func(c *commander) { c.beat = math.NaN() },
		"no end of heartbeats": func(c *commander) { c.beat = math.Inf(1) }, "a negative heartbeat": func(c *commander) { c.beat = -0.02 },
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
	beat := await(t, c, "a heartbeat with the stream", func(m *pecanv1.WorkerMessage) (*pecanv1.WorkerHeartbeat, bool) {
		return m.GetHeartbeat(), len(m.GetHeartbeat().GetStreams()) == 1
	})
	if beat.GetCpuS() <= 0 || beat.GetResidentBytes() < 1<<20 || beat.GetStreams()[0].GetProduced() != 10 {
		t.Fatalf("%v", beat)
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
