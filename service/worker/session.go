package worker

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/internal/clock"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
)

const (
	firstBackoff   = 50 * time.Millisecond
	lastBackoff    = 2 * time.Second
	welcomeTimeout = 10 * time.Second
	goodbyeTimeout = time.Second
	// logPeriod is the time between two log records about a missing session.
	logPeriod  = 5 * time.Second
	maxMessage = 64 << 20
	// commandWindow bounds the commands that arrive before they are read.
	commandWindow = 4 << 20
	// ackTimeout is how long the dispatcher's host may leave sent data unacknowledged before the connection
	// counts as broken. The lease time, not this one, decides how long streams continue without a dispatcher.
	ackTimeout  = 10 * time.Second
	dialTimeout = 5 * time.Second
)

// session is the worker's side of the control plane: one connection that is made again whenever it breaks.
type session struct {
	worker *Worker
	// leaseTTL is the time without contact after which streams stop, in nanoseconds. The dispatcher's welcome
	// sets it.
	leaseTTL atomic.Int64
	announce sync.Once

	mu     sync.Mutex
	client pecanv1.DispatcherClient
	// outbox holds the messages to send in the current session. connected reports whether there is one.
	outbox    []*pecanv1.WorkerMessage
	connected bool
	signal    chan struct{}

	// commons has what the streams of each epoch have in common. closings has the newest command of each closing stream.
	// Only the goroutine that receives commands uses them.
	commons  map[epochKey]*pecanv1.StartStream
	closings map[pecanv1.StreamKey]*pecanv1.StartStream
	// periods has the newest period of heartbeats, until write takes it.
	periods chan time.Duration
}

// epochKey names an epoch.
type epochKey struct {
	job   string
	epoch uint64
}

func newSession(w *Worker) *session {
	return &session{worker: w, signal: make(chan struct{}, 1)}
}

// Send queues messages for the current session. Without a session they are dropped, because a new session begins
// with a full report.
func (s *session) Send(messages ...*pecanv1.WorkerMessage) {
	s.mu.Lock()
	if s.connected {
		s.outbox = append(s.outbox, messages...)
	}
	s.mu.Unlock()
	select {
	case s.signal <- struct{}{}:
	default:
	}
}

// ready returns the reason why the worker is not ready for readers, or nil.
func (s *session) ready() error {
	if s.isUp() {
		return nil
	}
	return fmt.Errorf("no session with the dispatcher at %s", s.worker.config.Dispatcher)
}

func (s *session) isUp() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.connected
}

// dial makes the connection that all sessions share.
func (s *session) dial() (*grpc.ClientConn, error) {
	dial := s.worker.config.Dial
	return grpc.NewClient("passthrough:///"+s.worker.config.Dispatcher, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		// With its own estimate of the window, gRPC sends a ping after most commands, which costs as much as the command.
		grpc.WithStaticStreamWindowSize(commandWindow), grpc.WithStaticConnWindowSize(commandWindow),
		// By default, gRPC's retries slow down to one in two minutes. A dispatcher that returns would declare
		// its workers dead by then.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: firstBackoff, Multiplier: 1.6, Jitter: 0.2, MaxDelay: lastBackoff},
			MinConnectTimeout: dialTimeout,
		}),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			if path, ok := strings.CutPrefix(address, "unix:"); ok {
				return dial(ctx, "unix", path)
			}
			return dial(ctx, "tcp", address)
		}))
}

// setUserTimeout lets the kernel break a connection on which sent data, such as heartbeats, stays
// unacknowledged. A host that vanished sends no reset.
func setUserTimeout(network, _ string, raw syscall.RawConn) error {
	if !strings.HasPrefix(network, "tcp") {
		return nil
	}
	var failed error
	err := raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(ackTimeout.Milliseconds()))
	})
	return errors.Join(err, failed)
}

// run keeps a session until ctx ends, the dispatcher refuses this worker, or the first contact times out.
func (s *session) run(ctx context.Context) error {
	conn, err := s.dial()
	if err != nil {
		return fmt.Errorf("connect to the dispatcher at %s: %w", s.worker.config.Dispatcher, err)
	}
	defer conn.Close()
	s.mu.Lock()
	s.client = pecanv1.NewDispatcherClient(conn)
	s.mu.Unlock()
	sampling, stop := context.WithCancel(ctx)
	defer stop()
	s.worker.running.Go(func() { s.worker.streams.SampleLoop(sampling) })
	s.worker.running.Go(func() { s.worker.host.Run(sampling) })
	if s.worker.streams.Caches != nil {
		s.worker.running.Go(func() { s.worker.streams.Caches.Collect(sampling) })
	}

	begun, complained := time.Now(), time.Time{}
	met, backoff := false, firstBackoff
	for {
		timeout := welcomeTimeout
		if !met {
			timeout = min(timeout, s.worker.config.DispatcherTimeout-time.Since(begun))
		}
		welcomed, err := s.once(ctx, timeout)
		if ctx.Err() != nil {
			return nil
		}
		if err := s.fatal(err); err != nil {
			return err
		}
		if welcomed {
			met, backoff, begun = true, firstBackoff, time.Now()
		}
		away := time.Since(begun)
		if !met && away > s.worker.config.DispatcherTimeout {
			return fmt.Errorf("%w at %s within %v (--dispatcher-timeout): %w", errUnreachable, s.worker.config.Dispatcher, s.worker.config.DispatcherTimeout, err)
		}
		if met && expired(away, time.Duration(s.leaseTTL.Load())) {
			if n := s.worker.streams.StopAll(reason.New(reason.StaleLease, "worker %s had no contact with the dispatcher for the lease time", s.worker.identity)); n > 0 {
				s.worker.log.Warn("the streams stop: the worker had no contact with the dispatcher for the lease time", "streams", n, "away", away.Round(time.Second))
			}
		}
		if time.Since(complained) > logPeriod {
			complained = time.Now()
			s.worker.log.Warn("the worker has no session with the dispatcher and tries again", "dispatcher", s.worker.config.Dispatcher, "for", away.Round(time.Millisecond), "error", err)
		}
		if !clock.Sleep(ctx, backoff/2+rand.N(backoff)) {
			return nil
		}
		backoff = min(2*backoff, lastBackoff)
	}
}

