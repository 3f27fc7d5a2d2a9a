package autocache_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/pecan-ml/pecan/policies/autocache"
)

func TestFitRateFindsTheRate(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 0))
	for range 1000 {
		want := autocache.Rate{PerElement: 1e-5 * math.Exp(3*rng.NormFloat64()), PerByte: 1e-9 * math.Exp(rng.NormFloat64())}
		var samples []autocache.Sample
		for _, size := range []float64{1e3, 1e5, 1e7} {
			for range 5 {
				s := autocache.Sample{Elements: 8, Bytes: 8 * size}
				s.Seconds = want.Of(s.Elements, s.Bytes) * (1 + 0.02*rng.NormFloat64())
				samples = append(samples, s)
			}
		}
		got := autocache.FitRate(autocache.Rate{}, samples)
		for _, size := range []float64{1e3, 3e4, 1e6, 1e7} {
			if ratio := got.Of(1, size) / want.Of(1, size); math.Abs(ratio-1) > 0.1 {
				t.Fatalf("an element of %v bytes takes %v times what was fitted to %+v", size, ratio, want)
			}
		}
	}
}

func TestFitRateWithoutEnoughSamples(t *testing.T) {
	before := autocache.Rate{PerElement: 1, PerByte: 2}
	for name, c := range map[string]struct {
		samples []autocache.Sample
		want    autocache.Rate
	}{
		"none":                {nil, before},
		"invalid":             {[]autocache.Sample{{1, 1, 0}, {1, 1, math.NaN()}, {1, math.Inf(1), 1}, {-1, 1, 1}}, before},
		"one size":            {[]autocache.Sample{{1, 10, 5}, {2, 20, 10}}, autocache.Rate{PerByte: 0.5}},
		"large ones are slow": {[]autocache.Sample{{1, 10, 1}, {1, 1000, 200}}, autocache.Rate{PerByte: (10.0/1 + 1000.0/200) / (100 + 25)}},
		"large ones are fast": {[]autocache.Sample{{1, 10, 2}, {1, 1000, 1}}, autocache.Rate{PerElement: (0.5 + 1) / (0.25 + 1)}},
	} {
		got := autocache.FitRate(before, c.samples)
		if math.Abs(got.PerElement-c.want.PerElement) > 1e-9 || math.Abs(got.PerByte-c.want.PerByte) > 1e-9 {
			t.Errorf("%s: the rate is %+v, want %+v", name, got, c.want)
		}
	}
}

func TestEarlierJobsDecideTheExpectedEpochs(t *testing.T) {
	past := []autocache.PastJob{{Ago: 1, Epochs: 10}, {Ago: 30, Epochs: 20}, {Ago: 100, Epochs: 1}}
	for _, c := range []struct {
		begun float64
		past  []autocache.PastJob
		want  float64
	}{
		{0, nil, 3}, {10, nil, 10}, {0, past, (3 + 10 + 20 + 1) / 4.0}, {1, past, (3 + 9 + 19) / 3.0}, {15, past, (15 + 5) / 2.0}, {40, past, 40},
	} {
		if got := autocache.ExpectOwn(c.begun, c.past); math.Abs(got-c.want) > 1e-12 {
			t.Errorf("after %v epochs and %d past jobs, %v are expected, want %v", c.begun, len(c.past), got, c.want)
		}
	}
	for hours, want := range map[float64]autocache.Others{
		0.5: {Hours: 0.5}, 24: {10, 1, 24}, 48: {30, 2, 48}, 1000: {31, 3, 1000}, 0: {31, 3, 100},
	} {
		if got := autocache.ExpectOthers(hours, past); got != want {
			t.Errorf("in %v hours, %+v are expected of others, want %+v", hours, got, want)
		}
	}
}

// recorded is when a job began, and how many epochs.
type recorded [2]int64

func (r recorded) GetFirstS() int64  { return r[0] }
func (r recorded) GetEpochs() uint64 { return uint64(r[1]) }

func TestRecordedJobsAreAsLongAgoAsTheyBegan(t *testing.T) {
	got := autocache.PastJobs([]recorded{{1000, 4}, {4600, 1}, {9000, 2}}, 4600)
	if want := []autocache.PastJob{{Ago: 1, Epochs: 4}, {Epochs: 1}, {Epochs: 2}}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// One worker takes 1 ms for an element of 1 MB.
func TestAStoreIsAsFastAsWorkersHaveBeenTogether(t *testing.T) {
	alone := autocache.Rate{PerElement: 0.0002, PerByte: 0.8e-9}
	for name, c := range map[string]struct {
		seen  []autocache.Together
		times float64
	}{
		"nobody was seen":               {nil, 1},
		"two share the speed of one":    {[]autocache.Together{{Workers: 2, Elements: 10000, Bytes: 1e10, Seconds: 10}}, 1},
		"trainers took half of it":      {[]autocache.Together{{Workers: 2, Elements: 5000, Bytes: 5e9, Seconds: 10}}, 1},
		"three are as fast as three":    {[]autocache.Together{{Workers: 2, Elements: 10000, Bytes: 1e10, Seconds: 10}, {Workers: 3, Elements: 30000, Bytes: 3e10, Seconds: 10}}, 3},
		"two are not faster than two":   {[]autocache.Together{{Workers: 2, Elements: 90000, Bytes: 9e10, Seconds: 10}}, 2},
		"a time that cannot be is left": {[]autocache.Together{{Workers: 2, Elements: 10000, Bytes: 1e10}}, 1},
	} {
		shared := autocache.FitShared(alone, c.seen)
		if math.Abs(shared.PerElement*c.times-alone.PerElement) > 1e-12 || math.Abs(shared.PerByte*c.times-alone.PerByte) > 1e-18 {
			t.Errorf("%s: %v, want %v times the speed of %v", name, shared, c.times, alone)
		}
	}
}
