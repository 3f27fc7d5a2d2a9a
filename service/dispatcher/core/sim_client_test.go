package core_test

import (
	"fmt"
	"slices"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core"
	"google.golang.org/protobuf/proto"
)

type simClient struct {
	id, job, name string
	// line names what the trainer reads over its lives: the first job of a trainer that resumes after a kill.
	line string
	// pass is the number of the next pass to open.
	pass uint64
	// current is being read; ahead is prefetched and perhaps never read.
	current, ahead *simPass
	// last was read to its end, and is closed when the next pass is open.
	last *simPass
	// stopped is the time before which its training loop reads nothing. It still releases streams and sends heartbeats.
	stopped time.Duration
	// taken counts its elements.
	taken uint64
}

// simPass is a pass of a trainer over an epoch.
type simPass struct {
	client *simClient
	epoch  uint64
	watch  core.WatchID
	update *pecanv1.EpochUpdate
	// workers are those that differences have named. listed has the streams of a full update that comes in parts.
	workers []*pecanv1.WorkerAddress
	listed  map[uint32]bool
	// on has the worker of each stream.
	on    map[uint32]*pecanv1.WorkerAddress
	next  map[uint32]uint64
	turn  map[uint32]uint64
	lease map[uint32]uint64
	done  map[uint32]bool
	// joins has the rows of earlier epochs. carry has those for the next one. wasCarried is set if the pass began at a
	// position that has carry.
	joins, carry []*pecanv1.KeptRows
	wasCarried   bool
	// unreported is set if the pass was prefetched and is read now, and the dispatcher does not know that.
	unreported bool
}

func (c *simClient) passes() []*simPass {
	var all []*simPass
	for _, p := range []*simPass{c.last, c.current, c.ahead} {
		if p != nil {
			all = append(all, p)
		}
	}
	return all
}

func (s *sim) newClient() {
	c := &simClient{id: fmt.Sprint("c", s.newID())}
	if s.rng.IntN(3) > 0 {
		c.name = "shared"
	}
	s.createJobOf(c)
	c.line = c.job
	s.lines[c.job] = c.line
}

func (s *sim) createJobOf(c *simClient) {
	req := &pecanv1.CreateJobRequest{RequestId: "r", ClientId: c.id, DatasetId: "f", JobName: c.name, Options: &pecanv1.JobOptions{Mode: s.mode, Tenant: "t1", Weight: 2}}
	if c.name == "" {
		req.Options.Tenant, req.Options.Weight = fmt.Sprint("t", len(c.id)%3), float64(1+len(s.clients))
	}
	s.objective(c, req.Options)
	plan := proto.CloneOf(s.plan)
	if s.mode == pecanv1.Mode_MODE_AT_LEAST_ONCE {
		plan.Determinism = pecanv1.DeterminismClass_DETERMINISM_CLASS_C
	}
	answer, err := s.feed(core.CreateJob{Request: req, JobID: fmt.Sprint("j", s.newID()), Plan: plan})
	if err != nil {
		s.t.Fatalf("create job: %v", err)
	}
	c.job = answer.(*pecanv1.CreateJobResponse).JobId
	s.clients[c.id] = c
}

func (s *sim) killClient() {
	if c, ok := pickOne(s, s.sortedClients()); ok {
		delete(s.clients, c.id)
		for _, p := range c.passes() {
			delete(s.watches, p.watch)
			s.feed(core.Unwatch{ID: p.watch})
		}
		s.deaths = true
	}
}

// resumeClient kills a trainer and starts it again from its saved position.
func (s *sim) resumeClient() {
	old, ok := pickOne(s, s.sortedClients())
	if !ok || old.name != "" || old.current == nil {
		return
	}
	delete(s.clients, old.id)
	for _, p := range old.passes() {
		delete(s.watches, p.watch)
		s.feed(core.Unwatch{ID: p.watch})
	}
	position := &pecanv1.Position{Epoch: old.current.epoch}
	for stream := range s.streams() {
		position.Next = append(position.Next, old.current.next[stream])
		if old.current.done[stream] {
			position.Ended = append(position.Ended, stream)
		}
	}
	if s.mode == pecanv1.Mode_MODE_AT_LEAST_ONCE {
		// Runs do not repeat each other: unfinished streams restart, with the rows of closing streams.
		if s.closing && !old.current.done[s.streams()-1] {
			position.Ended = nil
		}
		for stream := range position.Next {
			if !slices.Contains(position.Ended, uint32(stream)) {
				position.Next[stream] = 0
			}
		}
	}
	c := &simClient{id: fmt.Sprint("c", s.newID()), line: old.line, pass: old.pass}
	s.createJobOf(c)
	s.lines[c.job] = c.line
	old.current.rows(position)
	request := position
	if s.plan.Group > 0 {
		request = sparse(position)
	}
	c.current = s.openPassAt(c, false, request)
	// The trainer may be killed again before it learns its position.
	for stream, next := range position.Next {
		c.current.next[uint32(stream)] = next
	}
	for _, stream := range position.Ended {
		c.current.done[stream] = true
	}
	c.current.joins, c.current.wasCarried, c.current.carry = position.Joins, position.Carried, position.Carry
	s.resumed++
}

