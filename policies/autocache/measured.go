package autocache

import (
	"math"

	"github.com/pecan-ml/pecan/policies/autoscale"
)

// A prediction misses what the model does not know: other programs on the host, how the streams of a worker disturb each other,
// what a page cache holds. So Decide corrects each prediction by epochs that were measured. Where two choices are predicted to
// be close, it also tries those that have not been measured, as far as that costs little.

const (
	// trust is the relative error up to which a prediction without measured epochs may be wrong. Measured epochs never have a larger
	// one.
	trust = 0.5
	// Block is the number of epochs that a choice needs to be measured. It is tried for so many epochs in a row, and no more after
	// enough measured ones. Later jobs begin with so many of each choice, and may try it again. hopeless epochs are enough if each
	// takes more than tooLong times as long as with the fastest choice.
	Block, enough = 5, 15
	hopeless      = 2
	tooLong       = 2
	// Newest is the number of measured epochs of a choice that count. Callers leave out older ones.
	Newest = 25
	// mostTried is the most choices that are tried or were measured.
	mostTried = 4
	// tryShare is the share of the score of all expected epochs of the job that the tries of one choice may cost.
	tryShare = 0.02
	// leastNoise is the relative deviation of epochs that few measured ones cannot be below.
	leastNoise = 0.03
)

// Measured is an epoch that took so many seconds with these workers.
type Measured struct {
	Workers autoscale.Configuration
	Seconds float64
	// Inherited is set for an epoch of an earlier job, whose trainers may have been faster. They were not the bound.
	Inherited bool
}

// correction is what measured epochs say about a prediction. Without the trainers, they took factor times as long as predicted.
// deviation is the relative standard error of that. samples is their number. If they are too few, factor is a guess.
type correction struct {
	factor, deviation float64
	samples           int
	measured          bool
}

// corrections are those of computing and of reading each candidate.
type corrections struct {
	compute    correction
	candidates []correction
}

func (c *corrections) of(choice int) *correction {
	if choice == None {
		return &c.compute
	}
	return &c.candidates[choice]
}

// correct compares measured epochs with their predictions. Other programs make all choices slower. So a choice without measured
// epochs is expected to be slower than predicted as well, by as much as the one that is least so.
func (in *Input) correct() corrections {
	c := corrections{in.compare(in.Pipeline.Computed, in.computing()), make([]correction, len(in.Pipeline.Candidates))}
	for i, candidate := range in.Pipeline.Candidates {
		if candidate.measured() {
			c.candidates[i] = in.compare(candidate.Read, in.reading(candidate))
		}
	}
	least := math.Inf(1)
	for i := None; i < len(c.candidates); i++ {
		if each := c.of(i); each.measured {
			least = min(least, each.factor)
		}
	}
	if math.IsInf(least, 1) {
		least = 1
	}
	for i := None; i < len(c.candidates); i++ {
		if each := c.of(i); !each.measured {
			each.factor = max(least, 1)
		}
	}
	return c
}

// demanded returns the time that the trainers need for an epoch.
func (in *Input) demanded() float64 {
	return in.Pipeline.Demand * in.Pipeline.Elements / float64(max(in.Goal.Trainers, 1))
}

// shortest returns the median time of the job's own epochs of the fastest measured choice; +Inf without one. The trainers need no
// longer. On a host with other work, they seem to: a thread that waits for a core looks like one that computes.
func (in *Input) shortest() float64 {
	return in.shortestOf(func(m Measured) bool { return !m.Inherited })
}

// shortestOf is shortest of the epochs for which counts is true.
func (in *Input) shortestOf(counts func(Measured) bool) float64 {
	seconds := math.Inf(1)
	shorter := func(epochs []Measured) {
		var took []float64
		for _, m := range epochs {
			if known(m.Seconds) && counts(m) {
				took = append(took, m.Seconds)
			}
		}
		if len(took) >= Block {
			seconds = min(seconds, autoscale.Median(took))
		}
	}
	shorter(in.Pipeline.Computed)
	for _, c := range in.Pipeline.Candidates {
		shorter(c.Read)
	}
	return seconds
}

