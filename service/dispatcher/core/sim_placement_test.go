package core_test

import (
	"math/rand/v2"
	"strings"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/fleet"
	"github.com/pecan-ml/pecan/service/dispatcher/core/placement"
)

// In half of the simulations jobs have an objective, and random decisions on their workers arrive. In half of these, a provider
// starts and stops the remote workers. In half of these, trainers start and stop local ones. In half of these, local workers listen
// at loopback addresses. Sometimes a trainer cannot reach a worker for a while.

type simPlacing struct {
	// rng leaves the choices of all other parts of a simulation as they are without placements.
	rng              *rand.Rand
	locals, loopback bool
	// lost has until when trainers cannot reach workers.
	lost map[[2]string]time.Duration
	// asked are the requests for decisions without an answer. wanted has how many local workers each trainer should run.
	asked  []placement.Request
	wanted map[string]int
	// request is what the provider is asked for by this dispatcher, and desired what it was asked for last by any. It can give
	// most workers now.
	request       *fleet.Request
	desired, most int
	// reported counts the sub-windows of each trainer.
	reported map[string]uint64
	did      simPlaced
}

// simPlaced counts what placements did.
type simPlaced struct{ moved, asked, left, locals, refused, unreached int }

func (p *simPlaced) add(o simPlaced) {
	p.moved, p.asked, p.left, p.locals, p.refused = p.moved+o.moved, p.asked+o.asked, p.left+o.left, p.locals+o.locals, p.refused+o.refused
	p.unreached += o.unreached
}

// place draws whether jobs have an objective.
func (s *sim) place(seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 10))
	if rng.IntN(2) == 0 {
		return
	}
	s.placing = &simPlacing{rng: rng, locals: rng.IntN(2) == 0, wanted: map[string]int{}, reported: map[string]uint64{}, lost: map[[2]string]time.Duration{}}
	s.placing.loopback = s.placing.locals && seed%4 < 2
	if rng.IntN(2) == 0 {
		s.cfg.Fleet = fleet.Limits{Provider: "sim", Min: rng.IntN(2), Max: 2 + rng.IntN(3), Idle: time.Duration(rng.IntN(3)) * time.Second}
	}
	s.plan.Resume = &pecanv1.Resume{Strategy: []pecanv1.Resume_Strategy{pecanv1.Resume_SEEK, pecanv1.Resume_PARTIAL, pecanv1.Resume_RECOMPUTE}[rng.IntN(3)]}
}

func (s *sim) provided() bool { return s.cfg.Fleet.Provider != "" }

// objective gives most jobs an objective. All trainers of a shared job must ask for the same one.
func (s *sim) objective(c *simClient, options *pecanv1.JobOptions) {
	if p := s.placing; p != nil && (c.name != "" || p.rng.IntN(4) > 0) {
		options.Placement, options.Sharding = &pecanv1.PlacementOptions{Objective: "cost"}, pecanv1.Sharding_SHARDING_DYNAMIC
	}
}

// hostOf returns the host of a trainer.
func hostOf(c *simClient) string {
	if strings.HasSuffix(c.id, "7") {
		return "another host"
	}
	return "host"
}

// reaches reports whether a trainer reaches a worker.
func (s *sim) reaches(c *simClient, w *simWorker) bool {
	p := s.placing
	return p == nil || !(p.loopback && w.trainer != "" && hostOf(c) != "host") && (s.healing || s.now >= p.lost[[2]string{c.id, w.id}])
}

// describe completes a heartbeat of a trainer with what placements measure. Most trainers are on one host.
func (s *sim) describe(c *simClient, heartbeat *pecanv1.ClientHeartbeatRequest) {
	p := s.placing
	if p == nil {
		return
	}
	heartbeat.HostId, heartbeat.TrainerId = hostOf(c), c.id
	if p.locals {
		heartbeat.LocalWorkers = &pecanv1.LocalWorkers{Most: 2, Running: uint32(len(s.localsOf(c.id)))}
	}
	if c.current != nil && c.stopped <= s.now {
		p.reported[c.id]++
		heartbeat.SubWindows = []*pecanv1.SubWindow{{Number: p.reported[c.id], Seconds: 0.1, Elements: 1}}
	}
}

// wantLocal lets a trainer take over how many local workers it should run.
func (s *sim) wantLocal(c *simClient, answer *pecanv1.ClientHeartbeatResponse) {
	if w := answer.GetLocalWorkers(); w != nil && s.placing != nil {
		s.placing.wanted[c.id] = int(w.Number)
	}
}

// localsOf returns the local workers of a trainer that do not leave, the oldest first.
func (s *sim) localsOf(trainer string) (list []*simWorker) {
	for _, w := range s.sortedWorkers() {
		if w.trainer == trainer && !w.leaves {
			list = append(list, w)
		}
	}
	return list
}

