package sim

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/pecan-ml/pecan/tests/sim/simnet"
)

// fault is something that can go wrong at a random moment. do breaks something for the given time and repairs it.
// It returns false if nothing could be broken, or it was broken already.
type fault struct {
	name string
	do   func(c *chaos, rng *rand.Rand, lasts time.Duration) bool
}

const killTrainer = "kill a trainer"

// Kinds of faults that the network does not count itself.
const (
	stopKind   simnet.Fault = "stop"
	crashKind  simnet.Fault = "crash of the dispatcher at its disk"
	diskKind   simnet.Fault = "disk"
	repeatKind simnet.Fault = "repeated call"
	leaveKind  simnet.Fault = "trainer killed"
	// lostKind counts elements that mode at-most-once lost.
	lostKind simnet.Fault = "elements lost"
	// abandonedKind counts streams that a trainer abandoned by itself.
	abandonedKind simnet.Fault = "streams abandoned by trainers"
	// readKind means that an epoch read a cache. unfilledKind means that a cache could not be written for good.
	readKind     simnet.Fault = "cache read"
	unfilledKind simnet.Fault = "cache not filled"
	// chosenKind counts the decisions to cache a step.
	chosenKind simnet.Fault = "cache chosen"
)

// chaos breaks things while a test runs.
type chaos struct {
	*cluster
	mu sync.Mutex
	// busy has what is broken now. Two faults of one process count as one.
	busy map[string]bool
	hits map[simnet.Fault]int
	all  []*trainer
	// readers is the planned number of trainers.
	readers int
	wg      sync.WaitGroup
}

func newChaos(c *cluster, readers int) *chaos {
	return &chaos{cluster: c, readers: readers, busy: map[string]bool{}, hits: map[simnet.Fault]int{}}
}

// reserve reserves a target for a fault. It returns false if another fault has it.
func (c *chaos) reserve(what string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.busy[what] {
		return false
	}
	c.busy[what] = true
	return true
}

func (c *chaos) release(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.busy, what)
}

func (c *chaos) hit(kind simnet.Fault) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hits[kind]++
}

// happened returns the faults that had an effect in this run.
func (c *chaos) happened() map[simnet.Fault]int {
	hits := c.net.Hits()
	for kind, n := range c.hits {
		hits[kind] += n
	}
	hits[diskKind] += int(c.disk.hits.Load())
	if c.proxy != nil {
		hits[repeatKind] += int(c.proxy.repeats.Load())
	}
	if c.machines != nil {
		c.machines.count(hits)
	}
	hits[localKind] = int(c.localsStopped.Load())
	return hits
}

