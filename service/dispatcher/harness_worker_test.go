package dispatcher_test

import (
	"context"
	"crypto/sha256"
	"fmt"

	"google.golang.org/grpc"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// worker is a worker's session controlled by a test.
type worker struct {
	s       *service
	id      string
	stream  grpc.BidiStreamingClient[pecanv1.WorkerMessage, pecanv1.WorkerCommand]
	welcome *pecanv1.Welcome
	cancel  context.CancelFunc
	// commands have arrived. common has the fields that the streams of the newest epoch share.
	commands []*pecanv1.WorkerCommand
	common   *pecanv1.StartStream
}

func workerHello(id string, slots int32) *pecanv1.WorkerHello {
	return &pecanv1.WorkerHello{
		Address:    &pecanv1.WorkerAddress{WorkerId: id, Tcp: "127.0.0.1:" + portOf(id), HostId: "h"},
		MaxStreams: slots, Cores: 2, TensorflowVersion: "2.21.0", Version: "test", Kind: "remote",
	}
}

// portOf gives every worker name its own port.
func portOf(id string) string {
	sum := sha256.Sum256([]byte(id))
	return fmt.Sprint(10_000 + int(sum[0])<<8 + int(sum[1]))[:5]
}

func (s *service) worker(hello *pecanv1.WorkerHello) *worker {
	s.t.Helper()
	w, err := s.tryWorker(hello)
	if err != nil {
		s.t.Fatal(err)
	}
	return w
}

func (s *service) tryWorker(hello *pecanv1.WorkerHello) (*worker, error) {
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	s.t.Cleanup(cancel)
	stream, err := s.client.WorkerSession(ctx)
	if err != nil {
		return nil, err
	}
	w := &worker{s: s, id: hello.GetAddress().GetWorkerId(), stream: stream, cancel: cancel}
	if err := stream.Send(&pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Hello{Hello: hello}}); err != nil {
		return nil, err
	}
	command, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	w.welcome = command.GetWelcome()
	return w, nil
}

func (w *worker) send(message *pecanv1.WorkerMessage) {
	w.s.t.Helper()
	if err := w.stream.Send(message); err != nil {
		w.s.t.Fatal(err)
	}
}

func (w *worker) heartbeat() {
	w.s.t.Helper()
	w.send(&pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Heartbeat{Heartbeat: &pecanv1.WorkerHeartbeat{}}})
}

// next returns the next command. The streams of a list come one after the other.
func (w *worker) next() *pecanv1.WorkerCommand {
	w.s.t.Helper()
	for len(w.commands) == 0 {
		command, err := w.stream.Recv()
		if err != nil {
			w.s.t.Fatalf("worker %s waits for a command: %v", w.id, err)
		}
		starts, stops := command.GetStartStreams(), command.GetStopStreams()
		if starts.GetCommon() != nil {
			w.common = starts.Common
		}
		for _, start := range starts.Starts(w.common) {
			w.commands = append(w.commands, &pecanv1.WorkerCommand{Kind: &pecanv1.WorkerCommand_Start{Start: start}})
		}
		singles, err := stops.Stops()
		if err != nil {
			w.s.t.Fatal(err)
		}
		for _, stop := range singles {
			w.commands = append(w.commands, &pecanv1.WorkerCommand{Kind: &pecanv1.WorkerCommand_Stop{Stop: stop}})
		}
		if starts == nil && len(singles) == 0 {
			w.commands = append(w.commands, command)
		}
	}
	command := w.commands[0]
	w.commands = w.commands[1:]
	return command
}

func (w *worker) start() *pecanv1.StartStream {
	w.s.t.Helper()
	command := w.next()
	if command.GetStart() == nil {
		w.s.t.Fatalf("worker %s got %v instead of a stream", w.id, command)
	}
	return command.GetStart()
}

func (w *worker) stopped() *pecanv1.StopStream {
	w.s.t.Helper()
	command := w.next()
	if command.GetStop() == nil {
		w.s.t.Fatalf("worker %s got %v instead of a stop", w.id, command)
	}
	return command.GetStop()
}

func (w *worker) ended(start *pecanv1.StartStream, count, rows uint64) {
	w.s.t.Helper()
	w.send(&pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Ended{Ended: &pecanv1.StreamEnded{
		Id: start.Id, Lease: start.Lease, Count: count, RemainderRows: rows,
	}}})
}
