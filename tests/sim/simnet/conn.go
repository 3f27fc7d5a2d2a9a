package simnet

import (
	"io"
	"net"
	"os"
	"syscall"
	"time"
)

// buffer is how much a direction of a connection holds before its writer waits.
const buffer = 256 << 10

// segment is some bytes in transit, or the end.
type segment struct {
	data []byte
	at   time.Time
	end  error
	// counted is set if the fault that delays the segment was counted.
	counted bool
}

// pipe is one direction of a connection. Net.mu guards it.
type pipe struct {
	from, to       *Host
	writer, reader *Conn
	segments       []segment
	bytes          int
	// moved wakes the waiters at both ends of the connection.
	moved *bell
	// closed is set if the reader is closed, and arriving bytes are answered with a reset. ended is set if nothing more is
	// sent.
	closed, ended bool
}

// end ends this direction, after the bytes in transit or without them.
func (p *pipe) end(why error, after bool) {
	if p.ended {
		return
	}
	p.ended = true
	if !after {
		p.segments, p.bytes = nil, 0
	}
	p.segments = append(p.segments, segment{end: why, at: p.from.net.arrival(p.from.name, p.to.name)})
}

// ready returns the first segment if it has arrived. Otherwise it returns its time of arrival, if known.
func (p *pipe) ready() (*segment, time.Time) {
	if len(p.segments) == 0 {
		return nil, time.Time{}
	}
	n, s := p.from.net, &p.segments[0]
	if !n.carries(p.from.name, p.to.name) {
		if !s.counted {
			s.counted = true
			n.countFault(p.from.name, p.to.name)
		}
		return nil, time.Time{}
	}
	if time.Now().Before(s.at) {
		return nil, s.at
	}
	return s, time.Time{}
}

// Conn is one end of a connection.
type Conn struct {
	host          *Host
	in, out       *pipe
	local, remote *net.TCPAddr
	// lost is why every call fails.
	lost                  error
	readUntil, writeUntil time.Time
	// UserTimeout is how long sent bytes may stay unanswered, as TCP_USER_TIMEOUT; 0: forever.
	UserTimeout time.Duration
}

func (c *Conn) fail(op string, err error) error {
	if err == io.EOF {
		return err
	}
	return &net.OpError{Op: op, Net: "tcp", Source: c.local, Addr: c.remote, Err: err}
}

// Read implements net.Conn.
func (c *Conn) Read(p []byte) (int, error) {
	n := c.host.net
	n.mu.Lock()
	defer n.mu.Unlock()
	for {
		if c.lost != nil {
			return 0, c.fail("read", c.lost)
		}
		if c.late(c.readUntil) {
			return 0, c.fail("read", os.ErrDeadlineExceeded)
		}
		first, when := c.in.ready()
		switch {
		case c.host.paused:
			if first != nil && !first.counted {
				first.counted = true
				n.hits[Pause]++
			}
			when = time.Time{}
		case first != nil && first.end != nil:
			if first.end != io.EOF {
				c.lost = first.end
			}
			return 0, c.fail("read", first.end)
		case first != nil && len(p) == 0:
			return 0, nil
		case first != nil:
			took := copy(p, first.data)
			if first.data = first.data[took:]; len(first.data) == 0 {
				c.in.segments = c.in.segments[1:]
			}
			if c.in.bytes -= took; c.in.bytes+took >= buffer {
				c.in.moved.ring()
			}
			return took, nil
		}
		n.wait(c.in.moved, nil, earlier(when, c.readUntil))
	}
}

// Write implements net.Conn.
func (c *Conn) Write(p []byte) (int, error) {
	n := c.host.net
	n.mu.Lock()
	defer n.mu.Unlock()
	written := 0
	for {
		if c.lost == nil && c.in.reset() {
			// The reader notices it too, also on a paused host: gRPC uses a connection until its reader has
			// failed.
			c.lost = syscall.ECONNRESET
			c.in.moved.ring()
		}
		switch {
		case c.lost != nil:
			return written, c.fail("write", c.lost)
		case c.out.closed && n.carries(c.out.from.name, c.out.to.name) && n.carries(c.out.to.name, c.out.from.name):
			c.lost = syscall.EPIPE
			c.in.moved.ring()
			return written, c.fail("write", syscall.EPIPE)
		case c.late(c.writeUntil):
			return written, c.fail("write", os.ErrDeadlineExceeded)
		case len(p) == 0:
			return written, nil
		case !c.host.paused && c.out.bytes < buffer:
			took := min(len(p), buffer-c.out.bytes)
			sent, cut := c.send(p[:took])
			written += sent
			p = p[sent:]
			if cut {
				return written, c.fail("write", c.lost)
			}
			continue
		case c.host.paused:
			n.hits[Pause]++
		}
		n.wait(c.in.moved, nil, c.writeUntil)
	}
}