var faults = []fault{
	{"end a worker", func(c *chaos, rng *rand.Rand, lasts time.Duration) bool {
		n, how := rng.IntN(len(c.workers)), end(rng.IntN(3))
		if !c.reserve(workerIP(n)) {
			return false
		}
		defer c.release(workerIP(n))
		ran, err := c.endWorker(n, how)
		if err != nil {
			c.t.Errorf("worker %d: %v", n, err)
		}
		if ran && how == stopped {
			c.hit(stopKind)
		}
		if c.machines == nil && n < c.options.workers {
			time.Sleep(lasts)
			c.startWorker(n)
		}
		return ran
	}},
	{"pause a worker", func(c *chaos, rng *rand.Rand, lasts time.Duration) bool {
		n := rng.IntN(len(c.workers))
		if !c.reserve(workerIP(n)) {
			return false
		}
		defer c.release(workerIP(n))
		host := c.net.Host(workerIP(n))
		host.Pause(true)
		time.Sleep(lasts)
		host.Pause(false)
		return true
	}},
	{"end the dispatcher", func(c *chaos, rng *rand.Rand, lasts time.Duration) bool {
		how := end(rng.IntN(3))
		if !c.reserve(dispatcherIP) {
			return false
		}
		defer c.release(dispatcherIP)
		if how == stopped {
			if err := c.stopDispatcher(); err != nil {
				c.t.Errorf("stop the dispatcher: %v", err)
			}
			c.hit(stopKind)
		} else {
			c.crashDispatcher(how)
		}
		time.Sleep(lasts)
		c.startDispatcher()
		return true
	}},
	{"crash the dispatcher at its disk", func(c *chaos, rng *rand.Rand, lasts time.Duration) bool {
		at, how := point(rng.IntN(3)), end(1+rng.IntN(2))
		if !c.reserve(dispatcherIP) {
			return false
		}
		defer c.release(dispatcherIP)
		if !c.crashAt(at, how, lasts) {
			return false
		}
		c.hit(crashKind)
		time.Sleep(lasts)
		c.startDispatcher()
		return true
	}},
	{"pause the dispatcher", func(c *chaos, rng *rand.Rand, lasts time.Duration) bool {
		if !c.reserve(dispatcherIP) {
			return false
		}
		defer c.release(dispatcherIP)
		c.pauseDispatcher(true)
		time.Sleep(lasts)
		c.pauseDispatcher(false)
		return true
	}},
	{"break the disk", func(c *chaos, rng *rand.Rand, lasts time.Duration) bool {
		why := &errFull
		if rng.IntN(2) == 0 {
			why = &errBroken
		}
		if !c.reserve(dispatcherIP) {
			return false
		}
		defer c.release(dispatcherIP)
		c.disk.broken.Store(why)
		timeout := time.NewTimer(lasts)
		defer timeout.Stop()
		ended := false
		select {
		case <-c.dispatcher.done:
			ended = true
		case <-timeout.C:
		}
		c.disk.broken.Store(nil)
		if !ended {
			// It may be failing at this very moment.
			select {
			case <-c.dispatcher.done:
				ended = true
			case <-time.After(10 * time.Second):
			}
		}
		if ended {
			c.disk.crash()
			c.startDispatcher()
		}
		return true
	}},
	{"lose packets", func(c *chaos, rng *rand.Rand, lasts time.Duration) bool {
		a, b := c.pair(rng)
		both := rng.IntN(3) == 0
		if !c.reserve(a + b) {
			return false
		}
		defer c.release(a + b)
		c.net.Lose(a, b, true)
		if both {
			c.net.Lose(b, a, true)
		}
		time.Sleep(lasts)
		c.net.Split(a, b, false)
		return true
	}},
	{"slow a link", func(c *chaos, rng *rand.Rand, lasts time.Duration) bool {
		a, b := c.pair(rng)
		c.net.Slow(a, b, time.Duration(1+rng.IntN(2000))*time.Millisecond)
		time.Sleep(lasts)
		c.net.Slow(a, b, 0)
		return true
	}},
	{"cut a connection", func(c *chaos, rng *rand.Rand, _ time.Duration) bool {
		a, b := c.pair(rng)
		c.net.CutAfter(a, b, rng.Int64N(1<<rng.IntN(17)))
		return true
	}},
	{"flip a bit", func(c *chaos, rng *rand.Rand, _ time.Duration) bool {
		// The control plane has no checksum of its own.
		c.net.FlipAfter(workerIP(rng.IntN(len(c.workers))), trainerIP(rng.IntN(c.readers)), rng.Int64N(1<<rng.IntN(17)))
		return true
	}},
	{"isolate a worker", func(c *chaos, rng *rand.Rand, lasts time.Duration) bool {
		n := rng.IntN(len(c.workers))
		others := []string{dispatcherIP, trainerIP(0), trainerIP(1)}
		for _, other := range others {
			c.net.Split(workerIP(n), other, true)
		}
		time.Sleep(lasts)
		for _, other := range others {
			c.net.Split(workerIP(n), other, false)
		}
		return true
	}},
	{killTrainer, func(c *chaos, rng *rand.Rand, _ time.Duration) bool {
		c.mu.Lock()
		if len(c.all) < 2 || c.busy["trainer"] {
			c.mu.Unlock()
			return false
		}
		c.busy["trainer"] = true
		victim := c.all[rng.IntN(len(c.all))]
		c.mu.Unlock()
		victim.kill()
		c.hit(leaveKind)
		return true
	}},
}

// isolatedWorker is a worker that trainers reach and the dispatcher does not. The trainers' reports arrive late. It is
// not drawn with the other faults.
var isolatedWorker = fault{"separate a worker from the dispatcher", func(c *chaos, rng *rand.Rand, lasts time.Duration) bool {
	ip := workerIP(rng.IntN(len(c.workers)))
	if !c.reserve(ip + dispatcherIP) {
		return false
	}
	defer c.release(ip + dispatcherIP)
	c.net.Lose(ip, dispatcherIP, true)
	// The trainers request their next pass earlier.
	time.Sleep(5 * time.Second)
	late := time.Duration(1+rng.IntN(2000)) * time.Millisecond
	for n := range c.readers {
		c.net.Slow(trainerIP(n), dispatcherIP, late)
	}
	time.Sleep(lasts)
	for n := range c.readers {
		c.net.Slow(trainerIP(n), dispatcherIP, 0)
	}
	c.net.Split(ip, dispatcherIP, false)
	return true
}}

// pair returns two hosts that exchange messages.
func (c *chaos) pair(rng *rand.Rand) (from, to string) {
	w, tr, d := workerIP(rng.IntN(len(c.workers))), trainerIP(rng.IntN(c.readers)), dispatcherIP
	pairs := [][2]string{{w, tr}, {w, tr}, {w, d}, {tr, d}}
	if c.proxy != nil {
		pairs[3] = [2]string{tr, proxyIP}
		pairs = append(pairs, [2]string{proxyIP, d})
	}
	p := pairs[rng.IntN(len(pairs))]
	if rng.IntN(2) == 0 {
		return p[1], p[0]
	}
	return p[0], p[1]
}

// point is where the dispatcher may die around a write.
type point int

const (
	beforeWrite point = iota
	beforeSync
	beforeResponse
)

// crashAt lets the dispatcher die at its next write, if one comes in time.
func (c *cluster) crashAt(at point, how end, within time.Duration) bool {
	died := make(chan struct{})
	once := sync.OnceFunc(func() {
		c.killDispatcher(how)
		close(died)
	})
	c.disk.arm(at, once)
	defer c.disk.arm(at, nil)
	select {
	case <-died:
		<-c.dispatcher.done
		return true
	case <-time.After(within):
	}
	c.disk.arm(at, nil)
	select {
	case <-died:
		<-c.dispatcher.done
		return true
	default:
		return false
	}
}
