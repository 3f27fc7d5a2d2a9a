package worker

import (
	"context"
	"errors"
	"io"
	"runtime"
	"time"

	"github.com/pecan-ml/pecan/native/tf"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/internal/check"
	"google.golang.org/grpc"
)

// handshake sends the hello and waits for the welcome.
func (s *session) handshake(stream grpc.BidiStreamingClient[pecanv1.WorkerMessage, pecanv1.WorkerCommand]) (*pecanv1.Welcome, error) {
	hello, err := s.worker.hello()
	if err != nil {
		return nil, err
	}
	// A failed send hides the server's reason; Recv returns it.
	if err := stream.Send(&pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Hello{Hello: hello}}); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	command, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	welcome := command.GetWelcome()
	if welcome == nil {
		return nil, reason.New(reason.Internal, "the dispatcher's first command is not a welcome")
	}
	for what, s := range map[string]float64{"heartbeat": welcome.GetHeartbeatS(), "lease": welcome.GetLeaseTtlS()} {
		if !validTime(s) {
			return nil, reason.New(reason.VersionMismatch, "the dispatcher's welcome has a %s of %v s: want more than 0 and at most %v; is it of another version of Pecan?",
				what, s, check.MaxDuration)
		}
	}
	return welcome, nil
}

// setHeartbeat changes the period of heartbeats.
func (s *session) setHeartbeat(periodS float64) {
	if !validTime(periodS) {
		s.worker.log.Warn("the dispatcher wants heartbeats with an invalid period, so the period stays", "seconds", periodS)
		return
	}
	select {
	case <-s.periods:
	default:
	}
	s.periods <- seconds(periodS)
}

// validTime reports whether a number of seconds is positive and not absurdly long.
func validTime(s float64) bool { return s > 0 && s <= check.MaxDuration.Seconds() }

// hello describes the worker and the streams that it holds.
func (w *Worker) hello() (*pecanv1.WorkerHello, error) {
	producer, err := tf.GraphProducer()
	if err != nil {
		return nil, err
	}
	hello := &pecanv1.WorkerHello{
		Address: &pecanv1.WorkerAddress{
			WorkerId: w.identity.ID(), Tcp: w.identity.Address, Unix: w.server.UnixName(), HostId: w.hostID,
		},
		MaxStreams: int32(w.config.MaxStreams), Cores: int32(runtime.NumCPU()), TensorflowVersion: tf.Version(),
		GraphProducer: int32(producer), Version: w.config.Version, ClusterId: w.identity.Cluster(), Kind: w.config.Kind, TrainerId: w.config.TrainerID, Caches: w.streams.Caches != nil,
		Number: w.handshakes.Add(1), Held: w.streams.HeldStreams(),
	}
	return hello, nil
}

func (s *session) welcomed(ctx context.Context, welcome *pecanv1.Welcome) {
	cluster := welcome.GetClusterId()
	s.worker.identity.Join(cluster)
	s.leaseTTL.Store(int64(seconds(welcome.GetLeaseTtlS())))
	s.mu.Lock()
	s.connected, s.outbox = true, nil
	s.mu.Unlock()
	s.worker.log.Info("the worker is registered", "dispatcher", s.worker.config.Dispatcher, "cluster", cluster, "address", s.worker.identity.Address)
	s.worker.streams.Totals.Resend()
	s.worker.streams.ReportMetrics()
	// The end or failure of a stream while the session was down is not reported yet.
	s.worker.streams.ReportAll()
	s.worker.streams.Caches.Resend()
	s.announce.Do(func() {
		if caches := s.worker.streams.Caches; caches != nil {
			// The names of files carry the cluster.
			s.worker.running.Go(func() { caches.Measure(ctx) })
		}
		if s.worker.config.Ready != nil {
			s.worker.config.Ready(s.worker.server.ListensOn())
		}
	})
}

// seconds converts a duration of a welcome, which handshake has checked.
func seconds(s float64) time.Duration {
	return max(time.Millisecond, time.Duration(s*float64(time.Second)))
}

// goodbye lets the dispatcher lease this worker's streams to others at once.
func (s *session) goodbye(stream grpc.BidiStreamingClient[pecanv1.WorkerMessage, pecanv1.WorkerCommand]) {
	// The successors need to know how far the readers are.
	if stream.Send(&pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Heartbeat{Heartbeat: s.worker.heartbeat()}}) != nil {
		return
	}
	if stream.Send(&pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Goodbye{Goodbye: &pecanv1.WorkerGoodbye{}}}) != nil {
		return
	}
	_ = stream.CloseSend()
	// The dispatcher ends the stream after it has recorded the goodbye.
	select {
	case <-stream.Context().Done():
	case <-time.After(goodbyeTimeout):
	}
}
