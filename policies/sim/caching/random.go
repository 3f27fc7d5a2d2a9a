package caching

import (
	"math"
	"math/rand/v2"

	"github.com/pecan-ml/pecan/policies/autocache"
)

// Families are the kinds of random worlds.
var Families = []string{"balanced", "slow store", "slow source", "slow trainer", "expensive reads", "many workers"}

// Random returns a random world of a family. Times are so that no resource is far from being the bound.
func Random(rng *rand.Rand, family string) World {
	spread := func(low, high float64) float64 { return low * math.Pow(high/low, rng.Float64()) }
	w := World{Batches: 600, Workers: 1 + rng.IntN(4), Threads: 1 + rng.IntN(4), Spread: 0.3 * rng.Float64()}
	work, store, source, thread := 0.02, spread(100e6, 2e9), spread(0.0005, 0.005), spread(0.2e-9, 2e-9)
	w.Demand = spread(0.0002, 0.005)
	switch family {
	case "slow store":
		store = spread(20e6, 200e6)
	case "slow source":
		source = spread(0.005, 0.05)
	case "slow trainer":
		w.Demand = spread(0.005, 0.05)
	case "expensive reads":
		thread = spread(2e-9, 20e-9)
	case "many workers":
		w.Workers = 8 + rng.IntN(24)
	}
	w.SourceShared, w.SourceAlone = source, source*float64(w.Workers)*spread(0.3, 2)
	perByte := 1 / store
	w.Read = autocache.Access{
		Link: autocache.Link{Alone: autocache.Rate{PerByte: perByte * spread(0.3, 3)}, Shared: autocache.Rate{PerElement: spread(1e-7, 1e-5), PerByte: perByte}},
		Work: autocache.Rate{PerElement: spread(1e-7, 1e-5), PerByte: thread},
	}
	w.Write = w.Read
	w.Write.Shared.PerByte, w.Write.Work.PerByte = perByte*spread(1, 3), thread*spread(1, 2)
	bytes := spread(0.2e6, 5e6)
	for n := range 2 + rng.IntN(5) {
		w.Steps = append(w.Steps, Step{
			Seconds: work * spread(0.1, 3) / 2, Elements: []float64{32, 1}[rng.IntN(2)], Bytes: bytes, Illegal: n > 1 && rng.IntN(3) == 0,
		})
		bytes *= spread(0.3, 3)
	}
	w.Steps[0].Role, w.Steps[len(w.Steps)-1].Role = autocache.SourceCache, autocache.FullCache
	return w
}
