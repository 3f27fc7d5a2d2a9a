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
	s.Read, s.Write = accessOf(reads), accessOf(writes)
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

// accessOf fits the speed of the store. As long as no worker has been faster together with others, all together are as
// fast as one.
func accessOf(samples []*pecanv1.StoreTransfer) autocache.Access {
	var alone, work []autocache.Sample
	for _, s := range samples {
		elements, bytes := float64(s.Elements), float64(s.Bytes)
		alone = append(alone, autocache.Sample{Elements: elements, Bytes: bytes, Seconds: s.Seconds})
		work = append(work, autocache.Sample{Elements: elements, Bytes: bytes, Seconds: s.WorkS})
	}
	rate := autocache.FitRate(autocache.Rate{}, alone)
	return autocache.Access{Link: autocache.Link{Alone: rate, Shared: rate}, Work: autocache.FitRate(autocache.Rate{}, work)}
}
