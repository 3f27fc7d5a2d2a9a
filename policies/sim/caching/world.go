package caching

import (
	"math"
	"math/rand/v2"

	"github.com/pecan-ml/pecan/policies/autocache"
)

// World is the truth about a job. All times are in seconds and all sizes in bytes, per batch.
type World struct {
	// Batches is the number of batches of an epoch.
	Batches int
	// Demand is the time in which the trainer takes a batch.
	Demand float64
	// Workers and Threads are the number of workers, and of the threads of each.
	Workers, Threads int
	// Source is the time to read a batch from the source: of a worker alone, and of all together.
	SourceAlone, SourceShared float64
	Steps                     []Step
	Read, Write               autocache.Access
	// Spread is the standard deviation of the logarithm of each time.
	Spread float64
	// Mistake is by which factor probes of the store's reads are too slow; 0 is none.
	Mistake float64
}

// Step is a step of the pipeline, whose elements may be cached.
type Step struct {
	// Seconds is the time of a thread for a batch.
	Seconds float64
	// Elements is the number of elements for a batch, Bytes their size.
	Elements, Bytes float64
	Illegal         bool
	Role            autocache.Role
}

// Mode says whether a worker computes, writes or reads a batch at the cached step.
type Mode int

// Modes.
const (
	Compute Mode = iota
	Put
	Get
)

// servers serve batches in their order.
type servers []float64

// serve returns when a batch is done that is there at some time and needs a server for some seconds.
func (s servers) serve(at, seconds float64) float64 {
	first := 0
	for i, free := range s {
		if free < s[first] {
			first = i
		}
	}
	s[first] = max(s[first], at) + seconds
	return s[first]
}

// inFlight is the number of batches per thread that workers and trainer hold at once.
const inFlight = 4

// Epoch returns the time of an epoch. step is the number of the cached step, and mode has the mode of each batch.
func (w World) Epoch(rng *rand.Rand, step int, mode func(batch int) Mode) float64 {
	noise := func() float64 {
		return math.Exp(w.Spread*rng.NormFloat64() - w.Spread*w.Spread/2)
	}
	threads := make(servers, w.Workers*w.Threads)
	sourceLinks, storeLinks := make(servers, w.Workers), make(servers, w.Workers)
	source, store, trainer := make(servers, 1), make(servers, 1), make(servers, 1)
	// A worker's link and the whole store carry a batch at the same time.
	transfer := func(at float64, a autocache.Access) float64 {
		s := w.Steps[step]
		f := noise()
		return max(storeLinks.serve(at, f*a.Alone.Of(s.Elements, s.Bytes)), store.serve(at, f*a.Shared.Of(s.Elements, s.Bytes)))
	}
	taken := make([]float64, w.Batches)
	window := inFlight*len(threads) + inFlight
	end := 0.0
	for i := range taken {
		at := 0.0
		if i >= window {
			at = taken[i-window]
		}
		m := mode(i)
		work := 0.0
		if m == Get {
			at = transfer(at, w.Read)
			work += w.Read.Work.Of(w.Steps[step].Elements, w.Steps[step].Bytes)
		} else {
			f := noise()
			at = max(sourceLinks.serve(at, f*w.SourceAlone), source.serve(at, f*w.SourceShared))
		}
		if m == Put {
			work += w.Write.Work.Of(w.Steps[step].Elements, w.Steps[step].Bytes)
		}
		for n, s := range w.Steps {
			if m != Get || n > step {
				work += s.Seconds * noise()
			}
		}
		at = threads.serve(at, work)
		if m == Put {
			end = max(end, transfer(at, w.Write))
		}
		taken[i] = trainer.serve(at, w.Demand)
	}
	return max(end, taken[len(taken)-1])
}
