package caching

import (
	"math"
	"math/rand/v2"

	"github.com/pecan-ml/pecan/policies/autocache"
	"github.com/pecan-ml/pecan/policies/autoscale"
)

// Priced is a world whose number of workers may be chosen, 1 to Most.
type Priced struct {
	World  World
	Prices autoscale.Prices
	Most   int
}

// Bill is the cost of the epochs of a job.
type Bill struct {
	// Choice is the cached step, or autocache.None.
	Choice int
	// First and Later are the numbers of workers in the first epoch and in later ones.
	First, Later int
	Price        float64
}

// epoch returns the price of an epoch in a mode with some workers.
func (p Priced) epoch(choice, workers int, m Mode, seed uint64) float64 {
	w := p.World
	w.Workers = workers
	seconds := w.Epoch(rand.New(rand.NewPCG(seed, 2)), max(choice, 0), func(int) Mode { return m })
	return seconds * autoscale.Goal{Prices: p.Prices}.PerHour(autoscale.Configuration{Remote: workers}) / 3600
}

// bill returns the price of a job of several epochs.
func (p Priced) bill(b Bill, epochs int, seed uint64) Bill {
	first, later := Put, Get
	if b.Choice == autocache.None {
		first, later = Compute, Compute
	}
	b.Price = p.epoch(b.Choice, b.First, first, seed) + float64(epochs-1)*p.epoch(b.Choice, b.Later, later, seed)
	return b
}

// Automatic returns the bill if the default policy chooses the cache and the numbers of workers.
func (p Priced) Automatic(epochs int, seed uint64) Bill {
	in := p.World.Measure(rand.New(rand.NewPCG(seed, 1)))
	in.Own, in.Goal.Prices = float64(epochs), p.Prices
	in.Goal.Limits = autoscale.Limits{Min: autoscale.Configuration{Remote: 1}, Max: autoscale.Configuration{Remote: p.Most}}
	d := autocache.Decide(in)
	b := Bill{Choice: d.Choice, First: d.Compute.Workers.Remote, Later: d.Compute.Workers.Remote}
	if d.Choice != autocache.None {
		c := d.Candidates[d.Choice]
		b.First, b.Later = c.Put.Workers.Remote, c.Get.Workers.Remote
	}
	return p.bill(b, epochs, seed)
}

// Best returns the lowest bill of all choices, with the best number of workers in each mode. With cached false it is
// the lowest bill of computing.
func (p Priced) Best(epochs int, cached bool, seed uint64) (best Bill) {
	cheapest := func(choice int, m Mode) (at int, price float64) {
		price = math.Inf(1)
		for workers := 1; workers <= p.Most; workers++ {
			if v := p.epoch(choice, workers, m, seed); v < price {
				at, price = workers, v
			}
		}
		return at, price
	}
	at, price := cheapest(autocache.None, Compute)
	best = Bill{autocache.None, at, at, price * float64(epochs)}
	for choice, s := range p.World.Steps {
		if s.Illegal || !cached {
			continue
		}
		first, put := cheapest(choice, Put)
		later, get := cheapest(choice, Get)
		if v := put + float64(epochs-1)*get; v < best.Price {
			best = Bill{choice, first, later, v}
		}
	}
	return best
}
