package worker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"go.uber.org/multierr"
)

// maxConnections bounds the connections of one worker.
const maxConnections = 1024

// server is the data plane: TCP for everybody, an abstract Unix socket for readers that share this host's memory.
type server struct {
	worker     *Worker
	tcp        net.Listener
	unix       *net.UnixListener
	advertised string
	// stopStreams ends the worker's lifetime context.
	stopStreams context.CancelFunc

	ctx    context.Context
	cancel context.CancelFunc
	done   sync.WaitGroup
	mu     sync.Mutex
	conns  map[*conn]struct{}
	// peers bounds the warnings about them.
	peers rareLog
}

func listen(w *Worker) (*server, error) {
	s := &server{worker: w, conns: map[*conn]struct{}{}}
	var err error
	if s.tcp, err = net.Listen("tcp", w.config.Listen); err != nil {
		if errors.Is(err, syscall.EADDRINUSE) {
			return nil, fmt.Errorf("listen on %s: the port is in use; choose another or 0: %w", w.config.Listen, err)
		}
		return nil, fmt.Errorf("listen on %s: %w", w.config.Listen, err)
	}
	if w.config.SlotBytes > 0 && w.hostID != "" {
		// An abstract name vanishes with its process. Without the socket readers use TCP.
		if s.unix, err = net.ListenUnix("unix", &net.UnixAddr{Name: "@pecan-worker-" + w.workerID(), Net: "unix"}); err != nil {
			w.log.Warn("shared memory is off: cannot listen on an abstract socket", "error", err)
			s.unix = nil
		}
	}
	s.advertised = w.config.Advertise
	if s.advertised == "" {
		s.advertised = reachable(s.tcp.Addr().(*net.TCPAddr), w.config.Dispatcher)
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s, nil
}

// reachable is the address to advertise for a listener on all interfaces: the one by which this host reaches the dispatcher.
func reachable(addr *net.TCPAddr, dispatcher string) string {
	if !addr.IP.IsUnspecified() {
		return addr.String()
	}
	host := "127.0.0.1"
	// Connecting a datagram socket sends nothing: it asks the routing table.
	if probe, err := net.Dial("udp", dispatcher); err == nil {
		host = probe.LocalAddr().(*net.UDPAddr).IP.String()
		probe.Close()
	}
	return net.JoinHostPort(host, fmt.Sprint(addr.Port))
}

// local is how this process reaches itself.
func (s *server) local() string {
	addr := s.tcp.Addr().(*net.TCPAddr)
	if !addr.IP.IsUnspecified() {
		return addr.String()
	}
	return net.JoinHostPort("localhost", fmt.Sprint(addr.Port))
}

func (s *server) unixName() string {
	if s.unix == nil {
		return ""
	}
	return s.unix.Addr().String()
}

func (s *server) serve() {
	s.done.Go(func() { s.accept(s.tcp) })
	if s.unix != nil {
		s.done.Go(func() { s.accept(s.unix) })
	}
}

func (s *server) accept(listener net.Listener) {
	for {
		nc, err := listener.Accept()
		if err != nil {
			if s.ctx.Err() != nil {
				return
			}
			// No descriptors left, most likely: connections that end give some back.
			s.worker.log.Warn("accept a reader", "error", err)
			select {
			case <-s.ctx.Done():
				return
			case <-time.After(100 * time.Millisecond):
			}
			continue
		}
		c := newConn(s, nc)
		if !s.add(c) {
			if kept, say := s.peers.allow(time.Now()); say {
				s.worker.log.Warn("refuse a reader: too many connections", "limit", maxConnections, "peer", nc.RemoteAddr(), "not_logged_before", kept)
			}
			nc.Close()
			continue
		}
		s.done.Go(func() {
			defer s.remove(c)
			c.serve()
		})
	}
}

func (s *server) add(c *conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil || len(s.conns) >= maxConnections {
		return false
	}
	s.conns[c] = struct{}{}
	return true
}

func (s *server) remove(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
}

func (s *server) close() error {
	s.cancel()
	err := s.tcp.Close()
	if s.unix != nil {
		err = multierr.Append(err, s.unix.Close())
	}
	s.mu.Lock()
	for c := range s.conns {
		c.nc.Close()
	}
	s.mu.Unlock()
	s.done.Wait()
	return err
}
