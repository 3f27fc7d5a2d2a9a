package worker

import (
	"cmp"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// commander is the dispatcher's end of a session, driven by a test.
type commander struct {
	pecanv1.UnimplementedDispatcherServer
	cluster   string
	ttl       float64
	heartbeat float64
	graphs    string

	hellos   chan *pecanv1.WorkerHello
	messages chan *pecanv1.WorkerMessage
	commands chan *pecanv1.WorkerCommand
	mu       sync.Mutex
	server   *grpc.Server
}

func newCommander() *commander {
	return &commander{
		cluster: "c1", ttl: 30, heartbeat: 0.02, graphs: filepath.Join("..", "..", "native", "tf", "testdata"), hellos: make(chan *pecanv1.WorkerHello, 16),
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
		ClusterId: c.cluster, HeartbeatS: c.heartbeat, LeaseTtlS: c.ttl}}}
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
