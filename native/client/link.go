package client

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

const (
	// callTimeout bounds one call to the dispatcher in the background.
	callTimeout = 5 * time.Second
	chunkBytes  = 1 << 20
	// maxAnswer bounds one answer of the dispatcher.
	maxAnswer = 256 << 20
)

// linkConfig says how to reach a dispatcher.
type linkConfig struct {
	// Target is the dispatcher's address as Config.Target has it.
	Target string
	// Timeout bounds every call that a user waits for.
	Timeout time.Duration
	Logger  *slog.Logger
	// Dial makes connections; nil uses the host's network.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Link is a process's control connection to one dispatcher: calls that a user waits for, calls that are delivered in the
// background, and whether the dispatcher answers.
type Link struct {
	config linkConfig
	target target
	pid    int
	log    *slog.Logger

	conn *grpc.ClientConn
	api  pecanv1.DispatcherClient

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	calls  *callQueue
	// urgent asks for a heartbeat out of turn.
	urgent chan struct{}

	mu     sync.Mutex
	closed bool
	// cluster changes when a dispatcher that forgot everything has taken the place of the first.
	cluster string
	// downSince is when the dispatcher's first of an unbroken row of failures came; zero while it answers.
	downSince time.Time
	downWhy   string
}

// connectLink reaches the dispatcher, or fails with UNAVAILABLE when it does not answer within the configured timeout.
func connectLink(ctx context.Context, config linkConfig) (*Link, error) {
	address, err := parseTarget(config.Target)
	if err != nil {
		return nil, err
	}
	l := &Link{config: config, target: address, pid: os.Getpid(), log: config.Logger, urgent: make(chan struct{}, 1)}
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

// API calls the dispatcher directly: whoever uses it reports the outcome to Observe.
func (l *Link) API() pecanv1.DispatcherClient { return l.api }

// Log receives what people may want to know.
func (l *Link) Log() *slog.Logger { return l.log }

// Context ends when the link is stopped.
func (l *Link) Context() context.Context { return l.ctx }

// Go runs a goroutine that ends with Context; Close waits for it.
func (l *Link) Go(run func()) { l.wg.Go(run) }

// Deliver makes a call in the background, after all that were given before, and repeats it while the dispatcher is away.
func (l *Link) Deliver(do func(context.Context) error) { l.calls.add(call{keep: true, do: do}) }

// Try makes a call in the background, after all that were given before, once.
func (l *Link) Try(do func(context.Context) error) { l.calls.add(call{do: do}) }

// Delivered returns a channel that is closed when all calls that were given before are over.
func (l *Link) Delivered() <-chan struct{} { return l.calls.behind() }

// Flush waits until all calls that were given are over, or ctx ends.
func (l *Link) Flush(ctx context.Context) { l.calls.flush(ctx) }

// RequestHeartbeat asks for a heartbeat before the next one is due.
func (l *Link) RequestHeartbeat() { nudge(l.urgent) }

// HeartbeatRequested receives when RequestHeartbeat was called.
func (l *Link) HeartbeatRequested() <-chan struct{} { return l.urgent }

// checkFork fails in a process that was forked off the one that made the link.
func (l *Link) checkFork() error { return forked(l.pid) }

// setCluster takes over the cluster that the dispatcher belongs to now.
func (l *Link) setCluster(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cluster = id
}

// Refuse makes every later call of a user fail with CLOSED.
func (l *Link) Refuse() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
}

// Stop ends Context.
func (l *Link) Stop() { l.cancel() }

// Wait returns when all goroutines of the link have ended, which Stop asks of them.
func (l *Link) Wait() { l.wg.Wait() }

// Close closes the connection to the dispatcher, after Stop and Wait.
func (l *Link) Close() error { return l.conn.Close() }

func (l *Link) dial() (*grpc.ClientConn, error) {
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		// Elements do not pass through a proxy, so control does not either: it would only look as if one could.
		grpc.WithNoProxy(),
		// A dataset's spec alone may have 4 MiB, which is gRPC's default; the status of a busy service has more.
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
			MinConnectTimeout: 3 * time.Second,
		}),
		// A dispatcher whose host went without a word is noticed even where nothing is asked of it.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
	}
	if dial := l.config.Dial; dial != nil {
		options = append(options, grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) { return dial(ctx, "tcp", address) }))
	}
	return grpc.NewClient(l.target.dial, options...)
}

