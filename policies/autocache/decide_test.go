package autocache_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/pecan-ml/pecan/policies/autocache"
	"github.com/pecan-ml/pecan/policies/autoscale"
)

// random returns a random valid input with up to eight candidates.
func random(seed uint64) autocache.Input {
	rng := rand.New(rand.NewPCG(seed, 0))
	// spread is log-uniform, and 0 in one of five cases.
	spread := func(low, high float64) float64 {
		if rng.IntN(5) == 0 {
			return 0
		}
		return low * math.Pow(high/low, rng.Float64())
	}
	rate := func() autocache.Rate {
		return autocache.Rate{PerElement: spread(1e-6, 1e-3), PerByte: spread(1e-10, 1e-7)}
	}
	link := func() autocache.Link { return autocache.Link{Alone: rate(), Shared: rate()} }
	in := autocache.Input{Current: autocache.None, Own: 1 + spread(1, 50)}
	in.Goal.Objective = []autoscale.Objective{autoscale.Cost, autoscale.Time, autoscale.Budget}[rng.IntN(3)]
	if in.Goal.Objective == autoscale.Budget || rng.IntN(3) > 0 {
		in.Goal.Prices = autoscale.Prices{Trainer: 0.1 + spread(0.1, 10), Remote: spread(0.01, 1), Local: spread(0.01, 1)}
		in.Store.Price = spread(1e-13, 1e-9)
	}
	if in.Goal.Objective == autoscale.Budget {
		in.Goal.Budget = in.Goal.Prices.Trainer * (1 + rng.Float64())
	}
	in.Goal.Trainers = rng.IntN(4)
	in.Goal.Limits.Min = autoscale.Configuration{Remote: rng.IntN(3), Local: rng.IntN(2)}
	in.Goal.Limits.Max = autoscale.Configuration{Remote: in.Goal.Limits.Min.Remote + 1 + rng.IntN(8), Local: in.Goal.Limits.Min.Local + rng.IntN(3)}
	in.Workers = autocache.Workers{Remote: 1 + float64(rng.IntN(8)), Local: float64(rng.IntN(4))}
	p := &in.Pipeline
	p.Elements, p.Demand = 100+spread(1, 1e4), spread(1e-5, 0.1)
	p.SourceElements, p.SourceBytes, p.Source = p.Elements, p.Elements*spread(1e3, 1e6), link()
	for i := range rng.IntN(9) {
		c := autocache.Candidate{Name: fmt.Sprint("step", i), Elements: p.Elements, Seconds: spread(1e-4, 0.1), Bytes: 1 + spread(1e2, 1e7)}
		c.Others = autocache.Others{Epochs: spread(1, 50), Hours: spread(0.1, 20)}
		if rng.IntN(4) == 0 {
			c.Illegal = "it draws"
		}
		if rng.IntN(3) == 0 {
			c.Stored = rng.Float64()
		}
		p.Seconds = max(p.Seconds, c.Seconds*c.Elements)
		p.Candidates = append(p.Candidates, c)
	}
	p.Seconds += p.Elements * spread(1e-4, 0.1)
	in.Store.Read, in.Store.Write = autocache.Access{Link: link(), Work: rate()}, autocache.Access{Link: link(), Work: rate()}
	in.Store.Free = math.Inf(1)
	if rng.IntN(2) == 0 {
		in.Store.Free = spread(1e5, 1e10)
	}
	return in
}

const seeds = 5000

