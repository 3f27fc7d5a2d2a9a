package autocache

import (
	"math"

	"github.com/pecan-ml/pecan/policies/autoscale"
)

const (
	// margin is the share of the score over all expected epochs that a change of the choice must save.
	margin = 0.02
	// similar is the relative difference of scores up to which the smaller cache is better.
	similar = 0.005
	// rounding is the relative difference up to which scores are equal.
	rounding = 1e-9
)

// Decision is the choice of a policy with its reason.
type Decision struct {
	// Choice is the number of a candidate, or None.
	Choice int
	Reason string
	// Tried is set if the choice is measured for some epochs, because it may be better than the one that is predicted to be.
	Tried bool
	// Epochs is the number of expected epochs that could read the chosen cache; without one, those of this job.
	Epochs float64
	// Compute is an epoch without a cache, Total the score of Epochs without one.
	Compute Epoch
	Total   float64
	// Candidates has a prediction for each candidate. Cachew fills in only what it computes.
	Candidates  []Prediction
	corrections corrections
}

// Prediction has the expected times and score of one candidate.
type Prediction struct {
	Name string
	// Eligible is whether the policy could choose the candidate; Reason says why not, or what it saves.
	Eligible bool
	Reason   string
	// Share is the share of the elements that would be stored, Bytes their size. If the share is what is stored
	// already, nothing is written.
	Share, Bytes float64
	// Put is the next epoch: it reads what is stored, and writes the rest of the share. Get is every later one.
	Put, Get Epoch
	// Epochs is the number of expected epochs that could read the cache, of this job and of others. Total is their score.
	Epochs, Total float64
	// Benefit is the price of a computed epoch minus that of a later epoch, which reads. Without prices it is in proportions:
	// the hour of a trainer is 1.
	Benefit float64
}

// Decide returns the candidate that saves most over all expected epochs that could read its cache. An epoch of another job
// counts as one of this job. Decide compares with the choice in force and changes it only if that saves more than a margin.
// If the trainers are the bound, a cache saves no time, so there is none unless fewer workers suffice. Epochs that were
// measured correct the predictions, and a choice that may be better is tried for some epochs. The input must be valid.
//
// Call it between two epochs, and once in the first epoch of a job without a profile. Other calls would mix the
// measurements of two modes.
func Decide(in Input) Decision {
	d := Decision{Choice: None, Epochs: max(in.Own, 1), Candidates: make([]Prediction, len(in.Pipeline.Candidates))}
	all := in.fleets()
	d.corrections = in.correct()
	d.Compute = in.epoch(in.computed(&d), rent{}, all)
	for i := range in.Pipeline.Candidates {
		d.Candidates[i] = in.predict(i, d, all)
	}
	now := in.Current
	if now != None && !d.Candidates[now].Eligible {
		now = None
	}
	best := d.best(func(int) bool { return true })
	d.Choice = now
	// A cache that many others read may save most, and yet less than the margin in each epoch. Then another one is chosen.
	lowest := d.best(func(i int) bool { return d.saved(i) > 0 && d.gains(i, now) })
	switch {
	case lowest != None:
		d.Choice = lowest
	case d.gains(None, now):
		d.Choice = None
	case best != None && d.saved(best) > 0:
		lowest = best
	}
	d.Reason = in.reason(d, now, best, lowest)
	if choice := in.toTry(&d, now); choice != d.Choice {
		d.Reason = d.tryReason(choice)
		d.Choice, d.Tried = choice, true
	}
	d.Epochs = d.epochsOf(d.Choice)
	d.Total = d.Epochs * d.Compute.Score
	return d
}

// epochsOf returns the number of expected epochs that could read the cache of a choice.
func (d *Decision) epochsOf(choice int) float64 {
	if choice == None {
		return d.Epochs
	}
	return d.Candidates[choice].Epochs
}

// saved returns the score that a choice saves over all expected epochs.
func (d *Decision) saved(choice int) float64 {
	if choice == None {
		return 0
	}
	return d.Candidates[choice].Epochs*d.Compute.Score - d.Candidates[choice].Total
}

