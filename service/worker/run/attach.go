package run

import (
	"context"
	"time"

	"github.com/pecan-ml/pecan/service/graph/split"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/worker/window"
)

// attach makes c the reader of the stream, unless the current reader's OPEN is newer. OPENs look for their
// stream concurrently, and a late one may belong to an abandoned connection.
//
// Elements below clean have not failed. The run restarts if it no longer holds the index start, or if start is far
// ahead of it. If another run may produce other elements, none is started: the dispatcher then abandons the stream or
// has it sent from its start.
func (s *Stream) attach(c window.Reader, start, clean uint64) *reason.Error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return reason.New(reason.StreamUnknown, "stream %d was taken from worker %s", s.key.Stream, s.streams.Identity)
	}
	if c.Lease() < s.lease {
		return reason.New(reason.StaleLease, "lease %d of stream %d is over, worker %s holds lease %d", c.Lease(), s.key.Stream, s.streams.Identity, s.lease)
	}
	target := s.run.window
	if c.Remainder() {
		if s.remainder == nil {
			return reason.New(reason.BadArgument, "stream %d has no remainder", s.key.Stream)
		}
		target = s.remainder
	}
	// This check comes first: an older OPEN must not end what another reader reads.
	if target.NewerReader(c) {
		return reason.New(reason.Closed, "another reader opened stream %d", s.key.Stream)
	}
	if s.belowWindow == nil && !c.Remainder() && !split.IsRepeatable(s.command.GetPlan()) && !s.run.window.Holds(start) {
		s.belowWindow = reason.New(reason.StaleLease, "stream %d no longer holds element %d, and another run may produce a different one", s.key.Stream, start)
		s.log.Info("the stream cannot continue: the elements that the reader wants are no longer held", "start_index", start)
		s.streams.Dispatcher.Send(s.failure(s.belowWindow, true))
	}
	if s.belowWindow != nil {
		return s.belowWindow
	}
	c.Bind(target)
	s.read, s.drained = true, false
	begin := s.beginning(start, max(clean, s.run.window.CleanBelow()))
	far := !c.Remainder() && s.run.isFarAhead(begin.start)
	var old window.Reader
	ok := false
	if !far {
		old, ok = target.Attach(c, start)
	}
	if !ok {
		s.log.Info("the stream runs again: the elements that the reader wants are no longer held, or far ahead", "start_index", start, "from", begin.start)
		s.startRun(reason.New(reason.Closed, "stream %d restarts for another reader", s.key.Stream), begin)
		c.Bind(s.run.window)
		s.run.window.Attach(c, start)
	}
	if old != nil && old != c {
		old.Refuse(reason.New(reason.Closed, "another reader opened stream %d", s.key.Stream))
	}
	return nil
}

// openWait bounds how long a reader waits for a stream if it was faster than the dispatcher's command.
const openWait = 5 * time.Second

// find returns the stream if it is held under the reader's lease or a newer one.
func (ss *Streams) find(ctx context.Context, key pecanv1.StreamKey, lease uint64) (*Stream, *reason.Error) {
	timeout := time.NewTimer(openWait)
	defer timeout.Stop()
	for {
		ss.mu.Lock()
		s, arrived := ss.streams[key], ss.arrived
		ss.mu.Unlock()
		var changed <-chan struct{}
		if s != nil {
			now, next := s.leaseAndChange()
			if now >= lease {
				return s, nil
			}
			changed = next
		}
		select {
		case <-arrived:
		case <-changed:
		case <-ctx.Done():
			return nil, reason.New(reason.Closed, "the connection ended")
		case <-timeout.C:
			return nil, reason.New(reason.StreamUnknown, "worker %s does not hold %s under lease %d", ss.Identity, key, lease)
		}
	}
}

// Attach makes c the reader of the stream that an OPEN requests. It waits up to openWait for a stream that has
// not arrived yet.
func (ss *Streams) Attach(ctx context.Context, request *pecanv1.OpenStream, c window.Reader) *reason.Error {
	s, refusal := ss.find(ctx, request.GetId().Key(), c.Lease())
	if refusal != nil {
		return refusal
	}
	return s.attach(c, request.GetStartIndex(), request.GetCleanBelow())
}
