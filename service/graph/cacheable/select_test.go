package cacheable

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// candidates makes candidates of the kinds: f for forced, z for frozen, m for marked, a for found.
func candidates(kinds string) (all []*Candidate) {
	for i, kind := range kinds {
		c := &Candidate{CacheCandidate: &pecanv1.CacheCandidate{Node: fmt.Sprint(i), Origin: pecanv1.CacheCandidate_FOUND}}
		switch kind {
		case 'f':
			c.Origin, c.Freezes = pecanv1.CacheCandidate_FORCED, true
		case 'z':
			c.Origin, c.Freezes = pecanv1.CacheCandidate_MARKED, true
		case 'm':
			c.Origin = pecanv1.CacheCandidate_MARKED
		}
		all = append(all, c)
	}
	return all
}

func TestAtMostTwelveCandidatesAreKept(t *testing.T) {
	a, m, z := strings.Repeat("a", 30), strings.Repeat("m", 30), strings.Repeat("z", 30)
	for kinds, want := range map[string][]int{
		"mamama":           {0, 1, 2, 3, 4, 5},
		a[:12]:             {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11},
		a[:23]:             {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22},
		"f" + a[:24] + "m": {0, 1, 3, 6, 8, 11, 13, 16, 18, 21, 24, 25},
		m[:15] + "z":       {0, 1, 2, 4, 5, 7, 8, 9, 11, 12, 14, 15},
		z[:13] + "ma":      {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12},
		m[:11] + "aa":      {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12},
	} {
		f := &finder{found: candidates(kinds)}
		kept, omitted := f.selected()
		var got []int
		for _, c := range kept {
			got = append(got, slices.Index(f.found, c))
		}
		if !slices.Equal(got, want) || omitted != len(kinds)-len(want) {
			t.Errorf("%s: %v are kept and %d left out, want %v", kinds, got, omitted, want)
		}
	}
}
