package cacheable

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// candidates makes candidates of the kinds: f for forced, z for frozen, m for marked, a for found. Capital letters are those that
// cannot be cached.
func candidates(kinds string) (all []*Candidate) {
	for i, kind := range kinds {
		c := &Candidate{CacheCandidate: &pecanv1.CacheCandidate{Node: fmt.Sprint(i), Origin: pecanv1.CacheCandidate_FOUND}}
		switch unicode.ToLower(kind) {
		case 'f':
			c.Origin, c.Freezes = pecanv1.CacheCandidate_FORCED, true
		case 'z':
			c.Origin, c.Freezes = pecanv1.CacheCandidate_MARKED, true
		case 'm':
			c.Origin = pecanv1.CacheCandidate_MARKED
		}
		if unicode.IsUpper(kind) {
			c.refuse(refuse(pecanv1.CacheRefusal_CACHE_REFUSAL_DTYPE, "it has another reason"))
		}
		all = append(all, c)
	}
	return all
}

// Of more than 12 steps that can be cached, marks come first. All marks are listed, and those beyond the bound are refused.
func TestAtMostTwelveCandidatesCanBeCached(t *testing.T) {
	a, m, z := strings.Repeat("a", 30), strings.Repeat("m", 30), strings.Repeat("z", 30)
	for kinds, want := range map[string][]int{
		"mamama":                 {0, 1, 2, 3, 4, 5},
		a[:12]:                   {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11},
		a[:23]:                   {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22},
		"f" + a[:24] + "m":       {0, 1, 3, 6, 8, 11, 13, 16, 18, 21, 24, 25},
		m[:22] + "z":             {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22},
		z[:6] + "f" + z[:15]:     {0, 2, 4, 6, 7, 9, 11, 13, 15, 17, 19, 21},
		m[:12] + "aa":            {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11},
		"MM" + m[:11] + "ZaaA":   {2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 15},
		"M" + m[:12] + "F" + "m": {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 14},
	} {
		f := &finder{found: candidates(kinds)}
		listed, omitted := f.selected()
		var got []int
		for i, c := range f.found {
			kind, reason := rune(kinds[i]), c.Refusal
			switch listed := slices.Contains(listed, c); {
			case c.Legal() && listed:
				got = append(got, i)
			case unicode.ToLower(kind) != 'a' && !listed:
				t.Errorf("%s: mark %d is not listed", kinds, i)
			case unicode.IsUpper(kind) && reason != pecanv1.CacheRefusal_CACHE_REFUSAL_DTYPE,
				unicode.IsLower(kind) && listed && (reason != pecanv1.CacheRefusal_CACHE_REFUSAL_TOO_MANY || !strings.Contains(c.Why, "at most 12")):
				t.Errorf("%s: candidate %d is refused with %v: %s", kinds, i, reason, c.Why)
			}
		}
		if !slices.Equal(got, want) || omitted != len(kinds)-len(listed) {
			t.Errorf("%s: %v are kept and %d left out, want %v", kinds, got, omitted, want)
		}
	}
}
