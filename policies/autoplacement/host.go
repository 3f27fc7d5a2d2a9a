package autoplacement

import (
	"math"

	"github.com/pecan-ml/pecan/policies/autoscale"
)

// Load predicts the load of the trainers' hosts: Base + PerLocal × local workers + PerRemote × elements received
// per second. Above a load of 1 the host is contended.
type Load struct {
	Base, PerLocal, PerRemote float64
	// Slowdown is the relative growth of the demand per unit of load above 1.
	Slowdown float64
}

const (
	// usualSlowdown is the slowdown without a measurement.
	usualSlowdown = 0.5
	// The ridges are the weights of what was known before: at first, that neither local workers nor received elements cause
	// load. Each is the squared noise of a load (3 %) over the squared uncertainty. The uncertainty is a load of 1 for ten
	// local workers, and of 0.4 for all elements that trainers can receive.
	ridgeLocal    = 0.001
	ridgeReceived = 0.006
	// contended is the excess of load above which a window shows a slowdown.
	contended = 0.03
)

// fitLoad fits the load by least squares, near what was known before. Hosts that report no load count as never
// contended.
func fitLoad(obs []observation, trainers float64, before Load) Load {
	h := before
	if h.Slowdown == 0 {
		h.Slowdown = usualSlowdown
	}
	// Trainers receive at most what they demand.
	scale := 0.0
	for _, o := range obs {
		if o.demand > 0 {
			scale = max(scale, trainers/o.demand)
		}
	}
	if scale == 0 {
		scale = 1
	}
	// The normal equations of the three coefficients, with scaled regressors.
	var a [3][4]float64
	for _, o := range obs {
		if o.load <= 0 {
			continue
		}
		x := [4]float64{1, float64(o.at.Local) / 10, o.received / scale, o.load - before.PerLocal*float64(o.at.Local) - before.PerRemote*o.received}
		for i := range 3 {
			for j := range 4 {
				a[i][j] += x[i] * x[j]
			}
		}
	}
	if a[0][0] == 0 {
		return h
	}
	a[1][1] += ridgeLocal
	a[2][2] += ridgeReceived
	solved := solve(a)
	h.PerLocal, h.PerRemote = max(before.PerLocal+solved[1]/10, 0), max(before.PerRemote+solved[2]/scale, 0)
	// The base is the mean of the rest. It differs from solved[0] if a coefficient would be negative.
	var rest, n float64
	for _, o := range obs {
		if o.load > 0 {
			rest, n = rest+o.load-h.PerLocal*float64(o.at.Local)-h.PerRemote*o.received, n+1
		}
	}
	h.Base = rest / n
	return h
}

// calm reports whether the trainers' hosts were not contended. Hosts that report no load count as calm.
func (o observation) calm() bool { return o.load-1 < contended }

// excess returns the load above 1.
func (h Load) excess(local int, received float64) float64 {
	return max(0, h.Base+h.PerLocal*float64(local)+h.PerRemote*received-1)
}

// contend returns the demand of trainers whose hosts run local workers, and the excess of load. calm is the demand on hosts that are
// not contended, and remote the capacity of remote workers. Trainers that are slowed down receive less, which causes less load.
func (h Load) contend(calm, trainers float64, local int, remote float64) (demand, excess float64) {
	at := func(received float64) (demand, excess float64) {
		excess = h.excess(local, received)
		return calm * (1 + h.Slowdown*excess), excess
	}
	if demand, excess = at(remote); trainers/demand >= remote {
		return demand, excess
	}
	// They receive what they demand: demand = calm × (1 + Slowdown × (Base + PerLocal × local + PerRemote × trainers / demand - 1)).
	b := calm * (1 + h.Slowdown*(h.Base+h.PerLocal*float64(local)-1))
	c := calm * h.Slowdown * h.PerRemote * trainers
	demand = max((b+math.Sqrt(b*b+4*c))/2, calm)
	return at(trainers / demand)
}

// fitDemand sets Slowdown, and returns the demand on a host that is not contended.
func (h *Load) fitDemand(obs []observation) float64 {
	var calm, slowdowns []float64
	for _, o := range obs {
		if o.calm() {
			calm = append(calm, o.demand)
		}
	}
	if base := autoscale.Median(calm); base > 0 {
		for _, o := range obs {
			if !o.calm() {
				slowdowns = append(slowdowns, max(0, (o.demand/base-1)/(o.load-1)))
			}
		}
		if len(slowdowns) > 0 {
			h.Slowdown = autoscale.Median(slowdowns)
		}
		return base
	}
	var all []float64
	for _, o := range obs {
		all = append(all, o.demand/(1+h.Slowdown*max(0, o.load-1)))
	}
	return autoscale.Median(all)
}

// solve solves three linear equations by elimination. Their matrix is positive definite.
func solve(a [3][4]float64) (x [3]float64) {
	for i := range 3 {
		for k := i + 1; k < 3; k++ {
			f := a[k][i] / a[i][i]
			for j := i; j < 4; j++ {
				a[k][j] -= f * a[i][j]
			}
		}
	}
	for i := 2; i >= 0; i-- {
		x[i] = a[i][3]
		for j := i + 1; j < 3; j++ {
			x[i] -= a[i][j] * x[j]
		}
		x[i] /= a[i][i]
	}
	return x
}
