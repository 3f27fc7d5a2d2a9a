package sim

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pecan-ml/pecan/service/dispatcher"
	"github.com/pecan-ml/pecan/service/worker"
	"github.com/pecan-ml/pecan/tests/sim/simnet"
)

// process is a set of goroutines with its own host. A crash first takes its connections and a dispatcher's disk,
// so nobody sees what its goroutines still do.
type process struct {
	host   *simnet.Host
	cancel context.CancelFunc
	// done is closed when the goroutines have ended; err has the result.
	done chan struct{}
	err  error
	// leaving is set if it was asked to stop. crashed is set if it was killed.
	leaving, crashed atomic.Bool
}

func begin(host *simnet.Host, main func(context.Context) error) *process {
	host.Start()
	ctx, cancel := context.WithCancel(context.Background())
	p := &process{host: host, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.err = main(ctx)
		host.Kill()
	}()
	return p
}

// end is how a process ends.
type end int

const (
	// stopped is set if the process was asked to stop.
	stopped end = iota
	killed
	powerCut
)

// end ends a process and waits for its goroutines.
func (p *process) end(how end) error {
	p.strike(how)
	return p.wait()
}

// strike begins the end of a process.
func (p *process) strike(how end) {
	switch how {
	case stopped:
		p.leaving.Store(true)
	case killed:
		p.crashed.Store(true)
		p.host.Kill()
	case powerCut:
		p.crashed.Store(true)
		p.host.PowerOff()
	}
	p.cancel()
}

// wait waits for the end, and returns the error of a process that was not killed.
func (p *process) wait() error {
	if <-p.done; p.crashed.Load() {
		return nil
	}
	return p.err
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

const (
	dispatcherIP   = "10.0.0.1"
	dispatcherAddr = dispatcherIP + ":5050"
)

// startDispatcher starts a process on the contents of the disk.
func (c *cluster) startDispatcher() {
	c.t.Helper()
	store, err := c.disk.open()
	if err != nil {
		c.t.Fatalf("open the store: %v", err)
	}
	config := c.options.dispatcher()
	c.clock = &pausableClock{origin: c.began}
	host := c.net.Host(dispatcherIP)
	host.Start()
	deps := dispatcher.Deps{Store: store, Graphs: dispatcher.NewGraphs(config), Clock: c.clock, Rand: c.random, Log: c.log.With("process", "dispatcher")}
	if c.options.placed {
		deps.Prices = c.prices
	}
	if c.options.chosen {
		deps.ChooseCache = c.chooseCache
	}
	if c.machines != nil {
		deps.Provider = provider{c.machines, store}
	}
	d, err := dispatcher.New(config, deps)
	if err != nil {
		store.close()
		c.t.Fatalf("start the dispatcher: %v", err)
	}
	listener, err := host.Listen("tcp", dispatcherAddr)
	if err != nil {
		c.t.Fatal(err)
	}
	c.store = store
	c.dispatcher = begin(host, func(ctx context.Context) error {
		defer store.close()
		return d.Serve(ctx, listener)
	})
	c.starts++
}

// crashDispatcher ends the dispatcher and loses some of what was not synced.
func (c *cluster) crashDispatcher(how end) {
	c.killDispatcher(how)
	<-c.dispatcher.done
}

// killDispatcher is crashDispatcher for the dispatcher's own goroutines, which cannot wait for their end.
func (c *cluster) killDispatcher(how end) {
	if c.store.dead.Swap(true) {
		return
	}
	if how == powerCut {
		c.dispatcher.host.PowerOff()
	} else {
		c.dispatcher.host.Kill()
	}
	c.clock.pause(false)
	c.disk.crash()
	c.dispatcher.cancel()
}

// stopDispatcher ends the dispatcher in good order.
func (c *cluster) stopDispatcher() error { return c.dispatcher.end(stopped) }

// pauseDispatcher stops it like SIGSTOP: it neither reads nor writes, and its clock does not tick.
func (c *cluster) pauseDispatcher(on bool) {
	c.clock.pause(on)
	c.dispatcher.host.Pause(on)
}

const workerPort = 5051

func workerIP(n int) string { return "10.0.1." + string(rune('1'+n)) }

func workerAddr(n int) string { return fmt.Sprint(workerIP(n), ":", workerPort) }

// worker returns the newest process of worker n; nil without one.
func (c *cluster) worker(n int) *process {
	c.workersMu.Lock()
	defer c.workersMu.Unlock()
	return c.workers[n]
}

// endWorker ends worker n. It returns false if it does not run.
func (c *cluster) endWorker(n int, how end) (ran bool, err error) {
	c.workersMu.Lock()
	w := c.workers[n]
	if ran = w != nil && !w.ended(); ran {
		w.strike(how)
	}
	c.workersMu.Unlock()
	if !ran {
		return false, nil
	}
	return true, w.wait()
}

// stopWorker ends a process of worker n in good order.
func (c *cluster) stopWorker(n int, w *process) {
	if err := w.end(stopped); err != nil {
		c.t.Errorf("worker %d: %v", n, err)
	}
}

// startWorker starts worker n as a new process on the same address as the last one.
func (c *cluster) startWorker(n int) {
	host := c.net.Host(workerIP(n))
	config := worker.Config{
		Dispatcher: dispatcherAddr, Listen: workerAddr(n), MaxStreams: c.options.slots, WindowBytes: 1 << 20, Kind: worker.KindRemote,
		DispatcherTimeout: time.Hour, Threads: 2, Version: "sim", Log: c.log.With("process", "worker", "host", workerIP(n)), ListenOn: host.Listen,
		CacheDir: c.options.cacheDir, CacheOrphanAfter: worker.DefaultCacheOrphanAfter, DrainTimeout: c.options.drain,
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			nc, err := host.Dial(ctx, network, address)
			if err == nil {
				// Workers set this option of the kernel too (service/worker).
				nc.(*simnet.Conn).UserTimeout = 10 * time.Second
			}
			return nc, err
		},
	}
	if n >= c.options.workers {
		config.Kind, config.TrainerID = worker.KindLocal, trainerID(0)
	}
	c.workersMu.Lock()
	defer c.workersMu.Unlock()
	c.workers[n] = begin(host, func(ctx context.Context) error { return worker.Run(ctx, config) })
}

