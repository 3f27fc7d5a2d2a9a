package transport

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/pecan-ml/pecan/native/buffer"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// Connect finds or makes the connection to a worker. It returns nil without an error if the session is
// closing. An error is final.
func (w *Workers) Connect(worker *pecanv1.WorkerAddress, protocol Protocol) (*Conn, error) {
	near := w.onThisHost(worker)
	if protocol == SHM && !near {
		return nil, reason.New(reason.Unsupported, "data_transfer_protocol=\"shm\": worker %s at %s is not on this host, or has no Unix socket: "+
			"start workers on the trainer's host, or give \"auto\" or \"tcp\"", worker.GetWorkerId(), worker.GetTcp())
	}
	if !near {
		protocol = TCP
	}
	key := connKey{worker: worker.GetWorkerId(), address: worker.GetTcp() + "|" + worker.GetUnix(), protocol: protocol}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil, nil
	}
	if c := w.conns[key]; c != nil {
		return c, nil
	}
	c := &Conn{owner: w, key: key, worker: worker, wake: make(chan struct{}, 1), channels: map[uint32]*Channel{}, usedAt: time.Now()}
	c.ctx, c.cancel = context.WithCancel(w.ctx)
	w.conns[key] = c
	w.wg.Go(c.run)
	return c, nil
}

// Config says who reads, and how workers are reached.
type Config struct {
	// ClientID and Version are sent to workers in the handshake.
	ClientID string
	Version  string
	// HostID decides whether a worker is on this host. If it is empty, no worker is.
	HostID string
	// ClusterID returns the cluster that workers must belong to.
	ClusterID func() string
	// Pool holds the payloads.
	Pool   *buffer.Pool
	Logger *slog.Logger
	// Dial makes connections; nil uses the host's network.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// PingAfter is how long a connection may be silent before the client sends a ping. After three such
	// periods the client closes the connection.
	PingAfter time.Duration
}

// Workers holds a session's connections to workers, one for each address and protocol. All streams of a
// worker share its connection.
type Workers struct {
	config Config
	ctx    context.Context
	wg     sync.WaitGroup

	mu     sync.Mutex
	closed bool
	conns  map[connKey]*Conn
}

// New returns a set without connections. Its connections end with ctx.
func New(ctx context.Context, config Config) *Workers {
	return &Workers{config: config, ctx: ctx, conns: map[connKey]*Conn{}}
}

// count returns the number of connections.
func (w *Workers) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.conns)
}

// onThisHost reports whether the worker can share memory with this process.
func (w *Workers) onThisHost(worker *pecanv1.WorkerAddress) bool {
	return w.config.HostID != "" && worker.GetHostId() == w.config.HostID && worker.GetUnix() != ""
}

// Sweep closes connections without readers for a while. It reports whether none other is left.
func (w *Workers) Sweep(unreadFor time.Duration) (quiet bool) {
	w.mu.Lock()
	var idle []*Conn
	for _, c := range w.conns {
		if c.idleFor() > unreadFor {
			idle = append(idle, c)
		}
	}
	quiet = len(w.conns) == len(idle)
	w.mu.Unlock()
	for _, c := range idle {
		c.fail(reason.New(reason.Closed, "nobody reads from this worker any more"))
	}
	return quiet
}

// Refuse prevents new connections.
func (w *Workers) Refuse() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
}

// Fail ends all connections; their receivers learn why.
func (w *Workers) Fail(why error) {
	w.mu.Lock()
	conns := make([]*Conn, 0, len(w.conns))
	for _, c := range w.conns {
		conns = append(conns, c)
	}
	w.mu.Unlock()
	for _, c := range conns {
		c.fail(why)
	}
}

// Wait returns when all goroutines of connections have ended. Refuse and Fail come before it.
func (w *Workers) Wait() { w.wg.Wait() }
