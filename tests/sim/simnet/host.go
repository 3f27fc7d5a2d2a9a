package simnet

import (
	"context"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"
)

type state int

const (
	// up means that a process may run here.
	up state = iota
	// dead means that the process has ended, and the host's kernel answers for it.
	dead
	// dark means that nothing leaves and nothing arrives.
	dark
)

// Host is one computer with one process.
type Host struct {
	net       *Net
	name      string
	state     state
	paused    bool
	listeners map[string]*listener
	conns     map[*Conn]struct{}
	port      int
}

// Host finds or makes the host of an IP address.
func (n *Net) Host(ip string) *Host {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.hosts[ip] == nil {
		n.hosts[ip] = &Host{net: n, name: ip, listeners: map[string]*listener{}, conns: map[*Conn]struct{}{}, port: 40_000}
	}
	return n.hosts[ip]
}

// Kill ends the process at once. Sent bytes may arrive, and its peers see resets.
func (h *Host) Kill() { h.end(dead, Kill) }

// PowerOff ends the process and the host. Nobody is notified.
func (h *Host) PowerOff() { h.end(dark, PowerOff) }

func (h *Host) end(as state, fault Fault) {
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	h.state, h.paused = as, false
	if len(h.listeners)+len(h.conns) > 0 {
		h.net.hits[fault]++
	}
	for c := range h.conns {
		if as == dead {
			// Bytes on their way arrive first, or not at all.
			c.out.end(syscall.ECONNRESET, h.net.rng.IntN(2) == 0)
		}
		c.in.closed, c.lost = true, net.ErrClosed
	}
	for _, l := range h.listeners {
		l.closed = true
	}
	h.listeners, h.conns = map[string]*listener{}, map[*Conn]struct{}{}
	h.net.stir()
}

// Start lets a new process run on a host whose last process ended.
func (h *Host) Start() {
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	h.state = up
	h.net.stir()
}

// Pause stops the process from reading, writing and accepting, or lets it continue. Its host still receives.
func (h *Host) Pause(on bool) {
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	h.paused = on
	h.net.stir()
}

type listener struct {
	host    *Host
	address *net.TCPAddr
	waiting []*Conn
	closed  bool
}

// Listen is net.Listen for this host.
func (h *Host) Listen(_, address string) (net.Listener, error) {
	addr, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		return nil, err
	}
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	if h.state != up || h.listeners[addr.String()] != nil {
		return nil, &net.OpError{Op: "listen", Net: "tcp", Addr: addr, Err: os.NewSyscallError("bind", syscall.EADDRINUSE)}
	}
	l := &listener{host: h, address: addr}
	h.listeners[addr.String()] = l
	return l, nil
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	n := l.host.net
	n.mu.Lock()
	defer n.mu.Unlock()
	for {
		if l.closed {
			return nil, net.ErrClosed
		}
		if len(l.waiting) > 0 && !l.host.paused {
			c := l.waiting[0]
			l.waiting = l.waiting[1:]
			return c, nil
		}
		n.wait(nil, nil, time.Time{})
	}
}

// Close implements net.Listener.
func (l *listener) Close() error {
	n := l.host.net
	n.mu.Lock()
	defer n.mu.Unlock()
	if l.closed {
		return net.ErrClosed
	}
	l.closed = true
	delete(l.host.listeners, l.address.String())
	for _, c := range l.waiting {
		c.shut()
	}
	n.stir()
	return nil
}

// Addr implements net.Listener.
func (l *listener) Addr() net.Addr { return l.address }

// Dial is net.Dialer.DialContext from this host.
func (h *Host) Dial(ctx context.Context, _, address string) (net.Conn, error) {
	addr, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		return nil, err
	}
	refused := func(err error) error { return &net.OpError{Op: "dial", Net: "tcp", Addr: addr, Err: err} }
	n := h.net
	there := n.Host(addr.IP.String())
	n.mu.Lock()
	defer n.mu.Unlock()
	if h.state != up {
		return nil, refused(syscall.ENETDOWN)
	}
	// The handshake is a request and a response. Either may be lost and is repeated.
	ready := n.arrival(h.name, there.name).Add(time.Until(n.arrival(there.name, h.name)))
	counted := false
	for {
		if ctx.Err() != nil {
			return nil, refused(fmt.Errorf("%w: %w", os.ErrDeadlineExceeded, context.Cause(ctx)))
		}
		if h.state != up {
			return nil, refused(net.ErrClosed)
		}
		passes := !h.paused && n.carries(h.name, there.name) && n.carries(there.name, h.name)
		if !passes && !counted {
			n.countFault(h.name, there.name)
			counted = true
		}
		if passes && !time.Now().Before(ready) {
			break
		}
		if passes {
			n.wait(nil, ctx.Done(), ready)
		} else {
			n.wait(nil, ctx.Done(), time.Time{})
		}
	}
	l := there.listeners[addr.String()]
	if there.state != up || l == nil {
		return nil, refused(syscall.ECONNREFUSED)
	}
	h.port++
	from := &net.TCPAddr{IP: net.ParseIP(h.name), Port: h.port}
	moved := newBell()
	a, b := &pipe{from: h, to: there, moved: moved}, &pipe{from: there, to: h, moved: moved}
	mine := &Conn{host: h, in: b, out: a, local: from, remote: addr}
	theirs := &Conn{host: there, in: a, out: b, local: addr, remote: from}
	a.writer, a.reader, b.writer, b.reader = mine, theirs, theirs, mine
	h.conns[mine], there.conns[theirs] = struct{}{}, struct{}{}
	l.waiting = append(l.waiting, theirs)
	n.stir()
	return mine, nil
}

// wait releases the lock until the network changes, moved rings, the time comes, or done is closed.
func (n *Net) wait(moved *bell, done <-chan struct{}, until time.Time) {
	var due <-chan time.Time
	if !until.IsZero() {
		timer := time.NewTimer(time.Until(until))
		defer timer.Stop()
		due = timer.C
	}
	changed, near := n.changed.rung, (chan struct{})(nil)
	if moved != nil {
		near = moved.rung
	}
	n.mu.Unlock()
	defer n.mu.Lock()
	select {
	case <-changed:
	case <-near:
	case <-due:
	case <-done:
	}
}