// sparse returns a position in the form of plans with groups.
func sparse(position *pecanv1.Position) *pecanv1.Position {
	p := &pecanv1.Position{
		Epoch: position.Epoch, EndedBits: make([]byte, (len(position.Next)+7)/8), Joins: position.Joins, Carried: position.Carried, Carry: position.Carry,
	}
	for _, stream := range position.Ended {
		p.EndedBits[stream/8] |= 1 << (stream % 8)
		p.EndedElements += position.Next[stream]
	}
	last := uint32(0)
	for stream, next := range position.Next {
		if next > 0 && !slices.Contains(position.Ended, uint32(stream)) {
			p.Begun, p.BegunNext = append(p.Begun, uint32(stream)-last), append(p.BegunNext, next)
			last = uint32(stream)
		}
	}
	return p
}

func (s *sim) clientHeartbeat(c *simClient) {
	heartbeat := &pecanv1.ClientHeartbeatRequest{ClientId: c.id, JobIds: []string{c.job}, ClientTimeoutS: s.cfg.ClientTimeout.Seconds()}
	for _, p := range c.passes() {
		heartbeat.Passes = append(heartbeat.Passes, &pecanv1.ClientHeartbeatRequest_Pass{
			JobId: c.job, Epoch: p.epoch, Elements: c.taken, Starved: p == c.current && s.rng.IntN(2) == 0 && c.stopped <= s.now,
		})
	}
	s.describe(c, heartbeat)
	answer, err := s.feed(heartbeat)
	if err != nil {
		s.t.Fatalf("client %s: %v", c.id, err)
	}
	s.wantLocal(c, answer.(*pecanv1.ClientHeartbeatResponse))
}

func (s *sim) follow(p *simPass) {
	p.watch, p.workers = core.WatchID(s.newID()), nil
	s.watches[p.watch] = p
	if _, err := s.feed(core.Watch{ID: p.watch, Request: &pecanv1.WatchEpochRequest{ClientId: p.client.id, JobId: p.client.job, Epoch: p.epoch}}); err != nil {
		s.t.Fatalf("watch: %v", err)
	}
}

// clientReads lets a trainer do one thing: open or adopt a pass, follow an update, read, or end the pass.
func (s *sim) clientReads() {
	s.repeatLate()
	c, ok := pickOne(s, s.sortedClients())
	if !ok {
		return
	}
	switch {
	case c.current == nil && s.leaves(c):
		return
	case c.current == nil && c.ahead != nil:
		c.current, c.ahead = c.ahead, nil
		c.current.unreported = true
		c.current.adopts(c.last)
		s.closeLast(c)
	case c.current == nil:
		c.current = s.openPass(c, false)
		if c.current != nil {
			c.current.adopts(c.last)
		}
		s.closeLast(c)
		return
	case c.ahead == nil && !s.healing && s.rng.IntN(4) == 0:
		c.ahead = s.openPass(c, true)
	}
	if c.current.unreported && s.rng.IntN(3) == 0 {
		// The call may have been delayed and repeated.
		c.current.unreported = false
		adopt := &pecanv1.AdoptEpochRequest{ClientId: c.id, JobId: c.job, Epoch: c.current.epoch}
		if _, err := s.feed(adopt); err != nil {
			s.t.Fatalf("adopt: %v", err)
		}
		s.late = append(s.late, adopt)
	}
	for _, p := range c.passes() {
		if p.update == nil {
			continue
		}
		if p.update.Error != nil {
			s.t.Fatalf("client %s: %v", c.id, p.update.Error)
		}
		s.obey(p)
		if p == c.current && (c.stopped <= s.now || s.healing) {
			s.read(p)
			s.endPass(p)
		}
	}
}

// send makes a call whose copy may arrive again later.
func (s *sim) send(call any) {
	if _, err := s.feed(call); err != nil {
		s.t.Fatalf("%v: %v", call, err)
	}
	if s.rng.IntN(2) == 0 {
		s.late = append(s.late, call)
	}
}

// repeatLate repeats an old call. The core may refuse it, and it must change nothing.
func (s *sim) repeatLate() {
	if len(s.late) == 0 || s.rng.IntN(3) > 0 {
		return
	}
	at := s.rng.IntN(len(s.late))
	call := s.late[at]
	s.late = slices.Delete(s.late, at, at+1)
	// Everything that is due happens first. A tick may leave something to the next one.
	before := -1
	for before != len(s.records) {
		before = len(s.records)
		s.feed(core.Tick{})
	}
	s.feed(call)
	for _, record := range s.records[before:] {
		s.t.Errorf("a call that came again, %v, gave %s", call, showRecord(record))
	}
}

// leaves lets a trainer that has read enough leave, with its prefetched pass.
func (s *sim) leaves(c *simClient) bool {
	if c.pass <= 6 && !(s.healing && c.pass > 0) {
		return false
	}
	s.feed(&pecanv1.ClientGoodbyeRequest{ClientId: c.id})
	delete(s.clients, c.id)
	return true
}
