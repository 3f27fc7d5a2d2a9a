package core_test

import (
	"fmt"
	"strings"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// candidates reads cache candidates: name, or name:refusal.
func candidates(list []string) (all []*pecanv1.CacheCandidate) {
	for _, text := range list {
		name, refusal, _ := strings.Cut(text, ":")
		all = append(all, &pecanv1.CacheCandidate{
			Name: name, Node: "Take_" + name, Origin: pecanv1.CacheCandidate_MARKED, Refusal: enum[pecanv1.CacheRefusal](pecanv1.CacheRefusal_value, "CACHE_REFUSAL_", refusal),
		})
	}
	return all
}

// caching shows what a user sees of the steps that a job may cache.
func (s *script) caching(job string) []string {
	e, err := s.core.Explain(job)
	if err != nil {
		s.t.Fatal(err)
	}
	r := e.Response
	lines := []string{fmt.Sprintf("%s, state=%q problem=%q", r.Cache, r.CacheStatus.GetState(), r.CacheProblem)}
	for _, c := range r.CacheCandidates {
		lines = append(lines, fmt.Sprintf("  %s %s %s", c.Name, c.Node, c.Refusal))
	}
	return lines
}
