package caching

import (
	"fmt"
	"strings"

	"github.com/pecan-ml/pecan/policies/autocache"
)

// Sweep is the experiment of the Cachew paper: a pipeline reads a source, makes its elements larger by Inflation, and
// sleeps. The longer it sleeps, the more its cache saves.
type Sweep struct {
	Name string
	// World has no steps.
	World World
	// Bytes is the size of a batch of the source.
	Bytes, Inflation float64
	// Overhead is the time of the steps without the sleep.
	Overhead float64
	Sleeps   []float64
}

// At returns the world with a sleep.
func (s Sweep) At(sleep float64) World {
	w := s.World
	w.Steps = []Step{
		{Seconds: s.Overhead / 2, Elements: 1, Bytes: s.Bytes, Role: autocache.SourceCache},
		{Seconds: s.Overhead/2 + sleep, Elements: 1, Bytes: s.Bytes * s.Inflation, Role: autocache.FullCache},
	}
	return w
}

// Point is one point of a sweep: the time per batch in the last epoch of each choice.
type Point struct {
	Sleep, Compute, Source, Full, Automatic, Paper float64
	Choice                                         int
}

// Best is the shortest time of a fixed choice.
func (p Point) Best() float64 { return min(p.Compute, p.Source, p.Full) }

// Run runs a sweep with jobs of several epochs.
func (s Sweep) Run(epochs int, seed uint64) (points []Point) {
	for _, sleep := range s.Sleeps {
		w := s.At(sleep)
		last := func(choose Choose, epochs int) Result {
			r := w.Run(choose, epochs, false, seed)
			r.Last /= float64(w.Batches)
			return r
		}
		// Two epochs fill a cache, so the third one reads it.
		p := Point{Sleep: sleep, Compute: last(Fixed(autocache.None), 3).Last, Source: last(Fixed(0), 3).Last, Full: last(Fixed(1), 3).Last}
		automatic := last(Automatic, epochs)
		p.Automatic, p.Choice, p.Paper = automatic.Last, automatic.Choice, last(Paper, epochs).Last
		points = append(points, p)
	}
	return points
}

// Table returns the points as text, in milliseconds.
func Table(points []Point) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%8s %8s %8s %8s %9s %8s  %s\n", "sleep", "compute", "source", "full", "automatic", "paper", "choice")
	for _, p := range points {
		fmt.Fprintf(&b, "%8.1f %8.1f %8.1f %8.1f %9.1f %8.1f  %s\n", 1e3*p.Sleep, 1e3*p.Compute, 1e3*p.Source, 1e3*p.Full, 1e3*p.Automatic, 1e3*p.Paper,
			[]string{"compute", "source", "full"}[p.Choice+1])
	}
	return b.String()
}

// shared is the access to a store that all workers together read or write at a rate.
func shared(r autocache.Rate) autocache.Access {
	return autocache.Access{Link: autocache.Link{Shared: r}}
}

// slower returns a rate that takes so many times as long.
func slower(r autocache.Rate, factor float64) autocache.Rate {
	return autocache.Rate{PerElement: factor * r.PerElement, PerByte: factor * r.PerByte}
}

// around returns points around a crossing.
func around(crossing float64) (sleeps []float64) {
	for _, factor := range []float64{0.4, 0.6, 0.8, 0.9, 0.95, 1, 1.05, 1.1, 1.2, 1.4, 1.8, 2.5} {
		sleeps = append(sleeps, factor*crossing)
	}
	return sleeps
}

// Sweeps are the published sweep, with its source and its GlusterFS, and others whose crossings lie elsewhere.
func Sweeps() []Sweep {
	const published = 56e6
	// The published times of 268 and 430 ms per batch give both parts of the rate.
	gluster := autocache.Rate{PerElement: 0.16, PerByte: 0.108 / published}
	disk := autocache.Rate{PerByte: 1 / 500e6}
	fast := autocache.Rate{PerElement: 1e-4, PerByte: 1 / 2e9}
	return []Sweep{
		{
			Name: "published", Bytes: published, Inflation: 2.5, Overhead: 0.004,
			World:  World{Batches: 1000, Workers: 1, Threads: 1, SourceShared: 0.305, Read: shared(gluster), Write: shared(slower(gluster, 1.5)), Spread: 0.1},
			Sleeps: []float64{0.2, 0.225, 0.25, 0.275, 0.3, 0.325, 0.35, 0.375, 0.4, 0.41, 0.42, 0.43, 0.44, 0.45, 0.475, 0.5, 0.55},
		},
		{
			Name: "local disk, source on the same kind of disk", Bytes: 6e6, Inflation: 2.5, Overhead: 0.001,
			World:  World{Batches: 1000, Workers: 1, Threads: 1, SourceShared: 0.012, Read: shared(disk), Write: shared(slower(disk, 1.2)), Spread: 0.1},
			Sleeps: around(0.03),
		},
		{
			Name: "fast disk, four workers, elements that shrink", Bytes: 6e6, Inflation: 0.25, Overhead: 0.004,
			World: World{
				Batches: 2000, Workers: 4, Threads: 2, SourceShared: 0.0005, Write: shared(fast), Spread: 0.3,
				Read: autocache.Access{Link: autocache.Link{Shared: fast}, Work: autocache.Rate{PerByte: 6e-9}},
			},
			Sleeps: around(0.006),
		},
		{
			Name: "eight workers share a slow store", Bytes: 2e6, Inflation: 2.5, Overhead: 0.004,
			World:  World{Batches: 2000, Workers: 8, Threads: 2, SourceShared: 0.002, Read: shared(disk), Write: shared(slower(disk, 2)), Spread: 0.3},
			Sleeps: around(0.16),
		},
	}
}
