package sim

import (
	"context"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"

	"github.com/pecan-ml/pecan/service/dispatcher"
	"github.com/pecan-ml/pecan/service/dispatcher/core/fleet"
	"github.com/pecan-ml/pecan/tests/sim/simnet"
)

// options describe the cluster.
type options struct {
	seed    uint64
	workers int
	// clientTimeout replaces the default.
	clientTimeout time.Duration
	// slots is how many streams a worker runs at once.
	slots int
	// compactEvery is the number of records after which a snapshot replaces the journal.
	compactEvery int
	// cacheDir is a directory that all workers see.
	cacheDir string
	// chosen is set if decisions on caches are random.
	chosen bool
	// repeated is set if unary calls of trainers arrive more than once, also late.
	repeated bool
	// drain is how long a stopping worker serves what it holds.
	drain time.Duration
	// placed is set if there are prices. provided is set if a provider starts and stops the workers.
	placed, provided bool
	// locals is the most local workers that trainer 0 may run. The others are on another host if apart is set.
	locals int
	apart  bool
}

func (o options) dispatcher() dispatcher.Config {
	config := dispatcher.DefaultConfig()
	if o.compactEvery > 0 {
		config.CompactEvery = o.compactEvery
	}
	if o.clientTimeout > 0 {
		config.Core.ClientTimeout = o.clientTimeout
	}
	if o.provided {
		config.Core.Fleet = fleet.Limits{Provider: "sim", Max: o.workers, Idle: 2 * time.Second}
	}
	config.Core.DecideUnmeasured = o.chosen
	config.Core.NeverFollow = true
	config.Version = "sim"
	return config
}

// cluster is one dispatcher with its disk, workers and trainers, in a bubble.
type cluster struct {
	t       *testing.T
	options options
	log     *slog.Logger
	began   time.Time
	net     *simnet.Net
	disk    *disk
	random  *random
	// rng makes the choices of the test itself.
	rng *rand.Rand

	dispatcher *process
	clock      *pausableClock
	store      *simStore
	// starts counts the dispatcher's processes.
	starts int
	// workers has the remote ones first. workersMu guards its elements.
	workersMu sync.Mutex
	workers   []*process
	// machines start and stop the remote workers; nil if they always run.
	machines *machines
	// localsStopped counts the local workers that were stopped.
	localsStopped atomic.Int64
	proxy         *proxy
	ledger        *ledger
	// choices counts the decisions that cache a step.
	choices atomic.Int64
	// trainers has those that have not ended.
	trainersMu sync.Mutex
	trainers   map[*trainer]struct{}
	// jobs has what each job reads. loses has jobs that may abandon what a lost worker had started.
	jobs  map[string]*dataset
	loses map[string]bool
}

// simulate runs a test against a cluster in its own bubble. Nothing of the cluster may be left when the test
// returns: synctest fails for goroutines, and simulate counts the rest.
func simulate(t *testing.T, o options, test func(*cluster)) {
	t.Helper()
	if o.workers == 0 {
		o.workers = 2
	}
	if o.slots == 0 {
		o.slots = 4
	}
	out := newOutside()
	defer out.close()
	synctest.Test(t, func(t *testing.T) {
		log := discard()
		if testing.Verbose() && os.Getenv("SIM_LOG") != "" {
			log = slog.New(slog.NewTextHandler(t.Output(), nil))
		}
		c := &cluster{
			t: t, options: o, log: log, began: time.Now(), net: simnet.New(rand.New(rand.NewPCG(o.seed, 1))), disk: newDisk(out, rand.New(rand.NewPCG(o.seed, 2))),
			random: newRandom(o.seed, 3), rng: rand.New(rand.NewPCG(o.seed, 4)), workers: make([]*process, o.workers+o.locals), ledger: newLedger(t),
			trainers: map[*trainer]struct{}{}, jobs: map[string]*dataset{}, loses: map[string]bool{},
		}
		// A test that never ends would let the fake clock run forever.
		time.AfterFunc(100*time.Hour, func() { panic("the simulation did not end in 100 hours") })
		defer c.close()
		if o.provided {
			c.machines = &machines{c: c, rng: rand.New(rand.NewPCG(o.seed, 13)), starting: map[int]bool{}, desired: o.workers}
		}
		c.startDispatcher()
		if o.repeated {
			c.proxy = c.startProxy()
		}
		for n := range o.workers {
			c.startWorker(n)
		}
		test(c)
	})
}

// close ends the cluster in good order and checks for leaks.
func (c *cluster) close() {
	for _, trainer := range c.running() {
		trainer.stop()
	}
	if c.proxy != nil {
		c.proxy.end()
	}
	if c.machines != nil {
		c.machines.close()
	}
	for n, w := range c.workers {
		if w == nil {
			continue
		}
		if err := w.end(stopped); err != nil {
			c.t.Errorf("worker %d: %v", n, err)
		}
	}
	if err := c.stopDispatcher(); err != nil && !c.store.dead.Load() && c.disk.hits.Load() == 0 {
		c.t.Errorf("dispatcher: %v", err)
	}
	c.inspect()
	if open := c.net.Open(); open > 0 {
		c.t.Errorf("%d ends of connections are open", open)
	}
}

// running returns the trainers that have not ended.
func (c *cluster) running() []*trainer {
	c.trainersMu.Lock()
	defer c.trainersMu.Unlock()
	return slices.Collect(maps.Keys(c.trainers))
}

// repairAll ends every fault of the network, the disk and paused processes.
func (c *cluster) repairAll() {
	c.net.Heal()
	c.disk.broken.Store(nil)
	c.pauseDispatcher(false)
	for n := range c.workers {
		c.net.Host(workerIP(n)).Pause(false)
	}
}

// status asks the dispatcher as an operator would.
func (tr *trainer) status() *pecanv1.StatusResponse {
	tr.c.t.Helper()
	status, err := tr.session.Status(context.Background())
	if err != nil {
		tr.c.t.Fatalf("status: %v", err)
	}
	return status
}

// cacheFault returns readKind if a job reads its cache, and unfilledKind otherwise.
func (c *cluster) cacheFault() simnet.Fault {
	for _, job := range c.running()[0].status().GetJobs() {
		if strings.HasPrefix(job.GetCache().GetState(), "used") {
			return readKind
		}
	}
	return unfilledKind
}

// eventually waits, on the fake clock, until a condition holds.
func (c *cluster) eventually(what string, within time.Duration, holds func() bool) {
	c.t.Helper()
	for began := time.Now(); !holds(); time.Sleep(max(10*time.Millisecond, within/10_000)) {
		if time.Since(began) > within {
			c.t.Fatalf("not within %v: %s", within, what)
		}
	}
}
