package control

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/pecan-ml/pecan/native/client/wait"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// CallTimeout limits one background call to the dispatcher.
const CallTimeout = 5 * time.Second

// LevelNotice is the level of messages that the trainer's log shows as information. Those of level Info are for debugging.
const LevelNotice = slog.LevelInfo + 2

const (
	// maxAnswer limits the size of one answer of the dispatcher.
	maxAnswer = 256 << 20
	// answerWindow bounds what arrives before it is read.
	answerWindow = 4 << 20
)

// Config says how to reach a dispatcher.
type Config struct {
	// Target is the dispatcher's address as Config.Target has it.
	Target string
	// Timeout limits every call that a user waits for.
	Timeout time.Duration
	Logger  *slog.Logger
	// Dial makes connections; nil uses the host's network.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Link is a process's control connection to one dispatcher. It makes calls that a user waits for and calls that are
// delivered in the background. It knows whether the dispatcher answers.
type Link struct {
	config  Config
	target  target
	Process int
	log     *slog.Logger

	conn *grpc.ClientConn
	api  pecanv1.DispatcherClient

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	calls  *callQueue
	// urgent requests a heartbeat before the next one is due.
	urgent chan struct{}

	mu     sync.Mutex
	closed bool
	// cluster changes when a dispatcher without the first one's state replaces it.
	cluster string
	// downSince is when the first of the current failures in a row occurred; zero while the dispatcher
	// answers.
	downSince time.Time
	downWhy   string
}

// Connect connects to the dispatcher. It fails with UNAVAILABLE if the dispatcher does not answer within the
// timeout.
func Connect(ctx context.Context, config Config) (*Link, error) {
	address, err := ParseTarget(config.Target)
	if err != nil {
		return nil, err
	}
	l := &Link{config: config, target: address, Process: os.Getpid(), log: config.Logger, urgent: make(chan struct{}, 1)}
	if l.conn, err = l.dial(); err != nil {
		return nil, reason.New(reason.BadArgument, "connect to the dispatcher at %s: %w", address.shown, err)
	}
	l.api = pecanv1.NewDispatcherClient(l.conn)
	if err := l.greet(ctx); err != nil {
		return nil, errors.Join(err, l.conn.Close())
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.calls = newCallQueue(l)
	l.wg.Go(l.calls.run)
	return l, nil
}

// API returns the dispatcher's stub for direct calls. The caller reports the outcome to Observe.
func (l *Link) API() pecanv1.DispatcherClient { return l.api }

// Log returns the logger for messages to people.
func (l *Link) Log() *slog.Logger { return l.log }

// Context ends when the link is stopped.
func (l *Link) Context() context.Context { return l.ctx }

// Go starts a goroutine that ends with Context. Wait waits for it.
func (l *Link) Go(run func()) { l.wg.Go(run) }

// Deliver makes a call in the background, after all earlier ones, and repeats it while the dispatcher is
// away.
func (l *Link) Deliver(do func(context.Context) error) { l.calls.add(call{retry: true, do: do}) }

// Try makes a call in the background, after all earlier ones, once.
func (l *Link) Try(do func(context.Context) error) { l.calls.add(call{do: do}) }

// Delivered returns a channel that is closed when all earlier background calls are done.
func (l *Link) Delivered() <-chan struct{} { return l.calls.marker() }

// Flush waits until all background calls are done, or ctx ends.
func (l *Link) Flush(ctx context.Context) { l.calls.flush(ctx) }

// RequestHeartbeat asks for a heartbeat before the next one is due.
func (l *Link) RequestHeartbeat() { wait.Signal(l.urgent) }

// HeartbeatRequested returns a channel that receives after RequestHeartbeat.
func (l *Link) HeartbeatRequested() <-chan struct{} { return l.urgent }

// CheckFork fails in a process that was forked off the process of the link.
func (l *Link) CheckFork() error { return checkProcess(l.Process) }

// SetCluster records the cluster that the dispatcher belongs to now.
func (l *Link) SetCluster(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cluster = id
}

// Refuse makes all later user calls fail with CLOSED.
func (l *Link) Refuse() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
}

// Stop ends Context.
func (l *Link) Stop() { l.cancel() }

// Wait returns when all goroutines of the link have ended. Stop ends them.
func (l *Link) Wait() { l.wg.Wait() }

// Close closes the connection to the dispatcher. Stop and Wait come before it.
func (l *Link) Close() error { return l.conn.Close() }

func (l *Link) dial() (*grpc.ClientConn, error) {
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		// Elements do not pass through a proxy, so calls do not either: a proxy would seem to be supported.
		grpc.WithNoProxy(),
		// gRPC's default limit is 4 MiB. The spec of one dataset may have that size, and the status of a busy
		// service is larger.
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)),
		// With its own estimate of the window, gRPC sends a ping after most answers, which costs as much as the answer.
		grpc.WithStaticStreamWindowSize(answerWindow), grpc.WithStaticConnWindowSize(answerWindow),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
			MinConnectTimeout: 3 * time.Second,
		}),
		// Keepalive notices a dispatcher whose host vanished, also when no call is active.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
	}
	if dial := l.config.Dial; dial != nil {
		options = append(options, grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) { return dial(ctx, "tcp", address) }))
	}
	return grpc.NewClient(l.target.dial, options...)
}

// ClusterID returns the cluster that the dispatcher belonged to in its latest answer.
func (l *Link) ClusterID() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cluster
}

// Target returns the dispatcher's address.
func (l *Link) Target() string { return l.target.shown }