// fatal returns the errors after which a retry is useless. A dispatcher of another cluster is no such error: it
// does not know this worker's streams, so the worker joins it as a new one.
func (s *session) fatal(err error) error {
	if reason.Is(err, reason.ClusterMismatch) {
		n := s.worker.streams.StopAll(reason.New(reason.ClusterMismatch, "worker %s joins another cluster", s.worker.identity))
		s.worker.identity.Renew()
		s.worker.log.Warn("the dispatcher belongs to another cluster; the worker joins it as a new worker", "streams_dropped", n, "new_id", s.worker.identity.ID())
		return nil
	}
	if err == nil {
		return nil
	}
	switch reason.From(err).Code() {
	case codes.InvalidArgument, codes.FailedPrecondition, codes.PermissionDenied, codes.Unauthenticated, codes.Unimplemented:
		return fmt.Errorf("register with the dispatcher at %s: %w", s.worker.config.Dispatcher, err)
	}
	return nil
}

// once runs one session until it breaks. welcomed reports whether the session was established, which may take up
// to timeout.
func (s *session) once(ctx context.Context, timeout time.Duration) (welcomed bool, err error) {
	// The stream outlives ctx by a moment, for the goodbye.
	streaming, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	// If no dispatcher answers, gRPC waits for the connection here already.
	opening, opened := context.WithTimeout(ctx, timeout)
	defer opened()
	leave := context.AfterFunc(opening, cancel)
	defer leave()
	stream, err := s.client.WorkerSession(streaming)
	if err != nil {
		return false, err
	}
	welcome, err := s.handshake(stream)
	if err != nil {
		return false, err
	}
	if !leave() {
		return false, opening.Err()
	}
	s.commons, s.closings = map[epochKey]*pecanv1.StartStream{}, map[pecanv1.StreamKey]*pecanv1.StartStream{}
	s.welcomed(ctx, welcome)
	s.periods = make(chan time.Duration, 1)
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		defer cancel()
		s.write(ctx, stream, seconds(welcome.GetHeartbeatS()), s.periods)
	}()
	for {
		command, err := stream.Recv()
		if err != nil {
			s.mu.Lock()
			s.connected, s.outbox = false, nil
			s.mu.Unlock()
			s.worker.trials.Cancel(false)
			cancel()
			s.Send()
			<-sent
			return true, err
		}
		s.handle(command)
	}
}

// write sends heartbeats and queued messages until the session breaks or the worker stops.
func (s *session) write(ctx context.Context, stream grpc.BidiStreamingClient[pecanv1.WorkerMessage, pecanv1.WorkerCommand], period time.Duration, periods <-chan time.Duration) {
	due, timer := time.Now().Add(period), time.NewTimer(period)
	defer timer.Stop()
	for {
		s.mu.Lock()
		messages, connected := s.outbox, s.connected
		s.outbox = nil
		s.mu.Unlock()
		if !connected {
			return
		}
		for _, message := range mergeReports(messages) {
			if stream.Send(message) != nil {
				return
			}
		}
		select {
		case <-ctx.Done():
			s.goodbye(stream)
			return
		case <-stream.Context().Done():
			return
		case <-s.signal:
		case changed := <-periods:
			// The rest of the running period changes by the same factor. So no silence is longer than the longer period. Workers
			// that get the command together do not send their heartbeats together afterwards.
			left := time.Duration(float64(time.Until(due)) * float64(changed) / float64(period))
			period, due = changed, time.Now().Add(left)
			timer.Reset(left)
		case <-timer.C:
			due = time.Now().Add(period)
			timer.Reset(period)
			s.worker.streams.ReportMetrics()
			heartbeat := &pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Heartbeat{Heartbeat: s.worker.heartbeat()}}
			if stream.Send(heartbeat) != nil {
				return
			}
		}
	}
}

// handle executes a command of the dispatcher.
func (s *session) handle(command *pecanv1.WorkerCommand) {
	w := s.worker
	switch {
	case command.GetStartStreams() != nil:
		s.startStreams(command.GetStartStreams())
	case command.GetStopStreams() != nil:
		s.stopStreams(command.GetStopStreams())
	case command.GetStart().GetId() != nil:
		w.streams.Start(command.GetStart())
	case command.GetStop().GetId() != nil:
		w.streams.Stop(command.GetStop())
	case command.GetCacheSegmentAck() != nil:
		w.streams.Caches.Acknowledge(command.GetCacheSegmentAck())
	case command.GetCachePart() != nil:
		w.streams.Caches.Answer(command.GetCachePart())
	case command.GetCacheOrphans() != nil:
		w.streams.Caches.RemoveOrphans(command.GetCacheOrphans().GetNames())
	case command.GetLeave() != nil:
		w.departOn(command.GetLeave())
	case command.GetSetHeartbeat() != nil:
		s.setHeartbeat(command.GetSetHeartbeat().GetPeriodS())
	case command.GetTryOrder() != nil:
		w.trials.Begin(command.GetTryOrder())
	default:
		w.log.Warn("the dispatcher sent an unknown command", "command", fmt.Sprintf("%T", command.GetKind()))
	}
}