// send sends bytes, unless the connection is to be cut inside them.
func (c *Conn) send(p []byte) (sent int, cut bool) {
	n, out := c.host.net, c.out
	l := n.link(out.from.name, out.to.name)
	if l.cutAfter >= 0 && int64(len(p)) > l.cutAfter {
		p, cut = p[:l.cutAfter], true
		l.cutAfter = -1
		n.hits[Cut]++
	} else if l.cutAfter >= 0 {
		l.cutAfter -= int64(len(p))
	}
	l.passed += int64(len(p))
	if len(p) > 0 {
		data := append([]byte(nil), p...)
		if l.flipAfter >= int64(len(p)) {
			l.flipAfter -= int64(len(p))
		} else if l.flipAfter >= 0 {
			data[l.flipAfter] ^= 1 << n.rng.IntN(8)
			l.flipAfter = -1
			n.hits[Flip]++
		}
		out.segments = append(out.segments, segment{data: data, at: n.arrival(out.from.name, out.to.name)})
		out.bytes += len(p)
	}
	if cut {
		c.lost = syscall.ECONNRESET
		out.end(syscall.ECONNRESET, true)
		out.closed, c.in.closed = true, true
		delete(c.host.conns, c)
	} else if c.UserTimeout > 0 {
		c.watch()
	}
	c.in.moved.ring()
	return len(p), cut
}

// watch breaks the connection if the bytes sent now have not arrived after the user timeout.
func (c *Conn) watch() {
	n := c.host.net
	if n.carries(c.out.from.name, c.out.to.name) && n.carries(c.out.to.name, c.out.from.name) {
		return
	}
	time.AfterFunc(c.UserTimeout, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		if c.lost == nil && !(n.carries(c.out.from.name, c.out.to.name) && n.carries(c.out.to.name, c.out.from.name)) {
			c.lost = syscall.ETIMEDOUT
			c.in.moved.ring()
		}
	})
}

// reset reports whether a reset has arrived.
func (p *pipe) reset() bool {
	n := p.from.net
	for _, s := range p.segments {
		if s.end != nil && s.end != io.EOF && n.carries(p.from.name, p.to.name) && !time.Now().Before(s.at) {
			return true
		}
	}
	return false
}

// Close implements net.Conn.
func (c *Conn) Close() error {
	n := c.host.net
	n.mu.Lock()
	defer n.mu.Unlock()
	c.shut()
	c.in.moved.ring()
	return nil
}

func (c *Conn) shut() {
	if c.lost == nil {
		c.lost = net.ErrClosed
		c.out.end(io.EOF, true)
	}
	c.lost = net.ErrClosed
	c.in.closed = true
	delete(c.host.conns, c)
}

func (c *Conn) late(deadline time.Time) bool {
	return !deadline.IsZero() && !time.Now().Before(deadline)
}

// SetDeadline implements net.Conn.
func (c *Conn) SetDeadline(t time.Time) error { return c.deadlines(t, &c.readUntil, &c.writeUntil) }

// SetReadDeadline implements net.Conn.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.deadlines(t, &c.readUntil) }

// SetWriteDeadline implements net.Conn.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.deadlines(t, &c.writeUntil) }

func (c *Conn) deadlines(t time.Time, which ...*time.Time) error {
	c.host.net.mu.Lock()
	defer c.host.net.mu.Unlock()
	for _, deadline := range which {
		*deadline = t
	}
	c.host.net.stir()
	return nil
}

// LocalAddr implements net.Conn.
func (c *Conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr implements net.Conn.
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