// pausableClock is a monotonic clock whose ticks can be paused.
type pausableClock struct {
	origin time.Time
	mu     sync.Mutex
	// resumed is closed when ticks may come again; nil while the clock is not paused.
	resumed chan struct{}
}

// Now returns the time since the origin.
func (c *pausableClock) Now() time.Duration { return time.Since(c.origin) }

// NewTicker returns ticks that a pause delays. One of the delayed ticks comes afterwards.
func (c *pausableClock) NewTicker(period time.Duration) (<-chan time.Time, func()) {
	ticker, out, ended := time.NewTicker(period), make(chan time.Time), make(chan struct{})
	go func() {
		for {
			select {
			case at := <-ticker.C:
				c.mu.Lock()
				resumed := c.resumed
				c.mu.Unlock()
				if resumed != nil {
					select {
					case <-resumed:
					case <-ended:
						return
					}
				}
				select {
				case out <- at:
				case <-ended:
					return
				}
			case <-ended:
				return
			}
		}
	}()
	return out, sync.OnceFunc(func() {
		ticker.Stop()
		close(ended)
	})
}

func (c *pausableClock) pause(on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case on && c.resumed == nil:
		c.resumed = make(chan struct{})
	case !on && c.resumed != nil:
		close(c.resumed)
		c.resumed = nil
	}
}

// random yields bytes that a seed decides.
type random struct {
	mu  sync.Mutex
	rng *rand.Rand
}

func newRandom(seed, stream uint64) *random { return &random{rng: rand.New(rand.NewPCG(seed, stream))} }

// Read implements io.Reader.
func (r *random) Read(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range p {
		p[i] = byte(r.rng.Uint32())
	}
	return len(p), nil
}

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }
