package caching

import (
	"math"

	"github.com/pecan-ml/pecan/policies/autocache"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/measure"
)

// storeOf describes the directory of caches, as its workers have measured it, or says what is missing.
func storeOf(facts measure.Caching) (s autocache.Store, waitsFor string) {
	var reads, writes []*pecanv1.StoreTransfer
	s.Free = math.Inf(1)
	problem, writable := "", false
	for _, worker := range facts.Workers {
		rates := worker.Rates
		if rates == nil {
			continue
		}
		reads, writes = append(reads, rates.Reads...), append(writes, rates.Writes...)
		if rates.Problem != "" {
			problem = rates.Problem
			continue
		}
		writable = true
		if rates.FreeBytes >= 0 {
			s.Free = min(s.Free, float64(rates.FreeBytes))
		}
	}
	if problem != "" && !writable {
		s.Free = 0
	} else if len(writes) == 0 || len(reads) == 0 {
		return s, "no worker has measured its directory of caches yet"
	}
	s.Read, s.Write = accessOf(reads, facts.Reads), accessOf(writes, facts.Writes)
	if facts.Quota >= 0 {
		stored := uint64(0)
		for _, step := range facts.Steps {
			if step.Candidate.Node == facts.Current {
				stored = step.Bytes
			}
		}
		s.Free = min(s.Free, max(float64(facts.Quota)-float64(stored), 0))
	}
	return s, ""
}

// accessOf fits the speed of the store to what workers have measured, each by itself, and to what several have transferred together.
// As long as they have not been faster together, all are as fast as one.
func accessOf(samples []*pecanv1.StoreTransfer, uses []measure.StoreUse) autocache.Access {
	var alone, work []autocache.Sample
	for _, s := range samples {
		elements, bytes := float64(s.Elements), float64(s.Bytes)
		alone = append(alone, autocache.Sample{Elements: elements, Bytes: bytes, Seconds: s.Seconds})
		work = append(work, autocache.Sample{Elements: elements, Bytes: bytes, Seconds: s.WorkS})
	}
	rate, together := autocache.FitRate(autocache.Rate{}, alone), []autocache.Together{}
	for _, u := range uses {
		together = append(together, autocache.Together{Workers: float64(u.Workers), Elements: u.Elements, Bytes: u.Bytes, Seconds: u.Seconds})
	}
	return autocache.Access{Link: autocache.Link{Alone: rate, Shared: autocache.FitShared(rate, together)}, Work: autocache.FitRate(autocache.Rate{}, work)}
}