// each calls a test with random inputs and their decisions.
func each(t *testing.T, test func(in autocache.Input, d autocache.Decision) error) {
	t.Helper()
	chosen := 0
	for seed := range uint64(seeds) {
		in := random(seed)
		if err := in.Validate(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		d := autocache.Decide(in)
		if d.Choice != autocache.None {
			chosen++
		}
		if err := test(in, d); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
	// The properties below say little if one choice is made nearly always.
	if chosen < seeds/5 || chosen > seeds*4/5 {
		t.Errorf("%d of %d random inputs have a cache; choose inputs that decide both ways", chosen, seeds)
	}
}

func TestNeverChoosesWhatCannotBeCached(t *testing.T) {
	each(t, func(in autocache.Input, d autocache.Decision) error {
		for _, current := range []int{d.Choice, autocache.None, len(in.Pipeline.Candidates) - 1} {
			in.Current = current
			choice := autocache.Decide(in).Choice
			if choice == autocache.None {
				continue
			}
			if c := in.Pipeline.Candidates[choice]; c.Illegal != "" {
				return fmt.Errorf("%s is chosen, and %s", c.Name, c.Illegal)
			}
		}
		return nil
	})
}

func TestMoreEpochsNeverEndACache(t *testing.T) {
	each(t, func(in autocache.Input, d autocache.Decision) error {
		before := d.Choice != autocache.None
		for _, factor := range []float64{1.5, 4, 100} {
			more := in
			more.Own = in.Own * factor
			if now := autocache.Decide(more).Choice != autocache.None; before && !now {
				return fmt.Errorf("%.3g epochs are cached and %.3g are not", in.Own, more.Own)
			}
		}
		return nil
	})
}

func TestProportionalPricesDecideAlike(t *testing.T) {
	each(t, func(in autocache.Input, d autocache.Decision) error {
		for _, factor := range []float64{0.25, 64} {
			scaled := in
			p := &scaled.Goal.Prices
			p.Trainer, p.Remote, p.Local = p.Trainer*factor, p.Remote*factor, p.Local*factor
			scaled.Goal.Budget, scaled.Store.Price = in.Goal.Budget*factor, in.Store.Price*factor
			if got := autocache.Decide(scaled); got.Choice != d.Choice {
				return fmt.Errorf("with prices × %v the choice is %d instead of %d", factor, got.Choice, d.Choice)
			}
		}
		return nil
	})
}

func TestTheTotalIsNeverAboveComputing(t *testing.T) {
	each(t, func(in autocache.Input, d autocache.Decision) error {
		if d.Choice != autocache.None && !(d.Candidates[d.Choice].Total < d.Total) {
			return fmt.Errorf("the chosen cache has a score of %v, computing %v", d.Candidates[d.Choice].Total, d.Total)
		}
		for i, c := range d.Candidates {
			if computed := c.Epochs * d.Compute.Score; c.Eligible && d.Choice == autocache.None && c.Total < computed*0.97 {
				return fmt.Errorf("candidate %d would save %.1f %%, and nothing is cached", i, 100*(1-c.Total/computed))
			}
		}
		return nil
	})
}

// The score of a cache is that of the epochs that could read it.
func TestEpochsOfOthersCountWhereTheyCouldRead(t *testing.T) {
	each(t, func(in autocache.Input, d autocache.Decision) error {
		for i, c := range in.Pipeline.Candidates {
			more := in
			more.Pipeline.Candidates = slices.Clone(in.Pipeline.Candidates)
			more.Pipeline.Candidates[i].Others.Epochs = 3*c.Others.Epochs + 5
			got := autocache.Decide(more)
			for j, before := range d.Candidates {
				if now := got.Candidates[j]; now.Epochs-before.Epochs > 0 != (i == j) || i != j && now.Total != before.Total {
					return fmt.Errorf("more epochs for candidate %d: candidate %d has %v epochs and a score of %v, and had %v and %v", i, j, now.Epochs, now.Total, before.Epochs, before.Total)
				}
			}
			switch {
			case d.Choice == i && got.Choice != i:
				return fmt.Errorf("more others could read candidate %d, and %d replaces it", i, got.Choice)
			case got.Choice != i && got.Choice != d.Choice:
				return fmt.Errorf("more others could read candidate %d, and %d replaces %d", i, got.Choice, d.Choice)
			}
		}
		return nil
	})
}

// A choice costs least only if no candidate saves more.
func TestTheReasonFitsTheChoice(t *testing.T) {
	each(t, func(in autocache.Input, d autocache.Decision) error {
		for _, now := range []int{autocache.None, len(in.Pipeline.Candidates) - 1} {
			in.Current = now
			d := autocache.Decide(in)
			saved := func(c autocache.Prediction) float64 { return c.Epochs*d.Compute.Score - c.Total }
			least := 0.0
			if d.Choice != autocache.None {
				least = saved(d.Candidates[d.Choice])
			}
			more := slices.ContainsFunc(d.Candidates, func(c autocache.Prediction) bool { return c.Eligible && saved(c)-least > 1e-9*c.Total })
			if more && strings.Contains(d.Reason, "costs least") {
				return fmt.Errorf("with %d in force, another candidate saves more: %s", now, d.Reason)
			}
			if !more && strings.Contains(d.Reason, "save more") {
				return fmt.Errorf("with %d in force, no other candidate saves more: %s", now, d.Reason)
			}
		}
		return nil
	})
}

func TestAStoreThatReadsFasterIsNeverWorse(t *testing.T) {
	each(t, func(in autocache.Input, d autocache.Decision) error {
		faster := in
		for _, r := range []*autocache.Rate{&faster.Store.Read.Alone, &faster.Store.Read.Shared, &faster.Store.Read.Work} {
			r.PerByte, r.PerElement = r.PerByte/2, r.PerElement/2
		}
		if d.Choice != autocache.None && autocache.Decide(faster).Choice == autocache.None {
			return fmt.Errorf("a cache that is read twice as fast is not kept")
		}
		return nil
	})
}

func TestADecisionStays(t *testing.T) {
	each(t, func(in autocache.Input, d autocache.Decision) error {
		in.Current = d.Choice
		if again := autocache.Decide(in); again.Choice != d.Choice {
			return fmt.Errorf("the choice %d becomes %d without a change", d.Choice, again.Choice)
		}
		return nil
	})
}

func TestNoMoreIsStoredThanFits(t *testing.T) {
	each(t, func(in autocache.Input, d autocache.Decision) error {
		for i, c := range d.Candidates {
			before := in.Pipeline.Candidates[i].Stored * in.Pipeline.Candidates[i].Elements * in.Pipeline.Candidates[i].Bytes
			if c.Eligible && c.Bytes > (before+in.Store.Free)*(1+1e-9) {
				return fmt.Errorf("%v bytes are stored, %v are free, and the cache would have %v", before, in.Store.Free, c.Bytes)
			}
		}
		return nil
	})
}

// sweep is the published sweep over the sleep of a pipeline, in milliseconds per batch. The source has 56 GB, elements grow
// by 2.5 times, and there is one worker.
var sweep = []struct{ sleep, compute, source, full float64 }{
	{200, 310, 268, 436}, {250, 298, 268, 430}, {300, 308, 305, 432}, {350, 354, 352, 433},
	{400, 408, 402, 430}, {450, 455, 453, 434}, {500, 506, 502, 427}, {550, 554, 552, 438},
}

// TestDecisionsFitThePublishedSweep gives the policy what a profile and probes would have measured. These are the sleep, the time per
// batch of the source alone, and the times to read batches of two sizes.
func TestDecisionsFitThePublishedSweep(t *testing.T) {
	const batches, bytes = 1000, 56e6
	read := autocache.FitRate(autocache.Rate{}, []autocache.Sample{
		{Elements: 10, Bytes: 10 * bytes, Seconds: 2.68}, {Elements: 10, Bytes: 10 * 2.5 * bytes, Seconds: 4.32},
	})
	for _, row := range sweep {
		in := autocache.Input{Own: 100, Current: autocache.None, Workers: autocache.Workers{Remote: 1}}
		in.Goal.Limits = autoscale.Limits{Min: autoscale.Configuration{Remote: 1}, Max: autoscale.Configuration{Remote: 1}}
		in.Store = autocache.Store{Read: autocache.Access{Link: autocache.Link{Shared: read}}, Write: autocache.Access{Link: autocache.Link{Shared: read}}, Free: math.Inf(1)}
		in.Pipeline = autocache.Pipeline{
			Elements: batches, Seconds: batches * (row.sleep + 5) / 1e3, SourceBytes: batches * bytes, SourceElements: batches,
			Source: autocache.Link{Shared: autocache.Rate{PerElement: 0.305}},
			Candidates: []autocache.Candidate{
				{Name: "source", Elements: batches, Bytes: bytes, Seconds: 0.003, Role: autocache.SourceCache},
				{Name: "full", Elements: batches, Bytes: 2.5 * bytes, Seconds: (row.sleep + 5) / 1e3, Role: autocache.FullCache},
			},
		}
		d := autocache.Decide(in)
		times := map[int]float64{autocache.None: row.compute, 0: row.source, 1: row.full}
		best := min(row.compute, row.source, row.full)
		t.Logf("sleep %v ms: %s, %v ms, best %v ms", row.sleep, d.Reason, times[d.Choice], best)
		if times[d.Choice] > 1.05*best {
			t.Errorf("sleep %v ms: the choice takes %v ms, the best %v", row.sleep, times[d.Choice], best)
		}
	}
}

// BenchmarkDecideThousand decides for 1,000 datasets with 12 candidates, up to 20 remote and two local workers each.
func BenchmarkDecideThousand(b *testing.B) {
	for _, objective := range []autoscale.Objective{autoscale.Cost, autoscale.Time} {
		b.Run(string(objective), func(b *testing.B) {
			inputs := make([]autocache.Input, 1000)
			for i := range inputs {
				in := random(uint64(i))
				in.Goal.Objective, in.Goal.Prices = objective, autoscale.Published
				in.Store.Price = 1e-11
				in.Goal.Limits = autoscale.Limits{Max: autoscale.Configuration{Remote: 20, Local: 2}}
				for n := len(in.Pipeline.Candidates); n < 12; n++ {
					in.Pipeline.Candidates = append(in.Pipeline.Candidates, autocache.Candidate{
						Name: "more", Elements: in.Pipeline.Elements, Seconds: in.Pipeline.Seconds / in.Pipeline.Elements * float64(n) / 12, Bytes: 1e5,
					})
				}
				inputs[i] = in
			}
			for b.Loop() {
				for _, in := range inputs {
					autocache.Decide(in)
				}
			}
		})
	}
}
