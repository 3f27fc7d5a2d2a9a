package caching

import (
	"math"
	"math/rand/v2"

	"github.com/pecan-ml/pecan/policies/autocache"
)

// Choose is a policy: it returns the number of a candidate, or autocache.None, and whether that is a try.
type Choose func(autocache.Input) (choice int, tried bool)

// Automatic is the default policy.
func Automatic(in autocache.Input) (choice int, tried bool) {
	d := autocache.Decide(in)
	return d.Choice, d.Tried
}

// Paper is the published policy.
func Paper(in autocache.Input) (choice int, tried bool) {
	return autocache.CachewPaper().Decide(in.Pipeline).Choice, false
}

// Fixed always chooses the same candidate, or autocache.None.
func Fixed(choice int) Choose {
	return func(autocache.Input) (int, bool) { return choice, false }
}

// Result is a simulated job.
type Result struct {
	// Seconds is the time of all epochs, Last that of the last one.
	Seconds, Last float64
	// Choice is the last choice, Changes how often it changed after the first decision.
	Choice, Changes int
}

// Run runs a job of several epochs. With known, the policy decides before the first epoch, as in a job that an earlier
// one has measured. Otherwise the first epoch computes the batches of a profile, and the first decision takes effect
// in the rest of it. Later decisions are at the edges of epochs.
func (w World) Run(choose Choose, epochs int, known bool, seed uint64) Result {
	rng := rand.New(rand.NewPCG(seed, 1))
	stored := make([]map[int]bool, len(w.Steps))
	for i := range stored {
		stored[i] = map[int]bool{}
	}
	r, times := Result{Choice: autocache.None}, epochTimes{read: make([][]autocache.Measured, len(w.Steps))}
	tries, tried := map[int]int{}, false
	for n := range epochs {
		in := w.Measure(rng)
		times.into(&in)
		in.Own, in.Current = float64(epochs-n), r.Choice
		for i := range in.Pipeline.Candidates {
			in.Pipeline.Candidates[i].Stored = float64(len(stored[i])) / float64(w.Batches)
		}
		in.Tried = tried
		for i := range in.Pipeline.Candidates {
			in.Pipeline.Candidates[i].Tries = tries[i]
		}
		in.Pipeline.Tries = tries[autocache.None]
		choice, isTried := choose(in)
		if tried = isTried; tried {
			tries[choice]++
		}
		if n > 0 && choice != r.Choice {
			r.Changes++
		}
		r.Choice = choice
		begin := 0
		if n == 0 && !known {
			begin = min(profiled, w.Batches)
		}
		mixed := n == 0
		r.Last = w.Epoch(rng, max(choice, 0), func(batch int) Mode {
			switch {
			case choice == autocache.None || batch < begin:
				return Compute
			case stored[choice][batch]:
				return Get
			}
			stored[choice][batch], mixed = true, true
			return Put
		})
		if r.Seconds += r.Last; !mixed {
			times.add(w, choice, r.Last)
		}
	}
	return r
}

// Best returns the fixed choice with the shortest time, among those that are legal, and its result.
func (w World) Best(epochs int, seed uint64) (best int, result Result) {
	result.Seconds = math.Inf(1)
	for choice := autocache.None; choice < len(w.Steps); choice++ {
		if choice != autocache.None && w.Steps[choice].Illegal {
			continue
		}
		if r := w.Run(Fixed(choice), epochs, true, seed); r.Seconds < result.Seconds {
			best, result = choice, r
		}
	}
	return best, result
}
