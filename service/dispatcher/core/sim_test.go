package core_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core"
	"github.com/pecan-ml/pecan/service/dispatcher/core/durable"
	"github.com/pecan-ml/pecan/service/dispatcher/core/fleet"
	"github.com/pecan-ml/pecan/service/dispatcher/core/placement"
	"github.com/pecan-ml/pecan/service/dispatcher/core/schedule"
)

var seeds = flag.Int("seeds", 100, "how many seeds TestSimulation tries")

// X1: workers and trainers of the core die, leave, lose connections, restart and share jobs. Then the received
// elements of every fully read pass are compared with the mode's guarantee. It is exactly once unless a trainer died, at
// least once, or at most once with all missing elements counted.
func TestSimulation(t *testing.T) {
	var truncated, belowWindow, carried, takenOver atomic.Int64
	var mu sync.Mutex
	var placed simPlaced
	t.Cleanup(func() {
		if *seeds >= 100 && min(placed.moved, placed.asked, placed.left, placed.locals, placed.refused, placed.unreached) < 20 {
			t.Errorf("placements had too little effect: %+v", placed)
		}
		if *seeds >= 100 && truncated.Load() == 0 {
			t.Error("no stream was truncated")
		}
		if *seeds >= 100 && belowWindow.Load() == 0 {
			t.Error("no reader requested elements below the window")
		}
		if *seeds >= 100 && takenOver.Load() < 50 {
			t.Errorf("trainers that had stopped reading released only %d streams", takenOver.Load())
		}
		if *seeds >= 100 && carried.Load() < 50 {
			t.Errorf("only %d passes went on with the batches of others", carried.Load())
		}
	})
	for seed := range uint64(*seeds) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			s := newSim(t, seed)
			for range 400 {
				s.step()
			}
			s.heal()
			s.check()
			truncated.Add(int64(s.truncated))
			carried.Add(int64(s.carried))
			belowWindow.Add(int64(s.belowWindow))
			takenOver.Add(int64(s.takenOver))
			if s.placing != nil {
				mu.Lock()
				defer mu.Unlock()
				placed.add(s.placing.did)
			}
		})
	}
}

// simWorker runs streams in no time. It has all elements of its streams, and reports them in steps.
type simWorker struct {
	id      string
	session core.SessionID
	held    map[string]*simHeld
	// trainer started it; empty if it is a remote worker.
	trainer string
	// askedToLeave is set if the dispatcher has asked it to leave in this session. It leaves until the given time if leaves is set.
	askedToLeave, leaves bool
	until                time.Duration
}

var modes = []pecanv1.Mode{
	pecanv1.Mode_MODE_EXACTLY_ONCE, pecanv1.Mode_MODE_EXACTLY_ONCE, pecanv1.Mode_MODE_AT_LEAST_ONCE, pecanv1.Mode_MODE_AT_MOST_ONCE,
}

type simHeld struct {
	id         *pecanv1.StreamId
	lease      uint64
	ended      bool
	read       bool
	acked      uint64
	start      *pecanv1.StartStream
	count, row uint64
}

type sim struct {
	*script
	rng     *rand.Rand
	mode    pecanv1.Mode
	closing bool
	all     bool
	plan    *pecanv1.Plan
	// lists is set if workers send lists.
	lists bool
	// mortal is set if trainers die too.
	mortal   bool
	workers  map[string]*simWorker
	clients  map[string]*simClient
	sessions map[core.SessionID]*simWorker
	watches  map[core.WatchID]*simPass
	// late are calls that reached the dispatcher once and may arrive again at any time.
	late []any
	ids  uint64
	// got counts how often each element reached a trainer, by job, epoch and stream.
	got map[string]map[uint64]int
	// runs are the runs of a stream with delivered elements, each with its elements in got.
	runs map[string][]string
	// belowWindow counts readers that needed elements below the window.
	belowWindow int
	// finished has the epochs that some client read to their end, by job.
	finished map[string]bool
	deaths   bool
	healing  bool
	// truncated counts streams that were truncated for a trainer.
	truncated int
	// resumed counts trainers that resumed after a kill. takenOver counts the streams that a trainer that had stopped
	// released.
	resumed, takenOver int
	// lines has the line of each job. joins has what the last closing stream of each pass joined. carried counts passes
	// whose batches went on in the next one.
	lines   map[string]string
	joins   map[string]*simJoin
	carried int
	// placing is nil if jobs have no objective.
	placing *simPlacing
}

