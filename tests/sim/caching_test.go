package sim

import (
	"math/rand/v2"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/caching"
	"github.com/pecan-ml/pecan/service/dispatcher/core/measure"
)

// chosenEpochs is the number of epochs of a job with decisions, each of which changes the decision.
const chosenEpochs = 3

// forcedMark is the name of a step in a graph. Under passedMark, it is no cache.
const forcedMark, passedMark = "pecan_cache", "passed_here"

// chooseCache decides at random which step is cached, and how much of it. No decision may change an element. The clock of
// the simulation stands still while workers compute, so the policy would find no cost.
func (c *cluster) chooseCache(facts measure.Caching, _ caching.Prices) (decided *pecanv1.CacheDecision, waitsFor string) {
	rng := rand.New(rand.NewPCG(c.options.seed, 2000+facts.Begun))
	decided = &pecanv1.CacheDecision{Why: "chance"}
	if at := rng.IntN(len(facts.Steps) + 1); at > 0 {
		decided.Node = facts.Steps[at-1].Candidate.Node
		decided.Candidates = []*pecanv1.CachePrediction{{Node: decided.Node, Eligible: true, Share: []float64{1, 1, rng.Float64()}[rng.IntN(3)]}}
		c.choices.Add(1)
	}
	return decided, ""
}
