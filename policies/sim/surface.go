package sim

import (
	"math"
	"math/rand/v2"
	"slices"

	"github.com/pecan-ml/pecan/policies/autoscale"
)

// Surface is a bottleneck model of a job: the slower of trainers and workers determines the element time.
type Surface struct {
	// Trainers is the number of trainers, Demand the element time of one that never waits.
	Trainers int
	Demand   float64
	// Remote and Local are the elements per second of one worker. The capacity of n is the rate × n^exponent.
	Remote, RemoteExponent float64
	Local, LocalExponent   float64
	// Network bounds the elements per second of all remote workers; 0 means it does not.
	Network float64
	// Cores is the number of processors of the trainers' hosts; 0 means that they are never contended. Trainers
	// use TrainerCores, each local worker WorkerCores, and the receipt of elements ReceiveCores × elements per
	// second. Slowdown is the relative growth of the demand when the hosts need twice the processors that they have.
	// With fewer processors above what they have, it falls with the exponent.
	Cores, TrainerCores, WorkerCores, ReceiveCores float64
	Slowdown, SlowdownExponent                     float64
	// Curve has measured element times for 1, 2 … remote workers; nil means that the rates above hold. The shortest
	// is the demand. Where the trainers are the bound, the capacity grows with the number of workers.
	Curve []float64
	// Dips has factors of single configurations.
	Dips map[autoscale.Configuration]float64
	// Steps has the share of an element's work that each step of the pipeline has. It counts only where steps are divided.
	Steps []float64
}

// Truth is the steady state of a configuration without noise.
type Truth struct {
	Time, Demand, Remote, Local, Load, Pressure float64
	// Passed is the share of what remote workers could compute that the network lets through.
	Passed float64
}

// At returns the steady state of a configuration.
func (s Surface) At(c autoscale.Configuration) Truth { return s.Divided(c, 0) }

// Divided returns the steady state if this many last steps of each element run in the trainer's process, and the others on
// workers. The process is as fast as one more local worker and uses as many processors. It is a stage after the workers, so
// the slower of both is the bound. Elements have the same size after each step.
func (s Surface) Divided(c autoscale.Configuration, inTrainer int) Truth {
	trainers := float64(max(s.Trainers, 1))
	t := Truth{Demand: s.Demand, Remote: capacity(s.Remote, s.RemoteExponent, c.Remote), Local: capacity(s.Local, s.LocalExponent, c.Local)}
	if n := min(c.Remote, len(s.Curve)); n > 0 {
		t.Demand = slices.Min(s.Curve)
		t.Remote = trainers / s.Curve[n-1]
		for m := n; m > 1 && s.Curve[m-1] < t.Demand*atFloor; m-- {
			t.Remote = max(t.Remote, trainers/s.Curve[m-2]*float64(n)/float64(m-1))
		}
	}
	locals, process := c.Local, math.Inf(1)
	if inTrainer > 0 {
		moved := 0.0
		for _, share := range s.Steps[len(s.Steps)-inTrainer:] {
			moved += share
		}
		locals++
		each := capacity(s.Local, s.LocalExponent, locals) / float64(locals)
		process, t.Local, t.Remote = each/moved, each*float64(c.Local)/(1-moved), t.Remote/(1-moved)
	}
	if t.Passed = 1; s.Network > 0 && t.Remote > s.Network {
		t.Remote, t.Passed = s.Network, s.Network/t.Remote
	}
	if s.Cores > 0 {
		received := min(t.Remote, trainers/s.Demand)
		t.Load = (s.TrainerCores + s.WorkerCores*float64(locals) + s.ReceiveCores*received) / s.Cores
		if excess := t.Load - 1; excess > 0 {
			t.Demand *= 1 + s.Slowdown*math.Pow(excess, s.SlowdownExponent)
			t.Local, process = t.Local/(1+excess), process/(1+excess)
			t.Pressure = excess / (1 + excess)
		}
	}
	if f, has := s.Dips[c]; has {
		t.Demand, t.Remote, t.Local, process = t.Demand*f, t.Remote/f, t.Local/f, process/f
	}
	t.Time = math.Inf(1)
	if total := t.Remote + t.Local; total > 0 {
		t.Time = max(t.Demand, trainers/min(total, process))
	}
	return t
}

// atFloor is how far above the shortest time a measured time still shows the trainers' demand.
const atFloor = 1.02

func capacity(rate, exponent float64, n int) float64 {
	if n <= 0 {
		return 0
	}
	return rate * math.Pow(float64(n), exponent)
}

// Best returns the configuration with the lowest score within the limits, and its score.
func (s Surface) Best(g autoscale.Goal) (best autoscale.Configuration, score float64) {
	score = math.Inf(1)
	for remote := g.Limits.Min.Remote; remote <= g.Limits.Max.Remote; remote++ {
		for local := g.Limits.Min.Local; local <= g.Limits.Max.Local; local++ {
			c := autoscale.Configuration{Remote: remote, Local: local}
			if v := g.Score(c, s.At(c).Time); v < score {
				best, score = c, v
			}
		}
	}
	return best, score
}

// Families are the kinds of random surfaces.
var Families = []string{"floor", "inverse", "diminishing", "network", "contention", "dips"}

// Steps is the number of steps of the pipelines of random surfaces.
const Steps = 6

// Random returns a random surface of a family, and a goal for it.
func Random(rng *rand.Rand, family string) (Surface, autoscale.Goal) {
	between := func(low, high float64) float64 { return low + (high-low)*rng.Float64() }
	s := Surface{Demand: 0.04 * math.Exp(between(-1, 1)), RemoteExponent: 1, LocalExponent: between(0.9, 1)}
	needed := between(1, 18)
	if family == "inverse" {
		needed, s.RemoteExponent = between(15, 40), between(0.9, 1)
	}
	s.Trainers = 1 << rng.IntN(3)
	s.Remote = float64(s.Trainers) / (s.Demand * math.Pow(needed, s.RemoteExponent))
	s.Local = s.Remote * between(0.2, 1.2)
	if family == "diminishing" {
		s.LocalExponent = between(0.4, 0.8)
	}
	if family == "contention" || family == "dips" {
		s.Cores, s.TrainerCores, s.WorkerCores = 96, between(15, 45), between(5, 16)
		s.ReceiveCores, s.Slowdown = between(5, 35)*s.Demand/float64(s.Trainers), between(0.3, 1)
		s.SlowdownExponent, s.LocalExponent = between(0.7, 1.5), between(0.6, 0.95)
	}
	if family == "network" {
		s.Network = between(0.5, 1) * float64(s.Trainers) / s.Demand
	}
	g := autoscale.Goal{Trainers: s.Trainers, Prices: autoscale.Published, Limits: autoscale.Limits{Max: autoscale.Configuration{Remote: 20, Local: 10}}}
	if rng.IntN(2) == 0 {
		g.Prices.Local = 0.05
	}
	if family == "dips" {
		s.Dips = map[autoscale.Configuration]float64{}
		for remote := range g.Limits.Max.Remote + 1 {
			for local := range g.Limits.Max.Local + 1 {
				if rng.IntN(10) == 0 {
					s.Dips[autoscale.Configuration{Remote: remote, Local: local}] = 1 + between(0.03, 0.1)
				}
			}
		}
	}
	sum := 0.0
	for range Steps {
		s.Steps = append(s.Steps, between(0.2, 1.8))
		sum += s.Steps[len(s.Steps)-1]
	}
	for i := range s.Steps {
		s.Steps[i] /= sum
	}
	return s, g
}
