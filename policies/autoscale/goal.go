package autoscale

import (
	"fmt"
	"math"
)

// Prices are in any currency per hour. A trainer's price includes its host, so a local worker costs extra only
// if the host's spare processors have another use.
type Prices struct {
	Trainer, Remote, Local float64
}

// Published are the prices of the Pecan paper: a TPU v2-8 host and an n2-standard-8 worker (April 2023).
var Published = Prices{Trainer: 4.96, Remote: 0.427319}

// unpriced stands for unknown prices. Its proportions make any worker cheaper than a trainer that waits.
var unpriced = Prices{Trainer: 1, Remote: 0.1, Local: 0.01}

// Objective is the quantity that a policy minimises.
type Objective string

const (
	// Cost minimises the price of an element.
	Cost Objective = "cost"
	// Time minimises the time between two elements. It takes fewer workers where more gain nearly nothing.
	Time Objective = "time"
	// Budget is Time among the configurations that cost at most Goal.Budget per hour.
	Budget Objective = "budget"
)

// worth is the weight of the bill under Time: to save 1 % of the time, it accepts a bill that is 1/worth % higher.
const worth = 0.05

// Limits bound a job's workers.
type Limits struct {
	Min, Max Configuration
}

// Goal has the wishes of a job. It may change between windows.
type Goal struct {
	// Objective is Cost if it is empty.
	Objective Objective
	// Prices may be zero. The objective is then Time, with few workers.
	Prices Prices
	// Budget is a price per hour.
	Budget float64
	Limits Limits
	// Trainers is the number of the job's trainers; 0 means 1.
	Trainers int
}

// Priced returns whether the goal has prices.
func (g Goal) Priced() bool { return g.Prices != Prices{} }

// MinimisesCost returns whether the score is a price.
func (g Goal) MinimisesCost() bool {
	return g.Priced() && (g.Objective == "" || g.Objective == Cost)
}

// PerHour returns the price of an hour with some workers.
func (g Goal) PerHour(c Configuration) float64 {
	p := g.Prices
	if !g.Priced() {
		p = unpriced
	}
	return p.Trainer*float64(max(g.Trainers, 1)) + p.Remote*float64(c.Remote) + p.Local*float64(c.Local)
}

// Score returns the value that the objective minimises, for a configuration and its time between two elements.
// It is the price of an hour's worth of elements under Cost, and a time under the other objectives.
func (g Goal) Score(c Configuration, elementTime float64) float64 {
	return g.ScoreAt(g.PerHour(c), elementTime)
}

// ScoreAt is Score for a price per hour.
func (g Goal) ScoreAt(perHour, elementTime float64) float64 {
	switch {
	case g.Objective == Budget && g.Priced() && perHour > g.Budget*(1+1e-9):
		// Above the budget, a lower price is better than any time.
		return elementTime * math.Exp(50+perHour/max(g.Budget, 1e-9))
	case !g.MinimisesCost():
		return elementTime * math.Pow(perHour, worth)
	}
	return elementTime * perHour
}

// Clamp returns the nearest configuration within the limits.
func (l Limits) Clamp(c Configuration) Configuration {
	return Configuration{
		min(max(c.Remote, l.Min.Remote), max(l.Max.Remote, l.Min.Remote)),
		min(max(c.Local, l.Min.Local), max(l.Max.Local, l.Min.Local)),
	}
}

// Validate returns what is wrong with a goal.
func (g Goal) Validate() error {
	p := g.Prices
	for _, price := range []float64{p.Trainer, p.Remote, p.Local, g.Budget} {
		if !(price >= 0) || math.IsInf(price, 1) {
			return fmt.Errorf("a price is %v; prices are finite and not negative", price)
		}
	}
	l := g.Limits
	if l.Min.Remote < 0 || l.Min.Local < 0 || l.Max.Remote < l.Min.Remote || l.Max.Local < l.Min.Local {
		return fmt.Errorf("the limits are %v to %v; the minimum is at least 0 and at most the maximum", l.Min, l.Max)
	}
	if l.Max == (Configuration{}) {
		return fmt.Errorf("the limits allow no worker")
	}
	switch g.Objective {
	case "", Cost, Time:
	case Budget:
		if !(g.Budget > 0) || !g.Priced() {
			return fmt.Errorf("objective %q needs prices and a budget above 0", Budget)
		}
	default:
		return fmt.Errorf("objective %q is not one of %q, %q and %q", g.Objective, Cost, Time, Budget)
	}
	return nil
}
