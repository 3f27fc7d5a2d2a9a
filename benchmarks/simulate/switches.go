package main

import (
	"fmt"
	"math"

	"github.com/spf13/pflag"

	"github.com/pecan-ml/pecan/policies/autoplacement"
	"github.com/pecan-ml/pecan/policies/autoscale"
	"github.com/pecan-ml/pecan/policies/sim"
)

// switches has the switches of the predecessors' dispatchers, by their names. They apply to the versions of the published
// code. Without them, all policies run with their published constants.
type switches struct {
	// scalingPolicy is 1 for Cachew's scaling, 2 for all workers, 3 for Pecan's placement; 0 for the comparison of all.
	scalingPolicy      int
	scalingThresholdUp float64
	batchesPerDecision int
	clientCost         float64
	workerCost         float64
	optimizeCost       bool

	flags *pflag.FlagSet
}

// names are the flags of the switches.
var names = []string{"scaling-policy", "scaling-threshold-up", "batches-per-decision", "client-cost", "worker-cost", "optimize-cost"}

func (s *switches) register(f *pflag.FlagSet) {
	s.flags = f
	f.IntVar(&s.scalingPolicy, names[0], 0, "the predecessors' scaling_policy, compared with Pecan's default: 1 Cachew's scaling, 2 all workers, 3 Pecan's placement; 0 compares all policies")
	f.Float64Var(&s.scalingThresholdUp, names[1], 0.03, "scaling_threshold_up: the gain that one more worker must have; without this flag, cachew-code uses 0.07")
	f.IntVar(&s.batchesPerDecision, names[2], sim.PublishedElements, "batches_per_decision: elements of a measurement window. Their noise is independent")
	f.Float64Var(&s.clientCost, names[3], autoscale.Published.Trainer, "client_cost: price of a trainer per hour")
	f.Float64Var(&s.workerCost, names[4], autoscale.Published.Remote, "worker_cost: price of a remote worker per hour")
	f.BoolVar(&s.optimizeCost, names[5], false, "optimize_cost: Pecan's placement adds a remote worker if that lowers the price of an element")
}

// given reports whether a switch was given.
func (s *switches) given() bool {
	for _, name := range names {
		if s.flags.Changed(name) {
			return true
		}
	}
	return false
}

// policies returns the compared policies.
func (s *switches) policies() ([]sim.Named, error) {
	if !(s.clientCost >= 0 && s.workerCost >= 0) || math.IsInf(s.clientCost+s.workerCost, 1) || s.batchesPerDecision < 1 || math.IsNaN(s.scalingThresholdUp) {
		return nil, fmt.Errorf("the switches are out of range: client_cost %v, worker_cost %v, batches_per_decision %d, scaling_threshold_up %v",
			s.clientCost, s.workerCost, s.batchesPerDecision, s.scalingThresholdUp)
	}
	cachew := sim.Named{Name: "cachew-code", New: func() autoscale.Policy {
		p := autoscale.CachewCode()
		if s.flags.Changed(names[1]) {
			p.Up = s.scalingThresholdUp
		}
		return p
	}}
	placement := sim.Named{Name: "pecan-code", New: func() autoscale.Policy {
		p := autoplacement.NewIncDec()
		p.Up, p.ByCost = s.scalingThresholdUp, s.optimizeCost
		return p
	}}
	switch s.scalingPolicy {
	case 0:
		all := append([]sim.Named(nil), sim.Policies...)
		for i := range all {
			for _, faithful := range []sim.Named{cachew, placement} {
				if all[i].Name == faithful.Name {
					all[i] = faithful
				}
			}
		}
		return all, nil
	case 1:
		return []sim.Named{sim.Policies[0], cachew}, nil
	case 2:
		everything := autoscale.Fixed{Remote: math.MaxInt, Local: math.MaxInt}
		return []sim.Named{sim.Policies[0], {Name: "all workers", New: func() autoscale.Policy { return everything }}}, nil
	case 3:
		return []sim.Named{sim.Policies[0], placement}, nil
	}
	return nil, fmt.Errorf("scaling_policy %d is none of 1 (Cachew's scaling), 2 (all workers) and 3 (Pecan's placement)", s.scalingPolicy)
}

// adjust gives the jobs of scenarios the prices and the length of windows. The noise of a window falls with the root of its
// length.
func (s *switches) adjust(scenarios []sim.Scenario) []sim.Scenario {
	for i := range scenarios {
		original := scenarios[i].Job
		scenarios[i].Job = func(seed uint64) sim.Job {
			j := original(seed)
			j.Goal.Prices.Trainer, j.Goal.Prices.Remote = s.clientCost, s.workerCost
			j.Noise *= math.Sqrt(float64(j.Elements) / float64(s.batchesPerDecision))
			j.Elements = s.batchesPerDecision
			return j
		}
	}
	return scenarios
}