// greet waits for the first answer.
func (l *Link) greet(ctx context.Context) error {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, l.config.Timeout)
	defer cancel()
	var pause retryPause
	for {
		answer, err := l.api.Status(ctx, &pecanv1.StatusRequest{}, grpc.WaitForReady(true))
		switch {
		case err == nil:
			l.setCluster(answer.GetClusterId())
			return nil
		case isStranger(err):
			return reason.New(reason.Unavailable, "connect to the dispatcher at %s: something answers there, but is no Pecan dispatcher (%s): "+
				"give the address that pecan-dispatcher prints when it serves", l.target.shown,
				strings.TrimSuffix(status.Code(err).String()+": "+reason.From(err).Message, ": "))
		case !isOutage(err) || !pause.wait(ctx):
			return l.unreached("connect to", began, err)
		}
		// A connection that stood broke: a dispatcher that ends or begins at this very moment.
	}
}

// clusterID names the cluster that the dispatcher belonged to when it was greeted, or gave a job, last.
func (l *Link) clusterID() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cluster
}

// unreached says of a failed call what was tried, for how long, and what to do; other failures pass as they are.
func (l *Link) unreached(what string, began time.Time, err error) error {
	own := reason.From(err)
	switch {
	case !isOutage(err):
		return own
	case status.Code(err) == codes.Canceled || errors.Is(err, context.Canceled):
		return reason.New(reason.Closed, "%s the dispatcher at %s: given up after %.1f s", what, l.target.shown, time.Since(began).Seconds())
	}
	return reason.New(reason.Unavailable, "%s the dispatcher at %s: no answer for %.1f s (%s): see that pecan-dispatcher runs there and "+
		"can be reached from this host, or give a longer dispatcher timeout", what, l.target.shown, time.Since(began).Seconds(), own.Message)
}

// isStranger tells first answers that no dispatcher of ours gives: of who does not know the call, or speaks no gRPC. Ours
// puts a reason into whatever it refuses.
func isStranger(err error) bool {
	switch status.Code(err) {
	case codes.Unimplemented, codes.Unknown:
		return reason.From(err).Reason == reason.Internal && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled)
	}
	return false
}

// isOutage tells failures of reaching the dispatcher from its answers.
func isOutage(err error) bool {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return true
	}
	switch status.Code(err) {
	case codes.Unavailable:
		// A dispatcher that refuses for want of something says so with a reason of ours.
		return reason.From(err).Reason == reason.Unavailable
	case codes.ResourceExhausted:
		// It goes on by itself when there is room again.
		return reason.From(err).Reason == reason.StoreFull
	case codes.DeadlineExceeded, codes.Canceled:
		return true
	}
	return false
}

// observe keeps account of whether the dispatcher answers.
func (l *Link) observe(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err == nil || !isOutage(err):
		if !l.downSince.IsZero() {
			l.log.Info("dispatcher answers again", "dispatcher", l.target.shown, "away_s", time.Since(l.downSince).Seconds())
		}
		l.downSince, l.downWhy = time.Time{}, ""
	case status.Code(err) == codes.Canceled || errors.Is(err, context.Canceled):
	default:
		if l.downSince.IsZero() {
			l.downSince = time.Now()
			l.log.Warn("dispatcher does not answer", "dispatcher", l.target.shown, "error", err)
		}
		l.downWhy = reason.From(err).Message
	}
}

// away is how long the dispatcher has not answered, and why.
func (l *Link) away() (time.Duration, string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.downSince.IsZero() {
		return 0, ""
	}
	return time.Since(l.downSince), l.downWhy
}

// check is the first line of every entry point.
func (l *Link) check() error {
	if err := l.checkFork(); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return reason.New(reason.Closed, "the session with the dispatcher at %s is closed", l.target.shown)
	}
	return nil
}

// ask makes one call for a user: it is repeated while the dispatcher is away, until ctx or the timeout ends.
func (l *Link) ask(ctx context.Context, what string, call func(context.Context) error) error {
	if err := l.check(); err != nil {
		return err
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, l.config.Timeout)
	defer cancel()
	defer context.AfterFunc(l.ctx, cancel)()
	var pause retryPause
	for {
		err := call(ctx)
		l.observe(err)
		if err == nil {
			return nil
		}
		if !isOutage(err) || ctx.Err() != nil || !pause.wait(ctx) {
			return l.unreached(what, began, err)
		}
	}
}

// Target is the dispatcher's address.
func (l *Link) Target() string { return l.target.shown }
