package sim

import (
	"math"
	"math/rand/v2"

	"github.com/pecan-ml/pecan/policies/autoscale"
)

// Job is one simulated job. All windows have the same number of elements, so a window's bill is its score.
type Job struct {
	Surface Surface
	Goal    autoscale.Goal
	// Start is the configuration of the first window.
	Start autoscale.Configuration
	// Windows is the number of windows with steady state, Elements that of the elements of a window.
	Windows, Elements int
	// Delay is the most windows until a change of workers has settled, 1 or more. Each change takes a random number of them,
	// because workers start slowly. Meanwhile the earlier workers serve, as far as they exist, and both configurations cost. A policy
	// that decides differently meanwhile gets the workers that it wants last.
	Delay int
	// Noise is the standard deviation of a window's element time, and of each other measurement. SubNoise is that
	// of sub-windows. A window is an outlier with probability Outliers: its time is then 30 % longer or shorter.
	Noise, SubNoise, Outliers float64
	// Drift is the relative growth of the demand in each window.
	Drift float64
	// Events happen before the steady window with their number.
	Events []Event
}

// Event changes a job.
type Event struct {
	Window int
	Change func(*World)
}

// World has the values that an event may change.
type World struct {
	Surface Surface
	Goal    autoscale.Goal
	Plan    uint64
	// Available bounds the workers that exist, whatever is wanted. nil means no bound.
	Available *autoscale.Configuration
	// Workers is the configuration before the event, which it cannot change.
	Workers autoscale.Configuration
}

// best returns the lowest score of a configuration that exists.
func (w World) best() float64 {
	g := w.Goal
	g.Limits.Max = w.existing(g.Limits.Max)
	_, lowest := w.Surface.Best(g)
	return lowest
}

// existing returns those of the wanted workers that exist.
func (w World) existing(wanted autoscale.Configuration) autoscale.Configuration {
	if a := w.Available; a != nil {
		return autoscale.Configuration{Remote: min(wanted.Remote, a.Remote), Local: min(wanted.Local, a.Local)}
	}
	return wanted
}

// Step is one steady window of a run.
type Step struct {
	Workers autoscale.Configuration
	// Windows counts this one and those before it in which a change of workers settled. Seconds is the time that they took, and
	// Bill the sum of their scores. Best is that of the best fixed configuration.
	Windows             int
	Seconds, Bill, Best float64
	// Regret is how far the true score of the configuration is above the best, relative to it.
	Regret   float64
	Decision autoscale.Decision
}

// Noisy returns a job with the noise of the published logs: 3 %, and 5 % outliers.
func Noisy(s Surface, g autoscale.Goal, windows int) Job {
	return Job{
		Surface: s, Goal: g, Start: g.Limits.Clamp(autoscale.Configuration{Remote: 1, Local: 1}), Windows: windows, Elements: PublishedElements, Delay: 3,
		Noise: 0.03, SubNoise: 0.02, Outliers: 0.05,
	}
}

// PublishedElements is the number of elements of a window in the published logs. Noisy has their noise.
const PublishedElements = 500

const subWindows = 10

// Run runs a policy on a job.
func (j Job) Run(p autoscale.Policy, seed uint64) []Step {
	rng, starts := rand.New(rand.NewPCG(seed, 1)), rand.New(rand.NewPCG(seed, 2))
	world := World{Surface: j.Surface, Goal: j.Goal}
	at, inTrainer, clock := j.Start, 0, 0.0
	var steps []Step
	var seconds, bill, best, lowest float64
	windows := 1
	wanted := at
	for n := range j.Windows {
		changed := n == 0 || j.Drift != 0
		for _, e := range j.Events {
			if e.Window == n {
				world.Workers = at
				e.Change(&world)
				changed = true
			}
		}
		world.Surface.Demand *= 1 + j.Drift
		next, serving := world.existing(wanted), world.existing(at)
		if changed {
			lowest = world.best()
		}
		if next != at {
			for range 1 + starts.IntN(j.Delay) {
				both := autoscale.Configuration{Remote: max(at.Remote, next.Remote), Local: max(at.Local, next.Local)}
				w := j.window(rng, world, serving, inTrainer, &clock)
				w.Settled = false
				windows, seconds = windows+1, seconds+w.Seconds
				bill, best = bill+world.Goal.Score(billed(both, inTrainer), world.Surface.Divided(serving, inTrainer).Time), best+lowest
				next = world.existing(p.Next(world.Goal, w).Target)
			}
			at = next
		}
		w := j.window(rng, world, at, inTrainer, &clock)
		score := world.Goal.Score(billed(at, inTrainer), world.Surface.Divided(at, inTrainer).Time)
		d := p.Next(world.Goal, w)
		wanted, inTrainer = d.Target, d.InTrainer
		steps = append(steps, Step{
			Workers: at, Windows: windows, Seconds: seconds + w.Seconds, Bill: bill + score, Best: best + lowest, Regret: score/lowest - 1, Decision: d,
		})
		windows, seconds, bill, best = 1, 0, 0, 0
	}
	return steps
}

// billed returns the workers that a job pays for. Steps in the trainer's process use as many processors as a local worker.
func billed(workers autoscale.Configuration, inTrainer int) autoscale.Configuration {
	workers.Local += min(inTrainer, 1)
	return workers
}

// window measures a window.
func (j Job) window(rng *rand.Rand, world World, at autoscale.Configuration, inTrainer int, clock *float64) autoscale.Window {
	gauss := func(sigma float64) float64 { return max(1+sigma*rng.NormFloat64(), 0.05) }
	s, truth := world.Surface, world.Surface.Divided(at, inTrainer)
	factor := gauss(j.Noise)
	if rng.Float64() < j.Outliers {
		factor *= []float64{0.7, 1.3}[rng.IntN(2)]
	}
	trainers := max(s.Trainers, 1)
	elementTime := truth.Time * factor
	w := autoscale.Window{Seconds: float64(j.Elements) * elementTime, Workers: at, Settled: true, Plan: world.Plan}
	*clock += w.Seconds
	w.End = *clock
	demand := truth.Demand * gauss(j.Noise)
	for range trainers {
		c := autoscale.Consumer{Host: "trainer"}
		wait := min(max(1-demand/elementTime, 0), 1)
		for range subWindows {
			c.ElementTimes = append(c.ElementTimes, elementTime*gauss(j.SubNoise))
			c.Waits = append(c.Waits, wait)
		}
		c.Queue = 10 * (1 - wait)
		w.Consumers = append(w.Consumers, c)
	}
	total := truth.Remote + truth.Local
	use := min(float64(trainers)/truth.Time/math.Max(total, 1e-12), 1)
	add := func(n int, capacity, use float64, local bool, host string) {
		for range n {
			busy := min(use*gauss(j.Noise), 1)
			w.Fleet = append(w.Fleet, autoscale.Worker{
				Host: host, Local: local, Busy: busy, CPU: busy, Elements: float64(trainers) / elementTime * capacity / total / float64(n),
			})
		}
	}
	// Behind a limit of the network, remote workers wait for room.
	add(at.Remote, truth.Remote, use*truth.Passed, false, "other")
	add(at.Local, truth.Local, use, true, "trainer")
	w.Hosts = []autoscale.Host{{ID: "trainer", Pressure: truth.Pressure * gauss(j.Noise), Load: truth.Load * gauss(j.Noise)}}
	return w
}
