package autocache_test

import (
	"testing"

	"github.com/pecan-ml/pecan/policies/autocache"
)

// A source that gives 1,000 elements per second to all workers together. A worker alone reads one in 2 ms with one thread, and
// has four threads.
func TestASourceHasALimitIfWorkersSlowEachOtherDown(t *testing.T) {
	sample := func(workers, read, other, perSecond float64) autocache.SourceSample {
		return autocache.SourceSample{Workers: workers, Elements: 1000, Seconds: 1000 * read, All: 1000 * (read + other), PerSecond: perSecond}
	}
	few := sample(1, 0.002, 0.008, 400)
	for name, c := range map[string]struct {
		samples     []autocache.SourceSample
		limit, each float64
	}{
		"one number of workers says nothing":     {[]autocache.SourceSample{sample(8, 0.032, 0.008, 1000)}, 0, 0},
		"eight workers wait for the source":      {[]autocache.SourceSample{few, sample(8, 0.032, 0.008, 1000)}, 0.001, 0.002},
		"sixteen are no faster":                  {[]autocache.SourceSample{few, sample(8, 0.032, 0.008, 1000), sample(16, 0.064, 0.008, 990)}, 0.001, 0.002},
		"eight workers are eight times as fast":  {[]autocache.SourceSample{few, sample(8, 0.002, 0.008, 3200)}, 0, 0},
		"other steps decide the speed":           {[]autocache.SourceSample{few, sample(8, 0.004, 0.008, 2600)}, 0, 0},
		"it was slower with fewer workers":       {[]autocache.SourceSample{sample(1, 0.032, 0.008, 1000), sample(8, 0.002, 0.008, 3200)}, 0, 0},
		"few elements of another time are noise": {[]autocache.SourceSample{{Workers: 1, Elements: 3, Seconds: 1e-6, All: 1e-6, PerSecond: 1}, sample(8, 0.032, 0.008, 1000)}, 0, 0},
	} {
		shared, each := autocache.FitSource(c.samples)
		if shared.PerElement != c.limit || shared.PerByte != 0 || each != c.each {
			t.Errorf("%s: %v, %v s for an element; want %v, %v s", name, shared, each, c.limit, c.each)
		}
	}
}
