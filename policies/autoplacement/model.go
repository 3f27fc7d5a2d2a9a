package autoplacement

import (
	"math"

	"github.com/pecan-ml/pecan/policies/autoscale"
)

// observation has the values that Search keeps of a window.
type observation struct {
	at autoscale.Configuration
	// time is the element time. demand is the part of it that trainers did not wait.
	time, demand float64
	// remote and local are capacities; 0 if they are unknown.
	remote, local float64
	// limit is what remote workers produce that wait for room while trainers wait; 0 if they do not.
	limit float64
	// load is the highest load of the trainers' hosts, received the elements per second from remote workers.
	load, received float64
}

// idle is the busy share below which a capacity is not computed from it.
const idle = 0.02

func observe(w autoscale.Window) observation {
	o := observation{at: w.Workers, time: w.ElementTime()}
	o.demand = o.time * (1 - min(max(w.Wait(), 0), 1))
	capacity := func(local bool, workers int) float64 {
		elements, busy, reported := w.Produced(local)
		if busy < idle || reported == 0 {
			return 0
		}
		return elements / min(busy, 1) * float64(workers) / float64(reported)
	}
	o.remote, o.local = capacity(false, w.Workers.Remote), capacity(true, w.Workers.Local)
	received, busy, reported := w.Produced(false)
	if o.received = received; w.Wait() >= starved && busy < blocked && reported > 0 {
		o.limit = received * float64(w.Workers.Remote) / float64(reported)
	}
	for _, h := range w.Hosts {
		for _, c := range w.Consumers {
			if c.Host == h.ID {
				o.load = max(o.load, h.Load)
			}
		}
	}
	return o
}

// Curve is the capacity of n workers of a kind: Rate × n^Exponent elements per second, at most Limit. A Limit of 0
// is none.
type Curve struct {
	Rate, Exponent, Limit float64
}

func (c Curve) at(n int) float64 {
	if n <= 0 {
		return 0
	}
	capacity := c.Rate * math.Pow(float64(n), c.Exponent)
	if c.Limit > 0 {
		return min(capacity, c.Limit)
	}
	return capacity
}

const (
	// nearlyLinear is the exponent that a curve has without measurements.
	nearlyLinear = 0.95
	// exponentPrior is the weight of the expected exponent against measurements: the squared noise of a
	// capacity (4 %) over the squared uncertainty of the exponent (0.25).
	exponentPrior = 0.04 * 0.04 / (0.25 * 0.25)
	// limited is the share of the expected capacity below which the network limits remote workers. surelyLimited is the
	// share for a single window, which may be an outlier.
	limited       = 0.85
	surelyLimited = 0.7
	// Trainers that wait for this share of the time, while remote workers are less busy than blocked, show a limit of the
	// network. An outlier of 30 % shows less.
	starved, blocked = 0.3, 0.8
)

// fitRemote fits the curve of remote workers. If remote workers wait for room while trainers wait, the network is the
// limit, and what the workers produce is that limit. If the largest number of them has much less capacity than the
// others lead to expect, its capacity is such a limit, too.
func fitRemote(obs []observation, before Curve) Curve {
	var limits []float64
	for _, o := range obs {
		if o.limit > 0 {
			limits = append(limits, o.limit)
		}
	}
	if len(limits) > 0 {
		c := fit(obs, false, before)
		c.Limit = autoscale.Median(limits)
		return c
	}
	most := 0
	for _, o := range obs {
		if o.remote > 0 {
			most = max(most, o.at.Remote)
		}
	}
	var fewer []observation
	var capacities []float64
	for _, o := range obs {
		switch {
		case o.remote <= 0:
		case o.at.Remote == most:
			capacities = append(capacities, o.remote)
		default:
			fewer = append(fewer, o)
		}
	}
	before.Limit = 0
	if limit := autoscale.Median(capacities); len(fewer) > 0 {
		share := limited
		if len(capacities) == 1 {
			share = surelyLimited
		}
		if c := fit(fewer, false, before); limit < share*c.at(most) {
			c.Limit = limit
			return c
		}
	}
	return fit(obs, false, before)
}

