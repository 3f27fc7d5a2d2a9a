package dispatcher

import (
	"net"
	"sync"
	"sync/atomic"
)

// boundedListener closes connections above a limit at once. A peer that waits in a backlog could not know why.
type boundedListener struct {
	net.Listener
	most int64
	open atomic.Int64
}

// Accept returns the next connection within the limit.
func (b *boundedListener) Accept() (net.Conn, error) {
	for {
		conn, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if b.open.Add(1) <= b.most {
			return &countedConn{Conn: conn, gone: sync.OnceFunc(func() { b.open.Add(-1) })}, nil
		}
		b.open.Add(-1)
		conn.Close()
	}
}

// countedConn frees its place when it is closed.
type countedConn struct {
	net.Conn
	gone func()
}

// Close closes the connection.
func (c *countedConn) Close() error {
	c.gone()
	return c.Conn.Close()
}
