package core_test

import (
	"fmt"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/dispatcher/core"
	"google.golang.org/protobuf/proto"
)

func (s *sim) openPass(c *simClient, ahead bool) *simPass { return s.openPassAt(c, ahead, nil) }

func (s *sim) openPassAt(c *simClient, ahead bool, position *pecanv1.Position) *simPass {
	request := &pecanv1.OpenEpochRequest{
		RequestId: fmt.Sprint("o", c.pass), ClientId: c.id, JobId: c.job, Pass: c.pass, Prefetch: ahead, Position: position,
	}
	s.goesOn(c, request)
	answer, err := s.feed(request)
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
			s.finish(p, st, next)
			return
		}
		if st.Release && reading && !p.done[st.Stream] {
			if p.client.stopped > s.now {
				s.takenOver++
			}
			delete(p.next, st.Stream)
			s.send(&pecanv1.ReleaseStreamsRequest{ClientId: p.client.id, JobId: p.client.job, Epoch: p.epoch, Streams: []*pecanv1.ReleasedStream{
				{Stream: st.Stream, Lease: st.Lease, NextIndex: next, Assignment: st.Assignment},
			}})
			return
		}
	}
	for stream := range p.next {
		if !listed[stream] && !p.done[stream] {
			delete(p.next, stream)
		}
	}
}

func (s *sim) read(p *simPass) {
	for _, st := range p.update.Streams {
		next, reading := p.next[st.Stream]
		w := s.workers[p.on[st.Stream].GetWorkerId()]
		if !reading || p.done[st.Stream] || w == nil || st.Release {
			continue
		}
		id := p.id(st.Stream)
		h := w.held[showID(id)]
		if h == nil || h.lease != st.Lease || len(h.start.Remainders) > 0 && !h.ended || !s.reaches(p.client, w) {
			s.feed(&pecanv1.ReportWorkerRequest{ClientId: p.client.id, Id: id, Lease: st.Lease, WorkerId: p.on[st.Stream].GetWorkerId(), NextIndex: next})
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
			p.client.taken++
			next++
		}
		p.next[st.Stream], h.acked, h.read = next, max(h.acked, next), true
		if next == h.count && h.ended {
			p.done[st.Stream] = true
			s.finish(p, st, next)
			return
		}
	}
}

func (s *sim) endPass(p *simPass) {
	if !p.update.NoMoreStreams {
		return
	}
	for _, st := range p.update.Streams {
		if !p.done[st.Stream] && !(st.Ended && p.on[st.Stream] == nil) {
			return
		}
	}
	c := p.client
	s.lossIsCounted(p)
	c.current = nil
	s.finished[fmt.Sprintf("%s/%d", c.line, p.epoch)] = true
	if s.plan.Carry {
		c.last = p
		return
	}
	if _, err := s.feed(&pecanv1.CloseEpochRequest{ClientId: c.id, JobId: c.job, Epoch: p.epoch}); err != nil {
		s.t.Fatalf("close: %v", err)
	}
}

// elements counts the elements of a pass.
func (s *sim) elements(pass string) (n uint64) {
	for stream := range s.streams() {
		n += s.countIn(pass, stream)
	}
	return n
}

func (s *sim) streams() uint32 { return s.plan.TotalStreams() }

// applyUpdate applies an update. Differences become a whole list.
func (s *sim) applyUpdate(p *simPass, update *pecanv1.EpochUpdate) {
	streams := map[uint32]*pecanv1.ConsumerStream{}
	for _, stream := range p.update.GetStreams() {
		streams[stream.Stream] = stream
	}
	if update.Full {
		p.listed = map[uint32]bool{}
	}
	p.workers = append(p.workers, update.Workers...)
	if p.on == nil {
		p.on = map[uint32]*pecanv1.WorkerAddress{}
	}
	for _, stream := range update.Streams {
		delete(p.on, stream.Stream)
		if stream.WorkerNumber > 0 {
			p.on[stream.Stream] = p.workers[stream.WorkerNumber-1]
		}
		streams[stream.Stream] = stream
		if p.listed != nil {
			p.listed[stream.Stream] = true
		}
	}
	for _, stream := range update.Revoked {
		delete(streams, stream)
	}
	whole := proto.CloneOf(update)
	if !update.More && p.listed != nil {
		for number := range streams {
			if !p.listed[number] {
				delete(streams, number)
			}
		}
		p.listed = nil
	}
	whole.Streams = nil
	for number := range s.streams() {
		if streams[number] != nil {
			whole.Streams = append(whole.Streams, streams[number])
		}
	}
	if update.More {
		whole.NoMoreStreams, whole.Error = p.update.GetNoMoreStreams(), p.update.GetError()
	}
	p.update = whole
}

// finish reports that a trainer has a whole stream.
func (s *sim) finish(p *simPass, st *pecanv1.ConsumerStream, count uint64) {
	s.send(&pecanv1.FinishStreamsRequest{ClientId: p.client.id, JobId: p.client.job, Epoch: p.epoch, Streams: []*pecanv1.FinishedStream{
		{Stream: st.Stream, Lease: st.Lease, Count: count, Assignment: st.Assignment},
	}})
}

// heal stops the faults and lets everybody finish.
func (s *sim) heal() {
	s.healing = true
	for range 3 {
		s.newWorker()
	}
	for range 20_000 {
		if len(s.clients) == 0 {
			return
		}
		s.step()
	}
	s.t.Fatalf("trainers wait forever: %v", s.core.Status(s.now))
}
