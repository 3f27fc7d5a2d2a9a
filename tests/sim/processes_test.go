package sim

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
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
	// stopped: the process was asked to stop.
	stopped end = iota
	killed
	powerCut
)

// end ends a process and waits for its goroutines.
func (p *process) end(how end) error {
	switch how {
	case killed:
		p.host.Kill()
	case powerCut:
		p.host.PowerOff()
	}
	p.cancel()
	<-p.done
	if how == stopped {
		return p.err
	}
	return nil
}

const (
	dispatcherIP   = "10.0.0.1"
	dispatcherAddr = dispatcherIP + ":5050"
)

// startDispatcher starts a process on the contents of the disk.
func (c *cluster) startDispatcher() {
	c.t.Helper()
	k, err := c.disk.open()
	if err != nil {
		c.t.Fatalf("open the store: %v", err)
	}
	config := c.options.dispatcher()
	c.clock = &holdable{origin: c.began}
	host := c.net.Host(dispatcherIP)
	host.Start()
	d, err := dispatcher.New(config, dispatcher.Deps{
		Store: k, Graphs: dispatcher.NewGraphs(config), Clock: c.clock, Rand: c.random, Log: c.log.With("process", "dispatcher"),
	})
	if err != nil {
		k.close()
		c.t.Fatalf("start the dispatcher: %v", err)
	}
	listener, err := host.Listen("tcp", dispatcherAddr)
	if err != nil {
		c.t.Fatal(err)
	}
	c.kept = k
	c.dispatcher = begin(host, func(ctx context.Context) error {
		defer k.close()
		return d.Serve(ctx, listener)
	})
	c.starts++
}

// crashDispatcher ends the dispatcher and loses some of what was not synced.
func (c *cluster) crashDispatcher(how end) {
	c.dieDispatcher(how)
	<-c.dispatcher.done
}

// dieDispatcher is crashDispatcher for the dispatcher's own goroutines, which cannot wait for their end.
func (c *cluster) dieDispatcher(how end) {
	if c.kept.gone.Swap(true) {
		return
	}
	if how == powerCut {
		c.dispatcher.host.PowerOff()
	} else {
		c.dispatcher.host.Kill()
	}
	c.clock.hold(false)
	c.disk.crash()
	c.dispatcher.cancel()
}

// stopDispatcher ends the dispatcher in good order.
func (c *cluster) stopDispatcher() error { return c.dispatcher.end(stopped) }

// pauseDispatcher stops it like SIGSTOP: it neither reads nor writes, and its clock's ticks wait.
func (c *cluster) pauseDispatcher(on bool) {
	c.clock.hold(on)
	c.dispatcher.host.Pause(on)
}

const workerPort = 5051

func workerIP(n int) string { return "10.0.1." + string(rune('1'+n)) }

// startWorker starts worker n as a new process on the same address as the last one.
func (c *cluster) startWorker(n int) {
	host := c.net.Host(workerIP(n))
	config := worker.Config{
		Dispatcher: dispatcherAddr, Listen: fmt.Sprint(workerIP(n), ":", workerPort), MaxStreams: c.options.slots, WindowBytes: 1 << 20, Placement: worker.PlacementRemote,
		DispatcherTimeout: time.Hour, Threads: 2, Version: "sim", Log: c.log.With("process", "worker", "host", workerIP(n)), ListenOn: host.Listen,
		CacheDir: c.options.cacheDir, CacheOrphanAfter: worker.DefaultCacheOrphanAfter,
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			nc, err := host.Dial(ctx, network, address)
			if err == nil {
				// Workers set this option of the kernel too (service/worker).
				nc.(*simnet.Conn).UserTimeout = 10 * time.Second
			}
			return nc, err
		},
	}
	c.workers[n] = begin(host, func(ctx context.Context) error { return worker.Run(ctx, config) })
}

// holdable is a monotonic clock whose ticks can be held back.
type holdable struct {
	origin time.Time
	mu     sync.Mutex
	// held is closed when ticks may come again; nil while they come.
	held chan struct{}
}

// Now gives the time since the origin.
func (h *holdable) Now() time.Duration { return time.Since(h.origin) }

// NewTicker gives ticks that a hold delays. One of the delayed ticks comes afterwards.
func (h *holdable) NewTicker(period time.Duration) (<-chan time.Time, func()) {
	ticker, out, ended := time.NewTicker(period), make(chan time.Time), make(chan struct{})
	go func() {
		for {
			select {
			case at := <-ticker.C:
				h.mu.Lock()
				held := h.held
				h.mu.Unlock()
				if held != nil {
					select {
					case <-held:
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

func (h *holdable) hold(on bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case on && h.held == nil:
		h.held = make(chan struct{})
	case !on && h.held != nil:
		close(h.held)
		h.held = nil
	}
}

// random gives bytes that a seed decides.
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
