package core_test

import (
	"fmt"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/dispatcher/core"
)

func (s *sim) openPass(c *simClient, ahead bool) *simPass { return s.openPassAt(c, ahead, nil) }

func (s *sim) openPassAt(c *simClient, ahead bool, position *pecanv1.Position) *simPass {
	answer, err := s.feed(&pecanv1.OpenEpochRequest{
		RequestId: fmt.Sprint("o", c.pass), ClientId: c.id, JobId: c.job, Pass: c.pass, Prefetch: ahead, Position: position,
	})
	if err != nil {
		s.t.Fatalf("open: %v", err)
	}
	response := answer.(*pecanv1.OpenEpochResponse)
	c.pass++
	if response.AlreadyDelivered {
		return nil
	}
	p := &simPass{client: c, epoch: response.Epoch, next: map[uint32]uint64{}, turn: map[uint32]uint64{}, lease: map[uint32]uint64{}, done: map[uint32]bool{}}
	s.follow(p)
	return p
}

func (p *simPass) id(stream uint32) *pecanv1.StreamId {
	return &pecanv1.StreamId{JobId: p.client.job, Epoch: p.epoch, Stream: stream}
}

// obey releases requested streams, and drops those that were taken away.
func (s *sim) obey(p *simPass) {
	listed := map[uint32]bool{}
	for _, st := range p.update.Streams {
		listed[st.Stream] = true
		if p.turn[st.Stream] != st.Assignment {
			p.turn[st.Stream], p.next[st.Stream] = st.Assignment, st.StartIndex
			delete(p.done, st.Stream)
		}
		next, reading := p.next[st.Stream]
		if before := p.lease[st.Stream]; st.Lease > before {
			p.lease[st.Stream] = st.Lease
			if before > 0 && s.mode == pecanv1.Mode_MODE_AT_LEAST_ONCE {
				// The stream may have other elements now.
				p.next[st.Stream], next, reading = st.StartIndex, st.StartIndex, true
				delete(p.done, st.Stream)
			}
		}
		if st.Truncated && reading && !p.done[st.Stream] {
			p.done[st.Stream] = true
			s.truncated++
			s.send(&pecanv1.FinishStreamRequest{ClientId: p.client.id, Id: p.id(st.Stream), Lease: st.Lease, Count: next, Assignment: st.Assignment})
			return
		}
		if st.Release && reading && !p.done[st.Stream] {
			delete(p.next, st.Stream)
			s.send(&pecanv1.ReleaseStreamRequest{ClientId: p.client.id, Id: p.id(st.Stream), Lease: st.Lease, NextIndex: next, Assignment: st.Assignment})
			return
		}
	}
	for stream := range p.next {
		if !listed[stream] {
			delete(p.next, stream)
		}
	}
}

func (s *sim) read(p *simPass) {
	for _, st := range p.update.Streams {
		next, reading := p.next[st.Stream]
		w := s.workers[st.Worker.GetWorkerId()]
		if !reading || p.done[st.Stream] || w == nil || st.Release {
			continue
		}
		id := p.id(st.Stream)
		h := w.held[showID(id)]
		if h == nil || h.lease != st.Lease || len(h.start.Remainders) > 0 && !h.ended {
			s.feed(&pecanv1.ReportWorkerRequest{ClientId: p.client.id, Id: id, Lease: st.Lease, WorkerId: st.Worker.GetWorkerId(), NextIndex: next})
			continue
		}
		key := fmt.Sprintf("%s/%d/%d", p.client.line, p.epoch, st.Stream)
		if s.got[key] == nil {
			s.got[key] = map[uint64]int{}
		}
		if s.mode == pecanv1.Mode_MODE_AT_LEAST_ONCE && (next < h.acked || !s.healing && s.rng.IntN(30) == 0) {
			// A reader with wrong information needs elements that its worker has dropped.
			s.feed(core.FromWorker{Session: w.session, Message: &pecanv1.WorkerMessage{Kind: &pecanv1.WorkerMessage_Failed{Failed: &pecanv1.StreamFailed{
				Id: id, Lease: h.lease, BelowWindow: true, Error: reason.New(reason.StaleLease, "element %d is below the window", next).Detail(),
			}}}})
			s.belowWindow++
			return
		}
		run := fmt.Sprintf("%s run %s/%d", key, p.client.job, h.lease)
		if s.got[run] == nil {
			s.got[run] = map[uint64]int{}
			s.runs[key] = append(s.runs[key], run)
		}
		for n := s.rng.IntN(4); n > 0 && next < h.count; n-- {
			s.got[key][next]++
			s.got[run][next]++
			next++
		}
		p.next[st.Stream], h.acked, h.read = next, max(h.acked, next), true
		if next == h.count && h.ended {
			p.done[st.Stream] = true
			s.send(&pecanv1.FinishStreamRequest{ClientId: p.client.id, Id: id, Lease: st.Lease, Count: next, Assignment: st.Assignment})
			return
		}
	}
}

func (s *sim) endPass(p *simPass) {
	if !p.update.NoMoreStreams {
		return
	}
	for _, st := range p.update.Streams {
		if !p.done[st.Stream] && !(st.Ended && st.Worker == nil) {
			return
		}
	}
	c := p.client
	s.lossIsCounted(p)
	c.current = nil
	s.finished[fmt.Sprintf("%s/%d", c.line, p.epoch)] = true
	if _, err := s.feed(&pecanv1.CloseEpochRequest{ClientId: c.id, JobId: c.job, Epoch: p.epoch}); err != nil {
		s.t.Fatalf("close: %v", err)
	}
}

// elements counts the elements of a pass.
func (s *sim) elements() (n uint64) {
	for stream := range s.streams() {
		n += countOf(stream)
	}
	return n
}

func (s *sim) streams() uint32 {
	if s.closing {
		return simStreams + 1
	}
	return simStreams
}

// heal stops the faults and lets everybody finish.
func (s *sim) heal() {
	s.healing = true
	for range 3 {
		s.newWorker()
	}
	for range 6_000 {
		if len(s.clients) == 0 {
			return
		}
		s.step()
	}
	s.t.Fatalf("trainers wait for ever: %v", s.core.Status(s.now))
}
