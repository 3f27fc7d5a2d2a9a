package caching

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/pecan-ml/pecan/policies/autocache"
	"github.com/pecan-ml/pecan/policies/autoscale"
)

const (
	// profiled is the number of batches of a profile.
	profiled = 300
	// probes is the number of probes of a store at each of two sizes of elements.
	probes = 5
	// profileNoise and probeNoise are the relative errors of a profile's times and of a probe, beyond those of the sample.
	profileNoise = 0.01
	probeNoise   = 0.05
)

// Measure returns what a policy learns about the world. That is the profile of the first batches, and probes of the store
// with the smallest and the largest elements.
func (w World) Measure(rng *rand.Rand) autocache.Input {
	gauss := func(sigma float64) float64 { return max(1+sigma*rng.NormFloat64(), 0.1) }
	sample := func(seconds float64) float64 {
		return seconds * gauss(w.Spread/math.Sqrt(profiled)) * gauss(profileNoise)
	}
	batches := float64(w.Batches)
	one := autoscale.Configuration{Remote: w.Workers}
	in := autocache.Input{Current: autocache.None, Own: 1, Workers: autocache.Workers{Remote: float64(w.Threads)}}
	in.Goal.Limits = autoscale.Limits{Min: one, Max: one}
	in.Store.Free = math.Inf(1)
	p := &in.Pipeline
	p.Elements, p.Demand = batches, sample(w.Demand)
	p.SourceElements, p.SourceBytes = batches, batches
	p.Source = autocache.Link{Alone: autocache.Rate{PerElement: sample(w.SourceAlone)}, Shared: autocache.Rate{PerElement: sample(w.SourceShared)}}
	sum, smallest, largest := 0.0, math.Inf(1), 0.0
	for n, s := range w.Steps {
		sum += sample(s.Seconds)
		c := autocache.Candidate{
			Name: fmt.Sprint("step", n), Elements: batches * s.Elements, Bytes: s.Bytes / s.Elements, Seconds: sum / s.Elements, Role: s.Role,
		}
		if s.Illegal {
			c.Illegal = "its elements differ in each epoch"
		}
		p.Candidates = append(p.Candidates, c)
		smallest, largest = min(smallest, c.Bytes), max(largest, c.Bytes)
	}
	p.Seconds = sum * batches
	probe := func(r autocache.Rate) autocache.Rate {
		var samples []autocache.Sample
		for _, size := range []float64{smallest, largest} {
			for range probes {
				samples = append(samples, autocache.Sample{Elements: 8, Bytes: 8 * size, Seconds: r.Of(8, 8*size) * gauss(probeNoise)})
			}
		}
		return autocache.FitRate(autocache.Rate{}, samples)
	}
	measured := func(a autocache.Access) autocache.Access {
		return autocache.Access{Link: autocache.Link{Alone: probe(a.Alone), Shared: probe(a.Shared)}, Work: probe(a.Work)}
	}
	in.Store.Read, in.Store.Write = measured(w.Read), measured(w.Write)
	for _, r := range []*autocache.Rate{&in.Store.Read.Alone, &in.Store.Read.Shared, &in.Store.Read.Work} {
		*r = slower(*r, cmp.Or(w.Mistake, 1))
	}
	return in
}

// epochTimes keeps the times of whole epochs that computed, or read, all elements.
type epochTimes struct {
	computed []autocache.Measured
	read     [][]autocache.Measured
}

// into puts the newest times into what a policy learns.
func (m *epochTimes) into(in *autocache.Input) {
	newest := func(all []autocache.Measured) []autocache.Measured { return all[max(len(all)-autocache.Newest, 0):] }
	in.Pipeline.Computed = newest(m.computed)
	for i := range in.Pipeline.Candidates {
		in.Pipeline.Candidates[i].Read = newest(m.read[i])
	}
}

// add adds an epoch with a choice.
func (m *epochTimes) add(w World, choice int, seconds float64) {
	times := &m.computed
	if choice != autocache.None {
		times = &m.read[choice]
	}
	*times = append(*times, autocache.Measured{Workers: autoscale.Configuration{Remote: w.Workers}, Seconds: seconds})
}
