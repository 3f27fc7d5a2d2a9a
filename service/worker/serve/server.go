package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/worker/identity"
	"github.com/pecan-ml/pecan/service/worker/window"
)

const (
	// MaxReaders bounds the readers of a listener. Readers on this host have a bound of their own.
	MaxReaders = 1024
	// maxSilent bounds a listener's connections before their hello. Above it, the oldest one is closed. A reader sends its
	// hello at once, so a connection that stayed silent while so many others came has no reader.
	maxSilent = 128
)

// Options are the part of a worker's configuration that concerns its data plane.
type Options struct {
	// Listen is a HOST:PORT, and ListenOn listens there. Advertise is the HOST:PORT by which readers reach the worker. If
	// Advertise is empty, the worker advertises the address that it listens on. If it listens on all addresses, it
	// advertises the one by which this host reaches Dispatcher.
	Listen, Advertise, Dispatcher string
	ListenOn                      func(network, address string) (net.Listener, error)
	// Version is the version of this build, for readers.
	Version string
	// SlotBytes bounds the shared memory per connection, if SharedMemory is possible at all.
	SlotBytes    int64
	SharedMemory bool
}

// Opener finds streams for readers.
type Opener interface {
	// Attach makes c the reader of the stream that an OPEN requests. It waits for a stream that has not arrived
	// yet.
	Attach(ctx context.Context, request *pecanv1.OpenStream, c window.Reader) *reason.Error
}

// Server is the data plane: TCP for all readers, and an abstract Unix socket for readers that share this host's
// memory.
type Server struct {
	log      *slog.Logger
	identity *identity.Identity
	streams  Opener
	options  Options
	tcp      net.Listener
	unix     *net.UnixListener

	ctx    context.Context
	cancel context.CancelFunc
	done   sync.WaitGroup
	mu     sync.Mutex
	conns  map[*conn]struct{}
	// remote and local count the connections over TCP and over the Unix socket.
	remote, local admission
	// opens counts the OPENs.
	opens atomic.Uint64
	// peers bounds the warnings about peers.
	peers rateLog
	// sentElements and sentBytes count what was sent to readers.
	sentElements, sentBytes atomic.Uint64
}

// Listen opens the listeners and sets the addresses of identity. Serve accepts connections.
func Listen(log *slog.Logger, identity *identity.Identity, streams Opener, options Options) (*Server, error) {
	s := &Server{log: log, identity: identity, streams: streams, options: options, conns: map[*conn]struct{}{}}
	var err error
	if s.tcp, err = options.ListenOn("tcp", options.Listen); err != nil {
		if errors.Is(err, syscall.EADDRINUSE) {
			return nil, fmt.Errorf("listen on %s: the port is in use; choose another or 0: %w", options.Listen, err)
		}
		return nil, fmt.Errorf("listen on %s: %w", options.Listen, err)
	}
	if options.SlotBytes > 0 && options.SharedMemory {
		// An abstract name vanishes with its process. Without the socket, readers use TCP.
		if s.unix, err = net.ListenUnix("unix", &net.UnixAddr{Name: "@pecan-worker-" + identity.ID(), Net: "unix"}); err != nil {
			log.Warn("shared memory is off: cannot listen on an abstract socket", "error", err)
			s.unix = nil
		}
	}
	identity.Address, identity.LocalAddress = options.Advertise, s.reach()
	if identity.Address == "" {
		identity.Address = reachable(s.tcp.Addr().(*net.TCPAddr), options.Dispatcher)
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s, nil
}

// reachable is the address to advertise for a listener on all interfaces: the one by which this host reaches the
// dispatcher.
func reachable(addr *net.TCPAddr, dispatcher string) string {
	if !addr.IP.IsUnspecified() {
		return addr.String()
	}
	host := "127.0.0.1"
	// Connecting a datagram socket sends nothing: it only queries the routing table.
	if probe, err := net.Dial("udp", dispatcher); err == nil {
		host = probe.LocalAddr().(*net.UDPAddr).IP.String()
		probe.Close()
	}
	return net.JoinHostPort(host, fmt.Sprint(addr.Port))
}

// reach is the address by which this process reaches itself.
func (s *Server) reach() string {
	addr := s.tcp.Addr().(*net.TCPAddr)
	if !addr.IP.IsUnspecified() {
		return addr.String()
	}
	return net.JoinHostPort("localhost", fmt.Sprint(addr.Port))
}

// UnixName is the name of the Unix socket; empty without one.
func (s *Server) UnixName() string {
	if s.unix == nil {
		return ""
	}
	return s.unix.Addr().String()
}

// Serve accepts connections until Close.
func (s *Server) Serve() {
	s.done.Go(func() { s.accept(s.tcp) })
	if s.unix != nil {
		s.done.Go(func() { s.accept(s.unix) })
	}
}

// accept accepts connections until the server closes.
func (s *Server) accept(listener net.Listener) {
	for {
		nc, err := listener.Accept()
		if err != nil {
			if s.ctx.Err() != nil {
				return
			}
			// The process is probably out of descriptors. Connections that end release some.
			s.log.Warn("accepting a connection failed", "error", err)
			select {
			case <-s.ctx.Done():
				return
			case <-time.After(100 * time.Millisecond):
			}
			continue
		}
		c := newConn(s, nc)
		if !s.add(c) {
			nc.Close()
			continue
		}
		s.done.Go(func() {
			defer s.remove(c)
			c.serve()
		})
	}
}

// Load returns how many connections there are, and what was sent since the worker started.
func (s *Server) Load() (connections int, elements, bytes uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns), s.sentElements.Load(), s.sentBytes.Load()
}

// Close closes the listeners and all connections, and waits for their goroutines.
func (s *Server) Close() error {
	s.cancel()
	err := s.tcp.Close()
	if s.unix != nil {
		err = errors.Join(err, s.unix.Close())
	}
	s.mu.Lock()
	for c := range s.conns {
		c.nc.Close()
	}
	s.mu.Unlock()
	s.done.Wait()
	return err
}

// ListensOn is the TCP address that the server listens on.
func (s *Server) ListensOn() string { return s.tcp.Addr().String() }