// fit fits a curve to the capacities of a kind. Each number of workers counts with the median of its windows.
func fit(obs []observation, local bool, before Curve) Curve {
	byWorkers := map[int][]float64{}
	most := 0
	for _, o := range obs {
		n, capacity := o.at.Remote, o.remote
		if local {
			// A contended host divides its processors.
			n, capacity = o.at.Local, o.local*max(o.load, 1)
		}
		if n > 0 && capacity > 0 {
			byWorkers[n] = append(byWorkers[n], math.Log(capacity))
			most = max(most, n)
		}
	}
	if most == 0 {
		return before
	}
	exponent := before.Exponent
	if before.Rate == 0 {
		exponent = nearlyLinear
	}
	var weight, meanX, meanY float64
	each := func(visit func(x, y, weight float64)) {
		for n := 1; n <= most; n++ {
			if logs := byWorkers[n]; len(logs) > 0 {
				visit(math.Log(float64(n)), autoscale.Median(logs), float64(min(len(logs), 3)))
			}
		}
	}
	each(func(x, y, w float64) { weight, meanX, meanY = weight+w, meanX+w*x, meanY+w*y })
	meanX, meanY = meanX/weight, meanY/weight
	xx, xy := exponentPrior, exponentPrior*exponent
	each(func(x, y, w float64) {
		xx, xy = xx+w*(x-meanX)*(x-meanX), xy+w*(x-meanX)*(y-meanY)
	})
	exponent = min(max(xy/xx, 0), 1.1)
	return Curve{Rate: math.Exp(meanY - exponent*meanX), Exponent: exponent}
}

// visited is a configuration with its windows.
type visited struct {
	at autoscale.Configuration
	// logs are the logarithms of the element times, ratio is that of measured over predicted.
	logs  []float64
	ratio float64
}

// model predicts element times.
type model struct {
	trainers      float64
	remote, local Curve
	load          Load
	// demand is that on a host that is not contended.
	demand float64
	cells  []visited
}

func newModel(obs []observation, trainers int, before Known) *model {
	m := &model{trainers: float64(max(trainers, 1)), remote: fitRemote(obs, before.Remote), local: fit(obs, true, before.Local)}
	// A kind that was never measured counts like the other one, so that it is tried.
	if m.remote.Rate == 0 {
		m.remote = m.local
	}
	if m.local.Rate == 0 {
		m.local = m.remote
	}
	m.load = fitLoad(obs, m.trainers, before.Load)
	m.demand = m.load.fitDemand(obs)
	for _, o := range obs {
		i := m.find(o.at)
		if i < 0 {
			i, m.cells = len(m.cells), append(m.cells, visited{at: o.at})
		}
		m.cells[i].logs = append(m.cells[i].logs, math.Log(o.time))
	}
	for i := range m.cells {
		m.cells[i].ratio = autoscale.Median(m.cells[i].logs) - math.Log(m.predict(m.cells[i].at))
	}
	return m
}

func (m *model) find(at autoscale.Configuration) int {
	for i := range m.cells {
		if m.cells[i].at == at {
			return i
		}
	}
	return -1
}

// predict returns the element time by the curves alone.
func (m *model) predict(c autoscale.Configuration) float64 {
	remote := m.remote.at(c.Remote)
	demand, excess := m.load.contend(m.demand, m.trainers, c.Local, remote)
	capacity := remote + m.local.at(c.Local)/(1+excess)
	if capacity <= 0 {
		return math.Inf(1)
	}
	return max(demand, m.trainers/capacity)
}

const (
	// reach is the distance of logarithms over which the ratio of a measured configuration holds for others.
	reach = 0.25
	// doubt is the weight of the prediction against the ratios of other configurations.
	doubt = 0.5
)

// estimate returns the element time from the curves and the windows of this and of near configurations.
func (m *model) estimate(c autoscale.Configuration) float64 {
	predicted := m.predict(c)
	if math.IsInf(predicted, 1) {
		return predicted
	}
	if i := m.find(c); i >= 0 {
		logs := m.cells[i].logs
		if len(logs) < 3 {
			logs = append([]float64{math.Log(predicted)}, logs...)
		}
		return math.Exp(autoscale.Median(logs))
	}
	var sum, weight float64
	for _, v := range m.cells {
		near := math.Exp(-(square(distance(c.Remote, v.at.Remote)) + square(distance(c.Local, v.at.Local))) / 2)
		sum, weight = sum+near*v.ratio, weight+near
	}
	return predicted * math.Exp(sum/(weight+doubt))
}

func distance(a, b int) float64 { return (math.Log1p(float64(a)) - math.Log1p(float64(b))) / reach }

func square(x float64) float64 { return x * x }

// windows returns the number of windows at a configuration.
func (m *model) windows(c autoscale.Configuration) int {
	if i := m.find(c); i >= 0 {
		return len(m.cells[i].logs)
	}
	return 0
}