// stepPlacing answers requests, lets trainers and the provider start and stop workers, and continues departures.
func (s *sim) stepPlacing() {
	p := s.placing
	if p == nil {
		return
	}
	if list := s.sortedClients(); len(list) > 0 && p.rng.IntN(20) == 0 {
		c := list[p.rng.IntN(len(list))]
		for _, id := range sorted(s.workers) {
			if p.rng.IntN(3) == 0 {
				p.lost[[2]string{c.id, id}] = s.now + time.Duration(p.rng.IntN(60_000))*time.Millisecond
			}
		}
	}
	asked := p.asked
	p.asked = nil
	for _, request := range asked {
		if p.rng.IntN(3) == 0 {
			p.asked = append(p.asked, request)
			continue
		}
		s.feed(p.placed(request))
	}
	for _, c := range s.sortedClients() {
		wanted, decided := p.wanted[c.id]
		switch running := s.localsOf(c.id); {
		case !decided || p.rng.IntN(3) == 0:
		case len(running) < wanted:
			p.did.locals++
			s.startWorker(c.id)
		case len(running) > wanted:
			s.departs(running[len(running)-1])
		}
	}
	for _, w := range s.sortedWorkers() {
		switch {
		case w.trainer != "" && s.clients[w.trainer] == nil:
			// It ends with its trainer.
			s.loseWorker(w)
		case w.leaves && s.live(w):
			s.departure(w)
		case w.leaves && s.now >= w.until:
			s.loseWorker(w)
		}
	}
	if s.provided() && p.rng.IntN(3) == 0 {
		s.provide()
	}
}

// placed draws a decision.
func (p *simPlacing) placed(r placement.Request) placement.Placed {
	placed := placement.Placed{Number: r.Number, JobID: r.JobID}
	if p.rng.IntN(8) == 0 {
		return placed
	}
	d := &pecanv1.Placement{Remote: uint32(p.rng.IntN(r.Remote + 1)), Local: uint32(p.rng.IntN(r.Local + 1)), State: "search", Why: "drawn"}
	if d.Converged = p.rng.IntN(3) == 0; d.Converged {
		d.State = "monitor"
		placed.Known = &pecanv1.PlacementKnown{Remote: d.Remote, Local: d.Local}
	}
	placed.Placement = d
	return placed
}

// provide lets the provider do what it is asked for, and answer. It may be away, and may have too few machines.
func (s *sim) provide() {
	p := s.placing
	if !s.healing && p.rng.IntN(5) == 0 {
		s.feed(fleet.Answer{Asked: p.request, Error: "away"})
		return
	}
	if p.most = s.cfg.Fleet.Max; !s.healing && p.rng.IntN(3) == 0 {
		p.most = p.rng.IntN(p.most)
	}
	leaving := map[string]bool{}
	if p.request != nil {
		p.desired = p.request.Desired
		for _, address := range p.request.Leaving {
			leaving[address] = true
		}
	}
	state := fleet.State{Desired: p.desired}
	for _, w := range s.sortedWorkers() {
		address := w.id + ":1"
		switch {
		case w.trainer != "":
		case leaving[address] || w.leaves:
			s.departs(w)
			state.Leaving = append(state.Leaving, address)
		default:
			state.Ready++
			state.Removable = append(state.Removable, address)
		}
	}
	for ; p.request != nil && state.Ready < min(p.desired, p.most); state.Ready++ {
		s.startWorker("")
	}
	if state.Requested = max(p.desired-state.Ready, 0); state.Requested > 0 && p.request != nil {
		state.Stuck, state.Why = state.Requested, "no machine is left"
		p.did.refused++
	}
	s.feed(fleet.Answer{Asked: p.request, State: state})
}

// departs begins the departure of a worker.
func (s *sim) departs(w *simWorker) {
	if !w.leaves {
		w.leaves, w.until = true, s.now+time.Duration(s.placing.rng.IntN(10_000))*time.Millisecond
	}
}

// departure continues a departure. The worker says goodbye when it has handed over its streams, or when the time is over.
func (s *sim) departure(w *simWorker) {
	loads := s.leavingLoads(w, s.placing.rng)
	s.leaving(w, loads)
	over := true
	for _, h := range w.held {
		over = over && h.ended && h.acked >= h.count
	}
	if over || s.now >= w.until {
		s.placing.did.left++
		s.goodbye(w)
	}
}

// checkPlaced checks what a decision did to streams because of a placement.
func (s *sim) checkPlaced(records []*pecanv1.Record) {
	for _, record := range records {
		lost := record.GetLeaseLost()
		if strings.Contains(lost.GetWhy(), "not read it from worker") {
			s.placing.did.unreached++
		}
		if why := lost.GetWhy(); !strings.HasSuffix(why, "no longer serves the job") && !strings.HasSuffix(why, "serves other trainers only") {
			continue
		}
		s.placing.did.moved++
		if lost.Truncated {
			s.t.Errorf("a placement has truncated %s: %s", showID(lost.Id), lost.Why)
		}
	}
}