// compare compares measured epochs with the prediction for what they did.
func (in *Input) compare(epochs []Measured, predicted demand) (c correction) {
	var ratios []float64
	least, rest := math.Inf(1), predicted
	rest.trainer = 0
	for _, m := range epochs {
		if m.Workers.Remote > 0 && in.Workers.Remote == 0 || m.Workers.Local > 0 && in.Workers.Local == 0 || m.Workers == (autoscale.Configuration{}) {
			continue
		}
		f := in.fleet(m.Workers)
		ratio := m.Seconds / rest.seconds(&f)
		if m.Seconds <= predicted.trainer*(1+margin) {
			// The trainers were the bound, so the rest was as fast as predicted or faster.
			ratio = min(ratio, 1)
		}
		if ratio > 0 && !math.IsInf(ratio, 1) {
			ratios, least = append(ratios, ratio), min(least, m.Seconds)
		}
	}
	c.samples = len(ratios)
	if c.measured = c.samples >= Block || c.samples >= hopeless && least > tooLong*in.shortestOf(func(Measured) bool { return true }); !c.measured {
		return c
	}
	c.factor = autoscale.Median(ratios)
	for i, ratio := range ratios {
		ratios[i] = math.Abs(ratio/c.factor - 1)
	}
	// These constants turn the median of deviations into the standard error of a median of normal samples.
	c.deviation = 1.25 * max(1.48*autoscale.Median(ratios), leastNoise) / math.Sqrt(float64(c.samples))
	return c
}

// times returns a demand of which all but the trainers' part takes factor times as long.
func (d demand) times(factor float64) demand {
	trainer := d.trainer
	d = demand{}.add(factor, d)
	d.trainer = trainer
	return d
}

// doubt returns the relative difference of two choices that may be chance. Without measured epochs of both it is 0.
func (c *corrections) doubt(a, b int) float64 {
	if !c.of(a).measured || !c.of(b).measured {
		return 0
	}
	return min(math.Hypot(c.of(a).deviation, c.of(b).deviation), trust)
}

// toTry returns the choice for the next epoch: the decided one, or one that has to be measured. now is the choice in force.
func (in *Input) toTry(d *Decision, now int) int {
	if in.Goal.Limits.Min != in.Goal.Limits.Max {
		// Each change would begin another search for the number of workers.
		return d.Choice
	}
	best, samples := d.perEpoch(d.Choice), func(choice int) int { return d.corrections.of(choice).samples }
	if in.Tried && now == in.Current && now != d.Choice && d.readsAll(now) && d.perEpoch(now) < tooLong*best && !in.fruitless(d, now) &&
		samples(now) < enough && (samples(now) == 0 || samples(now)%Block != 0) {
		return now
	}
	others, most := 0, Block
	for i := None; i < len(d.Candidates); i++ {
		if i != d.Choice && samples(i) > 0 {
			most = max(most, min(samples(i)/Block*Block, enough))
			others++
		}
	}
	if samples(d.Choice) < most {
		return d.Choice
	}
	// No choice is faster than the trainers, unless measured epochs show that their time is wrong.
	least := 0.0
	if trainers := in.demanded(); trainers*(1-margin) <= in.shortest() {
		least = in.epoch(demand{trainer: trainers}, rent{}, in.fleets()).Score
	}
	choice, lowest := d.Choice, best*(1-margin)
	for i := None; i < len(d.Candidates); i++ {
		if i == d.Choice || samples(i) >= enough || samples(i) == 0 && others+1 >= mostTried || !d.readsAll(i) || in.fruitless(d, i) {
			continue
		}
		doubt := trust
		if d.corrections.of(i).measured {
			doubt = d.corrections.doubt(i, d.Choice)
		}
		hoped, excess := max(d.perEpoch(i)*(1-doubt), least), max(d.perEpoch(i)-best, 0)
		cost, spent := Block*excess+d.toWrite(i, best), float64(in.tries(i))*excess
		if hoped < lowest && spent+cost <= tryShare*in.Own*best && cost < (in.Own-Block)*(best-hoped) {
			choice, lowest = i, hoped
		}
	}
	return choice
}

// tries returns how many epochs began as tries of a choice.
func (in *Input) tries(choice int) int {
	if choice == None {
		return in.Pipeline.Tries
	}
	return in.Pipeline.Candidates[choice].Tries
}

// fruitless reports whether the tries of a choice do not lead to measured epochs: a worker has no directory, or workers come and go.
// An epoch that writes is not measured, and neither are some that begin ahead.
func (in *Input) fruitless(d *Decision, choice int) bool {
	return in.tries(choice) >= d.corrections.of(choice).samples+2*Block
}

// perEpoch returns the score of an epoch with a choice that is not the first one.
func (d *Decision) perEpoch(choice int) float64 {
	if choice == None {
		return d.Compute.Score
	}
	return d.Candidates[choice].Get.Score
}

// readsAll reports whether later epochs with a choice read all elements of its candidate. Computing reads none.
func (d *Decision) readsAll(choice int) bool {
	return choice == None || d.Candidates[choice].Eligible && d.Candidates[choice].Share == 1
}

// toWrite returns what it costs more to write what is not stored of a choice than an epoch that costs best.
func (d *Decision) toWrite(choice int, best float64) float64 {
	if choice == None {
		return 0
	}
	return max(d.Candidates[choice].Put.Score-best, 0)
}
