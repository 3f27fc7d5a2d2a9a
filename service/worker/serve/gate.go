package serve

import (
	"container/list"
	"time"

	"github.com/pecan-ml/pecan/proto/reason"
)

// gate counts the connections of a listener.
type gate struct {
	// silent has those before their hello, the oldest first.
	silent  list.List
	readers int
}

func (s *Server) gateOf(c *conn) *gate {
	if c.unix != nil {
		return &s.local
	}
	return &s.remote
}

// add takes a connection in and hangs up on the oldest silent one when there are too many; false when the worker closes.
func (s *Server) add(c *conn) bool {
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
			s.log.Warn("hang up on a connection that says nothing: too many do", "limit", maxSilent, "peer", oldest.nc.RemoteAddr(), "not_logged_before", kept)
		}
	}
	s.conns[c] = struct{}{}
	c.place = g.silent.PushBack(c)
	return true
}

// greeted makes a silent connection a reader's, unless there are too many.
func (s *Server) greeted(c *conn) *reason.Error {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.gateOf(c)
	switch {
	case c.place == nil:
		// It was hung up on meanwhile.
	case g.readers >= MaxReaders:
		return reason.New(reason.ServiceLimit, "worker %s has %d readers, and takes no more than %d: start more workers, or try again when some have left",
			s.identity, g.readers, MaxReaders)
	default:
		g.silent.Remove(c.place)
		c.place, c.reader = nil, true
		g.readers++
	}
	return nil
}

func (s *Server) remove(c *conn) {
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
