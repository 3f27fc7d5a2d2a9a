package cacheable

import (
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

const (
	// MaxCandidates bounds the candidates of a plan that can be cached.
	MaxCandidates = 12
	// leastShare is the share of an epoch's CPU that the steps between two candidates must have, if the planner found the
	// second one. A cache there would hardly save more.
	leastShare = 0.02
)

// selected returns the candidates, of which at most MaxCandidates can be cached. The step that must be stored and marks come
// first. Marks beyond the bound are refused, and omitted is the number of other steps beyond it.
func (f *finder) selected() (listed []*Candidate, omitted int) {
	if f.Cache == pecanv1.Cache_CACHE_PAPER {
		f.keepSourceAndEnd()
		f.setRoles()
	} else {
		f.dropCheap()
	}
	room, left := MaxCandidates, map[*Candidate]bool{}
	for _, origin := range []pecanv1.CacheCandidate_Origin{
		pecanv1.CacheCandidate_FORCED, pecanv1.CacheCandidate_MARKED, pecanv1.CacheCandidate_FOUND,
	} {
		all := filtered(f.found, func(c *Candidate) bool { return c.Legal() && c.Origin == origin })
		kept := evenly(all, room)
		room -= len(kept)
		for _, c := range all {
			switch {
			case slices.Contains(kept, c):
			case origin == pecanv1.CacheCandidate_FOUND:
				left[c] = true
			default:
				c.refuse(refuse(pecanv1.CacheRefusal_CACHE_REFUSAL_TOO_MANY, "%d marks can be used, and a job has at most %d candidates. Remove the marks that you need least", len(all), MaxCandidates))
			}
		}
	}
	return filtered(f.found, func(c *Candidate) bool { return !left[c] }), len(left)
}

func filtered(all []*Candidate, which func(*Candidate) bool) (some []*Candidate) {
	for _, c := range all {
		if which(c) {
			some = append(some, c)
		}
	}
	return some
}

// keepSourceAndEnd keeps the first and the last of the steps that the planner found, besides the marks.
func (f *finder) keepSourceAndEnd() {
	found := filtered(f.found, func(c *Candidate) bool { return c.Origin == pecanv1.CacheCandidate_FOUND })
	if len(found) > 2 {
		f.found = filtered(f.found, func(c *Candidate) bool { return !slices.Contains(found[1:len(found)-1], c) })
	}
}

// setRoles names the first candidate that can be cached, and the end of the dataset, as the published policy does.
func (f *finder) setRoles() {
	first := true
	for _, c := range f.found {
		switch {
		case !c.Legal():
			continue
		case c.end:
			c.Role = pecanv1.CacheCandidate_FULL_CACHE
		case first:
			c.Role = pecanv1.CacheCandidate_SOURCE_CACHE
		}
		first = false
	}
}

// dropCheap drops the steps that the planner found if the work since the candidate before them is small. Without a
// profile nothing is known of the work.
func (f *finder) dropCheap() {
	before := 0.0
	f.found = filtered(f.found, func(c *Candidate) bool {
		cheap := c.Origin == pecanv1.CacheCandidate_FOUND && !c.end && f.spent > 0 && c.spent-before < leastShare*f.spent
		if !cheap && c.Legal() {
			before = c.spent
		}
		return !cheap
	})
}

// evenly returns n candidates that are spread over all of them, with the last one and, if n is above 1, the first one.
func evenly(all []*Candidate, n int) []*Candidate {
	switch {
	case len(all) <= n:
		return all
	case n <= 0:
		return nil
	case n == 1:
		return all[len(all)-1:]
	}
	some := make([]*Candidate, n)
	for i := range some {
		some[i] = all[i*(len(all)-1)/(n-1)]
	}
	return some
}