// simPlan draws the streams of a simulation: mostly a few in one group, and sometimes more than the dispatcher keeps all
// entries of, in groups.
func simPlan(rng *rand.Rand, closing, all bool) *pecanv1.Plan {
	plan := &pecanv1.Plan{NumStreams: 4, AllOpen: all, Shuffled: rng.IntN(4) == 0}
	if closing {
		plan.BatchStrategy = pecanv1.BatchStrategy_BATCH_STRATEGY_CLOSING
	}
	if rng.IntN(3) == 0 {
		plan.NumStreams, plan.Group, plan.AllOpen = []int32{9, 65, 80, 130}[rng.IntN(4)], []int32{0, 3, 16}[rng.IntN(3)], false
	}
	for stream := range plan.TotalStreams() {
		plan.Cardinality += int64(countOf(stream))
	}
	return plan
}

func newSim(t *testing.T, seed uint64) *sim {
	s := &sim{
		script: newScript(t), rng: rand.New(rand.NewPCG(seed, 7)), workers: map[string]*simWorker{}, clients: map[string]*simClient{},
		sessions: map[core.SessionID]*simWorker{}, watches: map[core.WatchID]*simPass{},
		mode: modes[rand.New(rand.NewPCG(seed, 8)).IntN(len(modes))], got: map[string]map[uint64]int{}, runs: map[string][]string{}, finished: map[string]bool{}, lines: map[string]string{}, joins: map[string]*simJoin{}, closing: seed%2 == 0, all: seed%3 == 0, mortal: seed%5 == 0,
	}
	later := rand.New(rand.NewPCG(seed, 9))
	s.plan = simPlan(later, s.closing, s.all)
	s.plan.Shuffled = rand.New(rand.NewPCG(seed, 10)).IntN(2) == 0
	if s.plan.NumStreams > 9 && s.closing && s.mode == pecanv1.Mode_MODE_AT_LEAST_ONCE {
		// Every lost worker sends its streams again, until the last closing stream is read. That takes too long here.
		s.plan.NumStreams, s.plan.Cardinality = 9, 0
		for stream := range s.plan.TotalStreams() {
			s.plan.Cardinality += int64(countOf(stream))
		}
	}
	s.lists = later.IntN(2) == 0
	// Tenants and weights change which streams run, and no guarantee.
	s.cfg.Tenants = map[string]schedule.Tenant{}
	for i := range 3 {
		s.cfg.Tenants[fmt.Sprint("t", i)] = schedule.Tenant{Weight: 0.5 + float64(i), MaxSlots: i * 2, MaxSlotsPerJob: i % 2 * 3}
	}
	s.place(seed)
	s.core = core.New(s.cfg, durable.NewState())
	if s.mode == pecanv1.Mode_MODE_EXACTLY_ONCE && later.IntN(4) == 0 {
		s.mode = pecanv1.Mode_MODE_DETERMINISTIC
	}
	if s.carries() {
		s.setCarry()
	}
	s.feed(core.Start{ClusterID: "c"})
	s.feed(core.AddDataset{DerivedIDs: []string{"f"}, Fingerprint: "f", Spec: &pecanv1.DatasetSpec{}})
	return s
}

// countOf returns the number of elements of a stream.
func countOf(stream uint32) uint64 {
	if stream < 5 {
		return []uint64{5, 0, 12, 3, 2}[stream]
	}
	return uint64(stream % 3)
}

// feed passes an input to the core and performs the effects.
func (s *sim) feed(input any) (any, error) {
	s.t.Helper()
	result := s.decide(input)
	if s.placing != nil {
		s.checkPlaced(result.Records)
	}
	for _, effect := range result.Effects {
		switch e := effect.(type) {
		case core.Command:
			if w := s.sessions[e.Session]; w != nil && w.session == e.Session {
				for _, command := range s.commands(e) {
					s.command(w, command)
				}
			}
		case core.EndSession:
			delete(s.sessions, e.Session)
		case core.Update:
			if p := s.watches[e.Watch]; p != nil {
				s.applyUpdate(p, e.Message)
			}
		case core.EndWatch:
			delete(s.watches, e.Watch)
		case placement.Request:
			s.placing.asked = append(s.placing.asked, e)
		case fleet.Request:
			s.placing.request = &e
		}
	}
	return result.Reply, result.Err
}

