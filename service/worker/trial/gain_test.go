package trial

import (
	"math"
	"testing"
)

// If too little was measured, or if the result may still be a gain, a longer trial could decide. The order is
// then not refused for good.
func TestAGainIsDoubtedUntilItIsCertain(t *testing.T) {
	for what, c := range map[string]struct {
		openings, each int
		ordered        func(opening int) float64
		doubted, open  bool
	}{
		"faster":                           {8, 10, func(int) float64 { return 3 }, false, false},
		"faster, in few elements":          {5, 4, func(int) float64 { return 2 }, false, false},
		"a little faster, in few elements": {5, 4, func(int) float64 { return 3.5 }, true, true},
		"in one opening":                   {1, 100, func(int) float64 { return 1 }, true, true},
		"faster in most openings":          {4, 10, func(opening int) float64 { return []float64{2, 4.2, 2, 4.2}[opening] }, true, true},
		"slower in most openings":          {4, 10, func(opening int) float64 { return []float64{5, 3.9, 5, 3.9}[opening] }, true, false},
		"slower":                           {8, 10, func(int) float64 { return 5 }, true, false},
	} {
		var g gain
		for opening := range c.openings {
			for range c.each {
				g.add(4, c.ordered(opening))
			}
			g.next()
		}
		if doubt := g.doubt(); (doubt != "") != c.doubted || doubt != "" && g.open() != c.open {
			t.Errorf("%s: doubt %q, open %v", what, doubt, g.open())
		}
	}
}

func TestTheIntervalMatchesTablesOfStudentsDistribution(t *testing.T) {
	for freedom, want := range map[int]float64{1: 12.706, 5: 2.571, 10: 2.228, 11: 2.201, 29: 2.045, 100: 1.984, 1_000_000: 1.96} {
		if got := student(freedom); math.Abs(got-want) > 0.001 {
			t.Errorf("%d: %g, want %g", freedom, got, want)
		}
	}
	var g gain
	for look := range 4 {
		for i := range 10 {
			g.add(5+float64(look)+float64(i%2), 3)
		}
		g.next()
	}
	// Means of 2.5 to 5.5, and 2 % of the 7 that an element takes.
	if low, high := g.interval(); math.Abs(low-(4-2.054-0.14)) > 0.01 || math.Abs(high-(4+2.054+0.14)) > 0.01 {
		t.Errorf("saved: %g to %g", low, high)
	}
}
