package sim

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/pecan-ml/pecan/service/provision"
	"github.com/pecan-ml/pecan/tests/sim/simnet"
)

// machines start and stop the remote workers of a cluster for its dispatchers. A worker takes a while to start. A call may be
// slow, or fail before or after its effect, and sometimes there is no further machine.
type machines struct {
	c  *cluster
	mu sync.Mutex
	// wg has the workers that are starting or leaving.
	wg       sync.WaitGroup
	rng      *rand.Rand
	desired  int
	starting map[int]bool
	// none is the time until which there is no further machine.
	none time.Time
	// closed is set when nothing may change any more.
	closed bool
	// removed counts the running workers that had to leave, troubled the calls that failed, were slow or got too little.
	removed, troubled int
}

var errAway = errors.New("the provider is away")

// provider is the view of one dispatcher process on the machines.
type provider struct {
	*machines
	store *simStore
}

// Observe implements provision.Provider.
func (p provider) Observe(ctx context.Context) (provision.State, error) {
	return p.call(ctx, func() provision.State { return p.change(p.desired, nil, false) })
}

// Reconcile implements provision.Provider.
func (p provider) Reconcile(ctx context.Context, desired int, leaving []provision.Address) (provision.State, error) {
	return p.call(ctx, func() provision.State {
		p.desired = desired
		return p.change(desired, leaving, true)
	})
}

// Close implements provision.Provider.
func (p provider) Close() error { return nil }

// call makes one call. A process that is dead makes none, but an earlier one of it may arrive late.
func (p provider) call(ctx context.Context, do func() provision.State) (provision.State, error) {
	p.mu.Lock()
	trouble, slow := p.rng.IntN(10), time.Duration(p.rng.IntN(20_000))*time.Millisecond
	if trouble == 3 && time.Now().After(p.none) {
		p.none = time.Now().Add(3 * slow)
	}
	dead := p.store.dead.Load() || p.closed
	if trouble < 3 {
		p.troubled++
	}
	p.mu.Unlock()
	if dead || trouble == 0 {
		return provision.State{}, errAway
	}
	if trouble == 1 {
		select {
		case <-ctx.Done():
		case <-time.After(slow):
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if state := do(); trouble != 2 {
		return state, nil
	}
	return provision.State{}, errAway
}

// change removes and starts workers, if it may, and returns the state after that. p.mu is held.
func (p *machines) change(desired int, leaving []provision.Address, may bool) provision.State {
	s := provision.State{Desired: desired}
	var free []int
	for n := range p.c.options.workers {
		address := provision.Address(workerAddr(n))
		w := p.c.worker(n)
		switch named := slices.ContainsFunc(leaving, address.Same); {
		case w != nil && !w.ended() && (named || w.leaving.Load()):
			if may && !p.closed && !w.leaving.Load() {
				p.removed++
				w.leaving.Store(true)
				p.wg.Go(func() { p.c.stopWorker(n, w) })
			}
			s.Leaving = append(s.Leaving, address)
		case w != nil && !w.ended():
			s.Ready++
			s.Removable = append(s.Removable, address)
		case p.starting[n]:
			s.Pending++
		default:
			free = append(free, n)
		}
	}
	for ; may && !p.closed && len(free) > 0 && s.Ready+s.Pending < desired && time.Now().After(p.none); free = free[1:] {
		s.Pending++
		p.start(free[0])
	}
	if s.Requested = max(desired-s.Ready-s.Pending, 0); s.Requested > 0 {
		s.Stuck, s.Why = s.Requested, "no machine is left"
		p.troubled++
	}
	return s
}

// start starts a worker after a while. p.mu is held.
func (p *machines) start(n int) {
	p.starting[n] = true
	takes := time.Duration(1+p.rng.IntN(8000)) * time.Millisecond
	p.wg.Go(func() {
		time.Sleep(takes)
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.starting, n)
		if w := p.c.worker(n); !p.closed && (w == nil || w.ended()) {
			p.c.startWorker(n)
		}
	})
}

// count adds the effects of the machines.
func (p *machines) count(hits map[simnet.Fault]int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	hits[removedKind], hits[troubledKind] = p.removed, p.troubled
}

// close waits until no worker starts or leaves. The others keep running.
func (p *machines) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.wg.Wait()
}
