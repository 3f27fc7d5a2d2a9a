package sim

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pecan-ml/pecan/policies/autoscale"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/tests/sim/simnet"
)

// Kinds of effects that placements must have over all seeds.
const (
	movedKind    simnet.Fault = "streams moved by a placement"
	removedKind  simnet.Fault = "workers removed by the provider"
	troubledKind simnet.Fault = "trouble of the provider"
	localKind    simnet.Fault = "local workers stopped"
)

// place gives the job of a seed an objective, with limits, prices that change, and perhaps a provider and local workers. It
// returns whether nothing else may happen than these changes of workers. Then no mode may lose an element.
func place(seed uint64, want *wanted, o *options) (calm bool) {
	rng := rand.New(rand.NewPCG(seed, 12))
	// Workers must produce in each measurement window, so they must not have all streams at once.
	least := int64(48)
	if testing.Short() {
		least = 16
	}
	if want.dataset.numStreams() < least {
		want.dataset = want.dataset.divided(least + rng.Int64N(least))
	}
	o.workers, o.placed, o.provided, o.locals, o.apart = 2+rng.IntN(2), true, rng.IntN(2) == 0, rng.IntN(3), rng.IntN(2) == 0
	o.drain = time.Duration(rng.IntN(6)) * time.Second
	want.placement = &pecanv1.PlacementOptions{
		Objective: []string{"cost", "time", "budget"}[rng.IntN(3)], MinRemote: max(0, int32(rng.IntN(5)-2)), MaxRemote: int32(rng.IntN(4)),
	}
	if want.placement.Objective == "budget" {
		want.placement.BudgetPerHour = 1 + 9*rng.Float64()
	}
	if want.placement.MaxRemote > 0 {
		want.placement.MinRemote = min(want.placement.MinRemote, want.placement.MaxRemote)
	}
	if calm = rng.IntN(5) == 0; calm {
		o.drain = time.Hour
	}
	// An epoch has several measurement windows.
	want.pace = time.Duration(20+rng.IntN(30)) * time.Second / time.Duration(want.dataset.elements())
	return calm
}

// prices returns prices that change from time to time, and are not known sometimes.
func (c *cluster) prices(string) (autoscale.Prices, string, error) {
	rng := rand.New(rand.NewPCG(c.options.seed, 1000+uint64(time.Since(c.began)/(15*time.Second))))
	if rng.IntN(6) == 0 {
		return autoscale.Prices{}, "", errors.New("the table of prices cannot be read")
	}
	price := func() float64 { return []float64{0.1, 1, 4}[rng.IntN(3)] }
	return autoscale.Prices{Trainer: price(), Remote: price(), Local: price()}, "USD", nil
}

// movedByPlacement counts the streams that left workers because these no longer served the job.
func (c *cluster) movedByPlacement() (n int) {
	for _, record := range c.journal() {
		if why := record.GetLeaseLost().GetWhy(); strings.HasSuffix(why, "no longer serves the job") || strings.HasSuffix(why, "serves other trainers only") {
			n++
		}
	}
	return n
}

const localPeriod = 250 * time.Millisecond

// keepLocalWorkers starts and stops local workers as the dispatcher wants, as pecan does in a trainer, until the trainer ends. The
// newest is stopped first.
func (tr *trainer) keepLocalWorkers() {
	c := tr.c
	var running []int
	for {
		select {
		case <-tr.ending:
			return
		case <-time.After(localPeriod):
		}
		running = slices.DeleteFunc(running, func(n int) bool { return c.worker(n).ended() || c.worker(n).leaving.Load() })
		wanted := tr.session.LocalWorkers(len(running), c.options.locals).Number
		for wanted >= 0 && len(running) > wanted {
			n := running[len(running)-1]
			w := c.worker(n)
			running = running[:len(running)-1]
			c.localsStopped.Add(1)
			w.leaving.Store(true)
			tr.locals.Go(func() { c.stopWorker(n, w) })
		}
		for n := c.options.workers; n < len(c.workers) && len(running) < wanted; n++ {
			if w := c.worker(n); w == nil || w.ended() {
				c.startWorker(n)
				running = append(running, n)
			}
		}
	}
}

// endLocalWorkers ends the local workers of a trainer that dies.
func (tr *trainer) endLocalWorkers() {
	for n := tr.c.options.workers; tr.n == 0 && n < len(tr.c.workers); n++ {
		_, _ = tr.c.endWorker(n, killed)
	}
}
