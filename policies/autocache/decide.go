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
)

// Decision is the choice of a policy with its reason.
type Decision struct {
	// Choice is the number of a candidate, or None.
	Choice int
	Reason string
	// Epochs is the number of epochs that the totals are over.
	Epochs float64
	// Compute is an epoch without a cache, Total the score of all expected epochs without one.
	Compute Epoch
	Total   float64
	// Candidates has a prediction for each candidate. Cachew fills in only what it computes.
	Candidates []Prediction
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
	// Total is the score of all expected epochs.
	Total float64
	// Benefit is the price of a computed epoch minus that of a later epoch, which reads. Without prices it is in proportions:
	// the hour of a trainer is 1.
	Benefit float64
}

// Decide returns the candidate with the lowest score over all expected epochs. It compares with the choice in force
// and changes it only if that saves more than a margin. If the trainers are the bound, a cache saves no time, so
// there is none unless fewer workers suffice. The input must be valid.
//
// Call it between two epochs, and once in the first epoch of a job without a profile. Other calls would mix the
// measurements of two modes.
func Decide(in Input) Decision {
	d := Decision{Choice: None, Epochs: max(in.Own+in.Others, 1), Candidates: make([]Prediction, len(in.Pipeline.Candidates))}
	all := in.fleets()
	d.Compute = in.epoch(in.computing(), rent{}, all)
	d.Total = d.Epochs * d.Compute.Score
	for i, c := range in.Pipeline.Candidates {
		d.Candidates[i] = in.predict(c, d, all)
	}
	best := d.best()
	now := in.Current
	if now != None && !d.Candidates[now].Eligible {
		now = None
	}
	lowest := best
	if best == None || d.Total <= d.totalOf(best) {
		lowest = None
	}
	d.Choice = now
	if d.totalOf(lowest) < d.totalOf(now)*(1-margin) {
		d.Choice = lowest
	}
	d.Reason = in.reason(d, now, best, lowest)
	return d
}

// totalOf returns the score of a choice over all expected epochs.
func (d *Decision) totalOf(choice int) float64 {
	if choice == None {
		return d.Total
	}
	return d.Candidates[choice].Total
}

// best returns the candidate with the lowest score, or a smaller cache with a similar one; None if none is eligible.
func (d *Decision) best() int {
	lowest := math.Inf(1)
	for _, c := range d.Candidates {
		lowest = min(lowest, c.Total)
	}
	best := None
	for i, c := range d.Candidates {
		if c.Eligible && c.Total <= lowest*(1+similar) && (best == None || c.Bytes < d.Candidates[best].Bytes) {
			best = i
		}
	}
	return best
}

// predict predicts one candidate.
func (in *Input) predict(c Candidate, d Decision, all []fleet) Prediction {
	p := Prediction{Name: c.Name, Total: math.Inf(1)}
	if !c.measured() || c.Illegal != "" {
		p.Reason = whyNot(c)
		return p
	}
	// Without more room or more epochs, reading what is stored may be best.
	for _, share := range [...]float64{c.Stored, min(c.Stored+in.Store.Free/c.size(), 1)} {
		if share == p.Share {
			continue
		}
		if q := in.predictShare(c, share, d.Epochs, all); q.Total < p.Total {
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
func (in *Input) predictShare(c Candidate, share, epochs float64, all []fleet) Prediction {
	p := Prediction{Share: share, Bytes: share * c.size()}
	rent := in.rent(p.Bytes, epochs)
	rest, get := demand{}.add(1-share, in.computing()), in.reading(c)
	p.Get = in.epoch(rest.add(share, get), rent, all)
	p.Put = in.epoch(rest.add(c.Stored, get).add(share-c.Stored, in.writing(c)), rent, all)
	if p.Total = p.Put.Score; epochs > 1 {
		p.Total += (epochs - 1) * p.Get.Score
	}
	return p
}

// rent returns the price of the storage of some bytes. Each of the expected epochs pays for a part of the other hours.
func (in *Input) rent(bytes, epochs float64) rent {
	if !in.Goal.Priced() {
		return rent{}
	}
	price := rent{perHour: bytes * in.Store.Price}
	if in.Goal.Objective != autoscale.Budget {
		// A budget bounds what the job costs while it runs.
		price.perEpoch = price.perHour * in.Store.Kept / epochs
	}
	return price
}
