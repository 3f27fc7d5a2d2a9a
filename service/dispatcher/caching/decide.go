package caching

import (
	"cmp"

	"google.golang.org/protobuf/proto"

	"github.com/pecan-ml/pecan/policies/autocache"
	"github.com/pecan-ml/pecan/policies/autoscale"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/measure"
)

// Decide returns which candidate is cached, and why. If too little is known, the decision is nil and waitsFor says what is
// missing. prices may be zero.
func Decide(facts measure.Caching, prices autoscale.Prices) (decided *pecanv1.CacheDecision, waitsFor string) {
	in, waitsFor := inputOf(facts, prices)
	if waitsFor != "" {
		return nil, waitsFor
	}
	if err := in.Validate(); err != nil {
		return nil, err.Error()
	}
	if facts.Options.GetCache() == pecanv1.Cache_CACHE_PAPER {
		return message(facts, autocache.CachewPaper().Decide(in.Pipeline)), ""
	}
	d := autocache.Decide(in)
	decided = message(facts, d)
	for i, p := range d.Candidates {
		if p.Eligible {
			decided.Candidates[i].BenefitS = proto.Float64(p.Benefit * secondsPerHour / cmp.Or(prices.Trainer, 1))
		}
	}
	return decided, ""
}

func message(facts measure.Caching, d autocache.Decision) *pecanv1.CacheDecision {
	m := &pecanv1.CacheDecision{Why: d.Reason, Epochs: d.Epochs, Compute: epoch(d.Compute), Total: d.Total}
	if d.Choice != autocache.None {
		m.Node = facts.Steps[d.Choice].Candidate.Node
	}
	for i, p := range d.Candidates {
		predicted := &pecanv1.CachePrediction{Node: facts.Steps[i].Candidate.Node, Eligible: p.Eligible, Why: p.Reason}
		if p.Eligible {
			predicted.Share, predicted.Bytes, predicted.Total = p.Share, p.Bytes, p.Total
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
