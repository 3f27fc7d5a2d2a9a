package autocache

import (
	"math"

	"github.com/pecan-ml/pecan/policies/autoscale"
)

// A prediction misses what the model does not know: other programs on the host, how the streams of a worker disturb each other,
// what a page cache holds. So Decide corrects each prediction by epochs that were measured. Where two choices are predicted to
// be close, it also tries those that have not been measured, as far as that costs little.

const (
	// trust is the relative error up to which a prediction without measured epochs may be wrong.
	trust = 0.5
	// block is the number of epochs for which a choice is tried in a row. With enough measured epochs it is tried no more.
	block, enough = 5, 15
	// Newest is the number of measured epochs of a choice that count. Callers leave out older ones.
	Newest = 25
	// tried is the most choices that are tried or were measured.
	tried = 4
	// tryShare is the share of the score of all expected epochs of the job that the tries of one choice may cost.
	tryShare = 0.02
	// leastNoise is the relative deviation of epochs that few measured ones cannot be below.
	leastNoise = 0.03
)

// Measured is an epoch that took so many seconds with these workers.
type Measured struct {
	Workers autoscale.Configuration
	Seconds float64
}

// correction is what measured epochs say about a prediction. They took factor times as long as predicted. deviation is the
// relative standard error of that. epochs is their number; with 0, factor is a guess.
type correction struct {
	factor, deviation float64
	epochs            int
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
		if each := c.of(i); each.epochs > 0 {
			least = min(least, each.factor)
		}
	}
	if math.IsInf(least, 1) {
		least = 1
	}
	for i := None; i < len(c.candidates); i++ {
		if each := c.of(i); each.epochs == 0 {
			each.factor = max(least, 1)
		}
	}
	return c
}

// compare compares measured epochs with the prediction for what they did.
func (in *Input) compare(epochs []Measured, predicted demand) (c correction) {
	var ratios []float64
	for _, m := range epochs {
		if f := in.fleet(m.Workers); !math.IsInf(f.perThread, 1) {
			if ratio := m.Seconds / predicted.seconds(&f); ratio > 0 && !math.IsInf(ratio, 1) {
				ratios = append(ratios, ratio)
			}
		}
	}
	if c.epochs = len(ratios); c.epochs == 0 {
		return c
	}
	c.factor = autoscale.Median(ratios)
	for i, ratio := range ratios {
		ratios[i] = math.Abs(ratio/c.factor - 1)
	}
	// These constants turn the median of deviations into the standard error of a median of normal samples.
	c.deviation = 1.25 * max(1.48*autoscale.Median(ratios), leastNoise) / math.Sqrt(float64(c.epochs))
	return c
}

// doubt returns the relative difference of two choices that may be chance. Without measured epochs of both it is 0.
func (c *corrections) doubt(a, b int) float64 {
	if c.of(a).epochs == 0 || c.of(b).epochs == 0 {
		return 0
	}
	return math.Hypot(c.of(a).deviation, c.of(b).deviation)
}

// toTry returns the choice for the next epoch: the decided one, or one that has to be measured. now is the choice in force.
func (in *Input) toTry(d *Decision, now int) int {
	best := d.perEpoch(d.Choice)
	measured := func(choice int) int { return d.corrections.of(choice).epochs }
	switch n := measured(now); {
	case in.Goal.Limits.Min != in.Goal.Limits.Max:
		// Each change would begin another search for the number of workers.
		return d.Choice
	case now != d.Choice && n%block != 0 && n < enough && d.perEpoch(now) < 2*best:
		return now
	}
	var others []int
	most := block
	for i := None; i < len(d.Candidates); i++ {
		if i != d.Choice && measured(i) > 0 {
			most = max(most, min(measured(i)/block*block, enough))
			others = append(others, i)
		}
	}
	if measured(d.Choice) < most {
		return d.Choice
	}
	choice, lowest := d.Choice, best*(1-margin)
	for i := None; i < len(d.Candidates); i++ {
		n := measured(i)
		if i == d.Choice || n >= enough || n == 0 && len(others)+1 >= tried || i != None && !d.readsAll(i) {
			continue
		}
		cost := block*max(d.perEpoch(i)-best, 0) + d.toWrite(i, best)
		doubt := trust
		if n > 0 {
			doubt = d.corrections.doubt(i, d.Choice)
		}
		if hoped := d.perEpoch(i) * (1 - doubt); hoped < lowest && cost <= tryShare*in.Own*best {
			choice, lowest = i, hoped
		}
	}
	return choice
}

// perEpoch returns the score of an epoch with a choice that is not the first one.
func (d *Decision) perEpoch(choice int) float64 {
	if choice == None {
		return d.Compute.Score
	}
	return d.Candidates[choice].Get.Score
}

// readsAll reports whether later epochs read all elements of a candidate.
func (d *Decision) readsAll(choice int) bool {
	return d.Candidates[choice].Eligible && d.Candidates[choice].Share == 1
}

// toWrite returns what it costs more to write what is not stored of a choice than an epoch that costs best.
func (d *Decision) toWrite(choice int, best float64) float64 {
	if choice == None {
		return 0
	}
	return max(d.Candidates[choice].Put.Score-best, 0)
}
