package client

import (
	"context"
	"os"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/pecan-ml/pecan/native/buffer"
	"github.com/pecan-ml/pecan/native/client/control"
	"github.com/pecan-ml/pecan/native/client/transport"
	"github.com/pecan-ml/pecan/proto/hostid"
	"github.com/pecan-ml/pecan/proto/hostload"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

const (
	// goodbyeTimeout limits the calls that Close still makes to the dispatcher.
	goodbyeTimeout = time.Second
	// idleConnTime is how long a connection without readers stays open for the next epoch.
	idleConnTime = 30 * time.Second
)

// Session connects a process to one dispatcher and to the workers that its jobs read from. Its methods are
// safe for concurrent use.
type Session struct {
	config  Config
	link    *control.Link
	workers *transport.Workers
	pool    *buffer.Pool
	ownPool bool
	host    *hostload.Sampler

	mu     sync.Mutex
	closed bool
	jobs   map[*Job]struct{}
	// local has the local workers of this process.
	local localWorkers
	// verifying is set if the session is checking its jobs because one was lost.
	verifying bool
}

// Connect connects to the dispatcher. It fails with UNAVAILABLE if the dispatcher does not answer within the
// timeout.
func Connect(ctx context.Context, config Config) (*Session, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config = config.withDefaults()
	if config.HostID == "" {
		// Without a host id all data travels over TCP.
		config.HostID, _ = hostid.Get()
	}
	if config.Host == "" {
		config.Host, _ = os.Hostname()
	}
	s := &Session{config: config, pool: config.Pool, jobs: map[*Job]struct{}{}}
	var err error
	if s.pool == nil {
		if s.pool, err = buffer.NewPool(buffer.Config{Checked: buffer.Sanitized}); err != nil {
			return nil, err
		}
		s.ownPool = true
	}
	s.link, err = control.Connect(ctx, control.Config{Target: config.Target, Timeout: config.Timeout, Logger: config.Logger, Dial: config.Dial})
	if err != nil {
		return nil, err
	}
	s.workers = transport.New(s.link.Context(), transport.Config{
		ClientID: uuid.NewString(), Version: config.Version, HostID: config.HostID, ClusterID: s.link.ClusterID, Pool: s.pool, Logger: config.Logger,
		Dial: config.Dial, PingAfter: config.pingAfter,
	})
	s.host = hostload.New(config.HostID)
	s.link.Go(func() { s.host.Run(s.link.Context()) })
	s.link.Go(s.sendHeartbeats)
	return s, nil
}

// RegisterDataset stores a graph under its fingerprint, or under wantID, and returns both names. Idempotent.
func (s *Session) RegisterDataset(ctx context.Context, graph []byte, spec *pecanv1.DatasetSpec, wantID string) (id, fingerprint string, err error) {
	return s.link.RegisterDataset(ctx, graph, spec, wantID)
}

// GetDataset returns what the dispatcher knows of a registered dataset.
func (s *Session) GetDataset(ctx context.Context, id string) (*pecanv1.GetDatasetResponse, error) {
	return s.link.GetDataset(ctx, id)
}

// Status returns the dispatcher's status for operators.
func (s *Session) Status(ctx context.Context) (*pecanv1.StatusResponse, error) {
	return s.link.Status(ctx)
}

// Explain returns why the steps of a job, given by id or name, run in their order.
func (s *Session) Explain(ctx context.Context, job string) (*pecanv1.ExplainResponse, error) {
	return s.link.Explain(ctx, job)
}

// Pool returns the pool that holds the session's elements.
func (s *Session) Pool() *buffer.Pool { return s.pool }

// Close ends everything that belongs to the session and informs the dispatcher. Returned elements stay valid
// until they are released. Idempotent; it takes about a second at most.
func (s *Session) Close() error {
	if err := s.link.CheckFork(); err != nil {
		return err
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		s.link.Wait()
		s.workers.Wait()
		return nil
	}
	s.closed = true
	jobs := make([]*Job, 0, len(s.jobs))
	for job := range s.jobs {
		jobs = append(jobs, job)
	}
	s.mu.Unlock()
	s.link.Refuse()
	s.workers.Refuse()
	for _, job := range jobs {
		job.shut()
	}
	ctx, cancel := context.WithTimeout(context.Background(), goodbyeTimeout)
	defer cancel()
	if away, _ := s.link.Away(); away == 0 {
		// Best effort, goodbyes included: without them the dispatcher removes these clients after its
		// timeout.
		s.link.Flush(ctx)
	}
	s.link.Stop()
	s.workers.Fail(reason.New(reason.Closed, "the session is closed"))
	s.link.Wait()
	s.workers.Wait()
	if s.ownPool {
		s.pool.Close()
	}
	return s.link.Close()
}
