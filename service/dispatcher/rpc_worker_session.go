package dispatcher

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/dispatcher/core"
	"github.com/pecan-ml/pecan/service/dispatcher/validate"
)

// helloWait is how long a worker's connection may be silent at first.
const helloWait = 10 * time.Second

type workerStream = grpc.BidiStreamingServer[pecanv1.WorkerMessage, pecanv1.WorkerCommand]

// WorkerSession implements the service. Receive and serveWorker each have a goroutine. The goroutine of receive ends
// with the call, because Recv fails after the handler returns.
func (d *Dispatcher) WorkerSession(stream workerStream) error {
	hello, err := d.awaitHello(stream)
	if err != nil {
		return err
	}
	s := newCommandQueue()
	id := connect(d, d.sessions, s)
	defer func() {
		disconnect(d, d.sessions, id)
		d.sessionEnded(id)
	}()
	if _, err := d.submit(stream.Context(), core.Hello{Session: id, Message: hello}); err != nil {
		d.deps.Log.Warn("the dispatcher refused a worker", "worker", hello.Address.WorkerId, "tcp", hello.Address.Tcp, "error", err)
		return err
	}
	received := make(chan error, 1)
	go func() { received <- d.receive(stream, id) }()
	return d.serveWorker(stream, s, received)
}

// receive passes each message of a worker to the core, and returns why no more comes. A message that arrives after the session
// has ended changes nothing.
func (d *Dispatcher) receive(stream workerStream, id core.SessionID) (err error) {
	defer d.recovered("WorkerSession", &err)
	for {
		message, err := stream.Recv()
		if err != nil {
			return endOfSession(err)
		}
		if err := d.fromWorker(stream.Context(), id, message); err != nil {
			return err
		}
	}
}

// sessionEnded tells the core as soon as the disk has space.
func (d *Dispatcher) sessionEnded(id core.SessionID) {
	if why, _ := d.diskGate.state(); why == nil {
		d.decide(core.SessionEnded{Session: id})
		return
	}
	go func() {
		if d.waitForDisk(context.Background()) {
			d.decide(core.SessionEnded{Session: id})
		}
	}()
}

// awaitHello returns the first message of a session. It waits a bounded time, so that a silent peer holds no session.
func (d *Dispatcher) awaitHello(stream workerStream) (*pecanv1.WorkerHello, error) {
	timeout := time.NewTimer(helloWait)
	defer timeout.Stop()
	type first struct {
		message *pecanv1.WorkerMessage
		err     error
	}
	received := make(chan first, 1)
	go func() {
		message, err := stream.Recv()
		received <- first{message, err}
	}()
	select {
	case got := <-received:
		if got.err != nil {
			return nil, endOfSession(got.err)
		}
		hello := got.message.GetHello()
		if hello == nil {
			return nil, reason.New(reason.BadArgument, "worker session: the first message must be hello")
		}
		return hello, d.check.Hello(hello)
	case <-timeout.C:
		return nil, reason.New(reason.BadArgument, "worker session: no hello within %v", helloWait)
	case <-d.stopping:
		return nil, d.stopError()
	}
}

// serveWorker sends commands until the session ends.
func (d *Dispatcher) serveWorker(stream workerStream, s *commandQueue, received <-chan error) error {
	for {
		select {
		case err := <-received:
			return err
		case <-s.wake:
			commands, ended, err := s.take()
			for _, command := range commands {
				if err := stream.Send(command); err != nil {
					return err
				}
			}
			if ended {
				return err
			}
		case <-stream.Context().Done():
			return reason.From(stream.Context().Err())
		case <-d.stopping:
			return d.stopError()
		}
	}
}

// fromWorker cleans a message and queues it. Nobody waits for it: commands answer a worker's reports, if anything
// does.
func (d *Dispatcher) fromWorker(ctx context.Context, id core.SessionID, message *pecanv1.WorkerMessage) error {
	switch kind := message.GetKind().(type) {
	case *pecanv1.WorkerMessage_Heartbeat:
		validate.CleanHeartbeat(kind.Heartbeat)
	case *pecanv1.WorkerMessage_Metrics:
		if kind.Metrics == nil {
			return nil
		}
		validate.CleanMetrics(kind.Metrics)
	case *pecanv1.WorkerMessage_CacheSegmentInvalid:
		if kind.CacheSegmentInvalid == nil {
			return nil
		}
		kind.CacheSegmentInvalid.Why = validate.Shorten(kind.CacheSegmentInvalid.Why)
	case *pecanv1.WorkerMessage_CacheFiles:
		if files := kind.CacheFiles; len(files.GetNames()) > validate.MaxListed {
			files.Names = files.Names[:validate.MaxListed]
		}
	case *pecanv1.WorkerMessage_OrderTried:
		if kind.OrderTried == nil {
			return nil
		}
		validate.CleanTrial(kind.OrderTried.Trial)
	case *pecanv1.WorkerMessage_Failed:
		detail := kind.Failed.GetError()
		if detail == nil {
			return reason.New(reason.BadArgument, "worker session: a failed stream without an error")
		}
		detail.Message, detail.Reason = validate.Shorten(detail.Message), validate.Shorten(detail.Reason)
	case *pecanv1.WorkerMessage_Hello:
		return reason.New(reason.BadArgument, "worker session: send hello once, as the first message")
	}
	if why, _ := d.diskGate.state(); why != nil && (message.GetHeartbeat() != nil || message.GetMetrics() != nil) {
		// Newer ones will follow.
		return nil
	}
	if d.waitForDisk(ctx) {
		d.decide(core.FromWorker{Session: id, Message: message})
	}
	return nil
}

func endOfSession(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
