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

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/pecan-ml/pecan/native/buffer"
	"github.com/pecan-ml/pecan/proto/hostid"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

const (
	// callTimeout bounds one call to the dispatcher in the background.
	callTimeout = 5 * time.Second
	// goodbyeTimeout bounds what Close still tells the dispatcher.
	goodbyeTimeout = time.Second
	// idleConnTime is how long a connection that nobody reads is kept for the next epoch.
	idleConnTime = 30 * time.Second
	chunkBytes   = 1 << 20
	// maxAnswer bounds one answer of the dispatcher.
	maxAnswer = 256 << 20
)

// Session is a process's link to one dispatcher. Its methods may be called from many goroutines.
type Session struct {
	config Config
	target target
	pid    int
	id     string
	hostID string
	log    *slog.Logger

	link    *grpc.ClientConn
	api     pecanv1.DispatcherClient
	pool    *buffer.Pool
	ownPool bool

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
	jobs    map[*Job]struct{}
	// verifying: the jobs are being asked for, since one was lost.
	verifying bool
	conns     map[connKey]*conn
	// downSince is when the dispatcher's first of an unbroken row of failures came; zero while it answers.
	downSince time.Time
	downWhy   string
}

// Connect reaches the dispatcher, or fails with UNAVAILABLE when it does not answer within the configured timeout.
func Connect(ctx context.Context, config Config) (*Session, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config = config.withDefaults()
	address, err := parseTarget(config.Target)
	if err != nil {
		return nil, err
	}
	s := &Session{
		config: config, target: address, pid: os.Getpid(), id: uuid.NewString(), hostID: config.HostID, pool: config.Pool,
		log: config.Logger, jobs: map[*Job]struct{}{}, conns: map[connKey]*conn{}, urgent: make(chan struct{}, 1),
	}
	if s.hostID == "" {
		// Without a host id everything works over TCP.
		s.hostID, _ = hostid.Get()
	}
	if s.config.Host == "" {
		s.config.Host, _ = os.Hostname()
	}
	if s.pool == nil {
		if s.pool, err = buffer.NewPool(buffer.Config{Checked: buffer.Sanitized}); err != nil {
			return nil, err
		}
		s.ownPool = true
	}
	if s.link, err = s.dial(); err != nil {
		return nil, reason.New(reason.BadArgument, "connect to the dispatcher at %s: %w", address.shown, err)
	}
	s.api = pecanv1.NewDispatcherClient(s.link)
	if err := s.greet(ctx); err != nil {
		return nil, errors.Join(err, s.link.Close())
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.calls = newCallQueue(s)
	s.wg.Go(s.calls.run)
	s.wg.Go(s.beat)
	return s, nil
}

func (s *Session) dial() (*grpc.ClientConn, error) {
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
	if dial := s.config.Dial; dial != nil {
		options = append(options, grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) { return dial(ctx, "tcp", address) }))
	}
	return grpc.NewClient(s.target.dial, options...)
}

// greet waits for the first answer.
func (s *Session) greet(ctx context.Context) error {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	var pause retryPause
	for {
		answer, err := s.api.Status(ctx, &pecanv1.StatusRequest{}, grpc.WaitForReady(true))
		switch {
		case err == nil:
			s.mu.Lock()
			s.cluster = answer.GetClusterId()
			s.mu.Unlock()
			return nil
		case isStranger(err):
			return reason.New(reason.Unavailable, "connect to the dispatcher at %s: something answers there, but is no Pecan dispatcher (%s): "+
				"give the address that pecan-dispatcher prints when it serves", s.target.shown,
				strings.TrimSuffix(status.Code(err).String()+": "+reason.From(err).Message, ": "))
		case !isOutage(err) || !pause.wait(ctx):
			return s.unreached("connect to", began, err)
		}
		// A connection that stood broke: a dispatcher that ends or begins at this very moment.
	}
}

// clusterID names the cluster that the dispatcher belonged to when it was greeted, or gave a job, last.
func (s *Session) clusterID() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cluster
}

// unreached says of a failed call what was tried, for how long, and what to do; other failures pass as they are.
func (s *Session) unreached(what string, began time.Time, err error) error {
	own := reason.From(err)
	switch {
	case !isOutage(err):
		return own
	case status.Code(err) == codes.Canceled || errors.Is(err, context.Canceled):
		return reason.New(reason.Closed, "%s the dispatcher at %s: given up after %.1f s", what, s.target.shown, time.Since(began).Seconds())
	}
	return reason.New(reason.Unavailable, "%s the dispatcher at %s: no answer for %.1f s (%s): see that pecan-dispatcher runs there and "+
		"can be reached from this host, or give a longer dispatcher timeout", what, s.target.shown, time.Since(began).Seconds(), own.Message)
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
func (s *Session) observe(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil || !isOutage(err):
		if !s.downSince.IsZero() {
			s.log.Info("dispatcher answers again", "dispatcher", s.target.shown, "away_s", time.Since(s.downSince).Seconds())
		}
		s.downSince, s.downWhy = time.Time{}, ""
	case status.Code(err) == codes.Canceled || errors.Is(err, context.Canceled):
	default:
		if s.downSince.IsZero() {
			s.downSince = time.Now()
			s.log.Warn("dispatcher does not answer", "dispatcher", s.target.shown, "error", err)
		}
		s.downWhy = reason.From(err).Message
	}
}