func (s *sim) command(w *simWorker, m *pecanv1.WorkerCommand) {
	if over := m.GetStopStreams(); over != nil {
		for _, key := range sorted(w.held) {
			if id := w.held[key].id; id.JobId == over.JobId && id.Epoch == over.Epoch {
				delete(w.held, key)
			}
		}
	}
	if stop := m.GetStop(); stop != nil {
		if h := w.held[showID(stop.Id)]; h != nil && (stop.Lease == 0 || h.lease <= stop.Lease) {
			delete(w.held, showID(stop.Id))
		}
	}
	if m.GetLeave() != nil {
		s.placing.did.asked++
		w.askedToLeave = true
		s.departs(w)
	}
	if start := m.GetStart(); start != nil {
		h := w.held[showID(start.Id)]
		if h == nil || h.lease < start.Lease {
			if w.askedToLeave {
				s.t.Errorf("worker %s is to make %s after it was asked to leave", w.id, showID(start.Id))
			}
			s.checkPrefetch(w, start)
			h = &simHeld{id: start.Id, lease: start.Lease, count: countOf(start.Id.Stream)}
			if start.Id.Stream+1 < s.streams() && s.closing {
				h.row = uint64(start.Id.Stream % 3)
			}
			if s.isLast(start.Id.Stream) {
				// join counts its batches.
				h.count = 0
			}
			w.held[showID(start.Id)] = h
		}
		if h.lease == start.Lease {
			start.MergeRemainders(h.start)
			h.start = start
		}
	}
}

// checkPrefetch checks that a prefetched epoch that is not adopted has at most one stream on a worker.
func (s *sim) checkPrefetch(w *simWorker, start *pecanv1.StartStream) {
	for _, h := range w.held {
		if start.Prefetch && h.start.Prefetch && !h.ended && !h.start.RemainderOnly && h.id.JobId == start.Id.JobId && h.id.Epoch == start.Id.Epoch && h.id.Stream != start.Id.Stream {
			s.t.Errorf("worker %s is to run the prefetched %s and runs %s already", w.id, showID(start.Id), showID(h.id))
		}
	}
}

func (s *sim) step() {
	s.now += time.Duration(s.rng.IntN(300)) * time.Millisecond
	s.feed(core.Tick{})
	for _, w := range s.sortedWorkers() {
		if s.live(w) && !w.leaves {
			s.workerHeartbeat(w)
			s.workerMarks(w)
		}
	}
	for _, c := range s.sortedClients() {
		s.clientHeartbeat(c)
	}
	s.stepPlacing()
	s.fault()
	for range 3 {
		if s.rng.IntN(3) == 0 {
			s.workerProduces()
		}
		s.clientReads()
	}
	if s.rng.IntN(20) == 0 {
		s.checkReplay()
	}
}

// fault lets a peer come or go, in about every tenth step.
func (s *sim) fault() {
	switch n := s.rng.IntN(200); {
	case n < 8 && len(s.workers) < 4:
		s.newWorker()
	case n < 14 && !s.healing && len(s.clients) < 3:
		s.newClient()
	case n < 18:
		// A job with an objective has fewer workers, so it reads for longer. Too many deaths in a row would fail it.
		if !s.healing || s.placing == nil {
			s.killWorker()
		}
	case n < 22:
		s.hangUp()
	case n < 24 && !s.healing:
		s.restart()
	case n < 25 && !s.healing && s.mortal:
		s.killClient()
	case n < 28 && !s.healing:
		s.resumeClient()
	case n < 31:
		s.leaveWorker()
	case n < 37 && !s.healing:
		if c, ok := pickOne(s, s.sortedClients()); ok && c.name != "" {
			c.stopped = s.now + time.Duration(1+s.rng.IntN(60))*time.Second
		}
	}
}

func (s *sim) sortedWorkers() []*simWorker {
	var list []*simWorker
	for _, id := range sorted(s.workers) {
		list = append(list, s.workers[id])
	}
	return list
}

func (s *sim) sortedClients() []*simClient {
	var list []*simClient
	for _, id := range sorted(s.clients) {
		list = append(list, s.clients[id])
	}
	return list
}

func sorted[V any](m map[string]V) []string {
	var keys []string
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

func pickOne[V any](s *sim, list []V) (V, bool) {
	if len(list) == 0 {
		var none V
		return none, false
	}
	return list[s.rng.IntN(len(list))], true
}

func (s *sim) live(w *simWorker) bool { return s.sessions[w.session] == w }

func (s *sim) newID() uint64 {
	s.ids++
	return s.ids
}

// restart makes a new core from the durable records. Every connection breaks.
func (s *sim) restart() {
	s.core = core.New(s.cfg, s.replay())
	s.sessions, s.watches = map[core.SessionID]*simWorker{}, map[core.WatchID]*simPass{}
	if s.placing != nil {
		s.placing.asked, s.placing.request = nil, nil
	}
	s.feed(core.Start{ClusterID: "x"})
	for _, c := range s.sortedClients() {
		for _, p := range c.passes() {
			s.follow(p)
		}
	}
}
