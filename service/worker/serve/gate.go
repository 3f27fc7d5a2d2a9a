package serve

import (
	"container/list"
	"time"

	"github.com/pecan-ml/pecan/proto/reason"
)

// admission counts the connections of a listener.
type admission struct {
	// silent holds the connections before their hello, the oldest first.
	silent  list.List
	readers int
}

func (s *Server) admissionOf(c *conn) *admission {
	if c.unix != nil {
		return &s.local
	}
	return &s.remote
}

// add registers a connection. If too many are silent, it closes the oldest silent one. It returns false if the
// worker closes.
func (s *Server) add(c *conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return false
	}
	g := s.admissionOf(c)
	if g.silent.Len() >= maxSilent {
		oldest := g.silent.Remove(g.silent.Front()).(*conn)
		oldest.silentEntry = nil
		oldest.nc.Close()
		if kept, say := s.peers.allow(time.Now()); say {
			s.log.Warn("a silent connection is closed: too many are silent", "limit", maxSilent, "peer", oldest.nc.RemoteAddr(), "not_logged_before", kept)
		}
	}
	s.conns[c] = struct{}{}
	c.silentEntry = g.silent.PushBack(c)
	return true
}

// promote makes a silent connection a reader's, unless there are too many.
func (s *Server) promote(c *conn) *reason.Error {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.admissionOf(c)
	switch {
	case c.silentEntry == nil:
		// The connection was closed meanwhile.
	case g.readers >= MaxReaders:
		return reason.New(reason.ServiceLimit, "worker %s has %d readers, the limit is %d: start more workers, or try again later",
			s.identity, g.readers, MaxReaders)
	default:
		g.silent.Remove(c.silentEntry)
		c.silentEntry, c.reader = nil, true
		g.readers++
	}
	return nil
}

func (s *Server) remove(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.admissionOf(c)
	if c.silentEntry != nil {
		g.silent.Remove(c.silentEntry)
	}
	if c.reader {
		g.readers--
	}
	delete(s.conns, c)
}
