package worker

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.uber.org/multierr"

	"github.com/pecan-ml/pecan/proto/reason"
)

const (
	// maxReaders bounds the readers of a listener; those on this host do not share the bound with others.
	maxReaders = 1024
	// maxSilent bounds its connections that have not said hello. Above, the oldest one goes: a reader says hello at once,
	// so who has not said it for as long as many others came is none.
	maxSilent = 128
)

// gate counts the connections of a listener.
type gate struct {
	// silent has those before their hello, the oldest first.
	silent  list.List
	readers int
}

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
	// remote and local count the connections over TCP and over the Unix socket.
	remote, local gate
	// asked counts the OPENs.
	asked atomic.Uint64
	// peers bounds the warnings about them.
	peers rareLog
}

func listen(w *Worker) (*server, error) {
	s := &server{worker: w, conns: map[*conn]struct{}{}}
	var err error
	if s.tcp, err = w.config.ListenOn("tcp", w.config.Listen); err != nil {
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

// reach is how this process reaches itself.
func (s *server) reach() string {
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
			nc.Close()
			continue
		}
		s.done.Go(func() {
			defer s.remove(c)
			c.serve()
		})
	}
}

func (s *server) gateOf(c *conn) *gate {
	if c.unix != nil {
		return &s.local
	}
	return &s.remote
}

// add takes a connection in and hangs up on the oldest silent one when there are too many; false when the worker closes.
func (s *server) add(c *conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return false
	}
	g := s.gateOf(c)
	if g.silent.Len() >= maxSilent {
		oldest := g.silent.Remove(g.silent.Front()).(*conn)
		oldest.place = nil
		oldest.nc.Close()
		if kept, say := s.peers.allow(time.Now()); say {
			s.worker.log.Warn("hang up on a connection that says nothing: too many do", "limit", maxSilent, "peer", oldest.nc.RemoteAddr(), "not_logged_before", kept)
		}
	}
	s.conns[c] = struct{}{}
	c.place = g.silent.PushBack(c)
	return true
}

// greeted makes a silent connection a reader's, unless there are too many.
func (s *server) greeted(c *conn) *reason.Error {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.gateOf(c)
	switch {
	case c.place == nil:
		// It was hung up on meanwhile.
	case g.readers >= maxReaders:
		return reason.New(reason.ServiceLimit, "worker %s has %d readers, and takes no more than %d: start more workers, or try again when some have left",
			s.worker.describe(), g.readers, maxReaders)
	default:
		g.silent.Remove(c.place)
		c.place, c.reader = nil, true
		g.readers++
	}
	return nil
}

func (s *server) remove(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.gateOf(c)
	if c.place != nil {
		g.silent.Remove(c.place)
	}
	if c.reader {
		g.readers--
	}
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