// over returns the score of so many epochs with a choice. Epochs that cannot read its cache compute.
func (d *Decision) over(epochs float64, choice int) float64 {
	return epochs*d.Compute.Score - d.saved(choice)
}

// gains reports whether a change of the choice saves more than the margin over all epochs that could read either cache, and more
// than chance.
func (d *Decision) gains(choice, now int) bool {
	epochs := max(d.epochsOf(choice), d.epochsOf(now))
	return d.over(epochs, choice) < d.over(epochs, now)*(1-d.needed(choice, now))
}

// needed returns the share of the score that a change of the choice must save.
func (d *Decision) needed(choice, now int) float64 {
	return max(margin, d.corrections.doubt(choice, now))
}

// best returns the candidate that saves most, or a smaller cache with a similar score; None if none is eligible. It considers the
// candidates that a function accepts.
func (d *Decision) best(accepts func(int) bool) int {
	most := None
	for i, c := range d.Candidates {
		if c.Eligible && accepts(i) && (most == None || d.saved(i) > d.saved(most)) {
			most = i
		}
	}
	best := most
	for i, c := range d.Candidates {
		if c.Eligible && accepts(i) && c.Bytes < d.Candidates[best].Bytes &&
			d.saved(most)-d.saved(i) <= similar*min(c.Total, d.Candidates[most].Total) {
			best = i
		}
	}
	return best
}

// predict predicts one candidate.
func (in *Input) predict(i int, d Decision, all []fleet) Prediction {
	c := in.Pipeline.Candidates[i]
	p := Prediction{Name: c.Name, Epochs: max(in.Own+c.Others.Epochs, 1), Total: math.Inf(1)}
	if !c.measured() || c.Illegal != "" {
		p.Reason = whyNot(c)
		return p
	}
	// Without more room or more epochs, reading what is stored may be best.
	for _, share := range [...]float64{c.Stored, min(c.Stored+in.Store.Free/c.size(), 1)} {
		if share == p.Share {
			continue
		}
		if q := in.predictShare(i, share, p.Epochs, d, all); q.Total < p.Total {
			p.Share, p.Bytes, p.Put, p.Get, p.Total = q.Share, q.Bytes, q.Put, q.Get, q.Total
		}
	}
	if p.Share == 0 {
		p.Reason = "no space is free"
		return p
	}
	p.Benefit = max(d.Compute.perHour*d.Compute.Seconds-p.Get.perHour*p.Get.Seconds, 0) / secondsPerHour
	p.Eligible = true
	p.Reason = in.saving(c, p, d)
	return p
}

// predictShare predicts a candidate if a share of its elements is stored from the next epoch on.
func (in *Input) predictShare(i int, share, epochs float64, d Decision, all []fleet) Prediction {
	c := in.Pipeline.Candidates[i]
	p := Prediction{Share: share, Bytes: share * c.size()}
	rent := in.rent(p.Bytes, c.Others.Hours/epochs)
	compute, get := in.computed(&d), in.reading(c).times(d.corrections.candidates[i].factor)
	rest, put := demand{}.add(1-share, compute), compute.add(1, in.Store.Write.demand(c))
	p.Get = in.epoch(rest.add(share, get), rent, all)
	p.Put = in.epoch(rest.add(c.Stored, get).add(share-c.Stored, put), rent, all)
	if p.Total = p.Put.Score; epochs > 1 {
		p.Total += (epochs - 1) * p.Get.Score
	}
	return p
}

// computed is the demand of an epoch without a cache, as measured epochs correct it.
func (in *Input) computed(d *Decision) demand {
	return in.computing().times(d.corrections.compute.factor)
}

// rent returns the price of the storage of some bytes. Each epoch also pays for some hours in which none runs.
func (in *Input) rent(bytes, hours float64) rent {
	if !in.Goal.Priced() {
		return rent{}
	}
	price := rent{perHour: bytes * in.Store.Price}
	if in.Goal.Objective != autoscale.Budget {
		// A budget bounds what the job costs while it runs.
		price.perEpoch = price.perHour * hours
	}
	return price
}