// away is how long the dispatcher has not answered, and why.
func (s *Session) away() (time.Duration, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.downSince.IsZero() {
		return 0, ""
	}
	return time.Since(s.downSince), s.downWhy
}

// check is the first line of every entry point.
func (s *Session) check() error {
	if err := forked(s.pid); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return reason.New(reason.Closed, "the session with the dispatcher at %s is closed", s.target.shown)
	}
	return nil
}

// ask makes one call for a user: it is repeated while the dispatcher is away, until ctx or the timeout ends.
func (s *Session) ask(ctx context.Context, what string, call func(context.Context) error) error {
	if err := s.check(); err != nil {
		return err
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	var pause retryPause
	for {
		err := call(ctx)
		s.observe(err)
		if err == nil {
			return nil
		}
		if !isOutage(err) || ctx.Err() != nil || !pause.wait(ctx) {
			return s.unreached(what, began, err)
		}
	}
}

// RegisterDataset stores a graph under its fingerprint, or under wantID, and returns both names. Idempotent.
func (s *Session) RegisterDataset(ctx context.Context, graph []byte, spec *pecanv1.DatasetSpec, wantID string) (id, fingerprint string, err error) {
	var answer *pecanv1.RegisterDatasetResponse
	err = s.ask(ctx, "register the dataset with", func(ctx context.Context) error {
		var err error
		answer, err = s.upload(ctx, graph, spec, wantID)
		return err
	})
	return answer.GetDatasetId(), answer.GetFingerprint(), err
}

func (s *Session) upload(ctx context.Context, graph []byte, spec *pecanv1.DatasetSpec, wantID string) (*pecanv1.RegisterDatasetResponse, error) {
	// Ends the call on every path: a failed Send leaves the rest to CloseAndRecv.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := s.api.RegisterDataset(ctx)
	if err != nil {
		return nil, err
	}
	header := &pecanv1.RegisterDatasetRequest_Header{Spec: spec, GraphBytes: int64(len(graph)), DatasetId: wantID}
	err = stream.Send(&pecanv1.RegisterDatasetRequest{Part: &pecanv1.RegisterDatasetRequest_Header_{Header: header}})
	for rest := graph; err == nil && len(rest) > 0; {
		n := min(len(rest), chunkBytes)
		err = stream.Send(&pecanv1.RegisterDatasetRequest{Part: &pecanv1.RegisterDatasetRequest_Chunk{Chunk: rest[:n]}})
		rest = rest[n:]
	}
	// After a failed Send, which only says EOF, the reason comes from here.
	return stream.CloseAndRecv()
}

// GetDataset asks what is known of a registered dataset.
func (s *Session) GetDataset(ctx context.Context, id string) (*pecanv1.GetDatasetResponse, error) {
	var answer *pecanv1.GetDatasetResponse
	err := s.ask(ctx, "get the dataset from", func(ctx context.Context) error {
		var err error
		answer, err = s.api.GetDataset(ctx, &pecanv1.GetDatasetRequest{DatasetId: id})
		return err
	})
	return answer, err
}

// Status asks for what an operator sees.
func (s *Session) Status(ctx context.Context) (*pecanv1.StatusResponse, error) {
	var answer *pecanv1.StatusResponse
	err := s.ask(ctx, "get the status of", func(ctx context.Context) error {
		var err error
		answer, err = s.api.Status(ctx, &pecanv1.StatusRequest{})
		return err
	})
	return answer, err
}

// Explain asks why the steps of a job, given by id or name, run in the order in which they do.
func (s *Session) Explain(ctx context.Context, job string) (*pecanv1.ExplainResponse, error) {
	var answer *pecanv1.ExplainResponse
	err := s.ask(ctx, "get the order of steps from", func(ctx context.Context) error {
		var err error
		answer, err = s.api.Explain(ctx, &pecanv1.ExplainRequest{Job: job})
		return err
	})
	return answer, err
}

// Target is the dispatcher's address.
func (s *Session) Target() string { return s.target.shown }

// Pool holds the elements of this session.
func (s *Session) Pool() *buffer.Pool { return s.pool }

// Close ends everything that belongs to the session and tells the dispatcher. Rows that were handed out stay valid
// until they are released. Idempotent; it takes about a second at most.
func (s *Session) Close() error {
	if err := forked(s.pid); err != nil {
		return err
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		s.wg.Wait()
		return nil
	}
	s.closed = true
	jobs := make([]*Job, 0, len(s.jobs))
	for job := range s.jobs {
		jobs = append(jobs, job)
	}
	s.mu.Unlock()
	for _, job := range jobs {
		job.shut()
	}
	ctx, cancel := context.WithTimeout(context.Background(), goodbyeTimeout)
	defer cancel()
	if away, _ := s.away(); away == 0 {
		// Best effort, goodbyes included: without them the dispatcher forgets these clients after its timeout.
		s.calls.flush(ctx)
	}
	s.cancel()
	s.mu.Lock()
	conns := make([]*conn, 0, len(s.conns))
	for _, c := range s.conns {
		conns = append(conns, c)
	}
	s.mu.Unlock()
	for _, c := range conns {
		c.fail(reason.New(reason.Closed, "the session is closed"))
	}
	s.wg.Wait()
	if s.ownPool {
		s.pool.Close()
	}
	return s.link.Close()
}
