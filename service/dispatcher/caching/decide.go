package caching

import (
	"cmp"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/pecan-ml/pecan/policies/autocache"
	"github.com/pecan-ml/pecan/policies/autoscale"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/measure"
)

const secondsPerHour = 3600

// Prices are the prices of a job. Storage is the price of a byte of caches for an hour.
type Prices struct {
	autoscale.Prices
	Storage float64
}

// Decide returns which candidate is cached, and why. If too little is known, the decision is nil and waitsFor says what is
// missing. prices may be zero.
func Decide(facts measure.Caching, prices Prices) (decided *pecanv1.CacheDecision, waitsFor string) {
	if facts.Ordered != nil && facts.Options.GetCache() != pecanv1.Cache_CACHE_PAPER {
		return decideOrdered(facts, prices)
	}
	if facts.Options.GetCache() == pecanv1.Cache_CACHE_PAPER {
		// The published policy knows no limits, only times of threads.
		facts.Source, facts.CPUWait = nil, 0
	}
	in, waitsFor := validInput(facts, prices)
	switch {
	case waitsFor != "":
		return nil, waitsFor
	case facts.Options.GetCache() == pecanv1.Cache_CACHE_PAPER:
		return message(facts, autocache.CachewPaper().Decide(in.Pipeline)), ""
	}
	return priced(facts, autocache.Decide(in), prices), ""
}

// decideOrdered decides in the registered order of the steps and in the decided one. The candidate in force is the cached step in
// the order in which it is cached.
func decideOrdered(facts measure.Caching, prices Prices) (decided *pecanv1.CacheDecision, waitsFor string) {
	ordered := inOrder(facts)
	if facts.Ordered.InForce {
		facts.Current = ""
	} else {
		ordered.Current = ""
	}
	in, waitsFor := validInput(facts, prices)
	if waitsFor != "" {
		return nil, waitsFor
	}
	other, waitsFor := validInput(ordered, prices)
	if waitsFor != "" {
		return nil, waitsFor
	}
	d, useOrdered := autocache.DecideOrdered(in, other, facts.Ordered.InForce)
	decided = priced(facts, d, prices)
	if useOrdered && d.Choice != autocache.None {
		decided.Order = slices.Clone(facts.Ordered.Decided.Order)
	}
	return decided, ""
}

// validInput returns the policy's input, or what is missing for it or wrong with it.
func validInput(facts measure.Caching, prices Prices) (in autocache.Input, waitsFor string) {
	if in, waitsFor = inputOf(facts, prices); waitsFor == "" {
		if err := in.Validate(); err != nil {
			waitsFor = err.Error()
		}
	}
	return in, waitsFor
}

// priced returns a decision as a message, with the benefits of the candidates.
func priced(facts measure.Caching, d autocache.Decision, prices Prices) *pecanv1.CacheDecision {
	decided := message(facts, d)
	for i, p := range d.Candidates {
		if p.Eligible {
			decided.Candidates[i].BenefitS = proto.Float64(p.Benefit * secondsPerHour / cmp.Or(prices.Trainer, 1))
		}
	}
	return decided
}

func message(facts measure.Caching, d autocache.Decision) *pecanv1.CacheDecision {
	m := &pecanv1.CacheDecision{Why: d.Reason, Epochs: d.Epochs, Compute: epoch(d.Compute), Total: d.Total, Tried: d.Tried}
	if d.Choice != autocache.None {
		m.Node = facts.Steps[d.Choice].Candidate.Node
	}
	for i, p := range d.Candidates {
		predicted := &pecanv1.CachePrediction{Node: facts.Steps[i].Candidate.Node, Eligible: p.Eligible, Why: p.Reason}
		if p.Eligible {
			predicted.Share, predicted.Bytes, predicted.Epochs, predicted.Total = p.Share, p.Bytes, p.Epochs, p.Total
			predicted.Put, predicted.Get = epoch(p.Put), epoch(p.Get)
		}
		m.Candidates = append(m.Candidates, predicted)
	}
	return m
}

func epoch(e autocache.Epoch) *pecanv1.CacheEpoch {
	return &pecanv1.CacheEpoch{
		Seconds: e.Seconds, Score: e.Score, Cost: e.Cost, Bound: string(e.Bound), Remote: uint32(e.Workers.Remote), Local: uint32(e.Workers.Local),
	}
}
