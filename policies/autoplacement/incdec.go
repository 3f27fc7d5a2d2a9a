package autoplacement

import (
	"fmt"
	"math"

	"github.com/pecan-ml/pecan/policies/autoscale"
)

// IncDec is the placement of Pecan's published code, for comparison. It compares each window with the last one
// of another configuration. It adds remote workers while that helps, then alternates between adding local and
// removing remote workers. Its last state is terminal.
type IncDec struct {
	// Up is the gain that a remote worker must have.
	Up float64
	// ByCost replaces Up by the test that the price of an element falls.
	ByCost bool
	// Harm is the loss from which the last local worker counts as harmful.
	Harm float64
	// MaxRemote and MaxLocal are the limits of the published code.
	MaxRemote, MaxLocal int
	// Forced continues the search for local workers although the window has another number of them than wanted. A later
	// version of the published code does that. Its dispatcher never removes a local worker.
	Forced bool

	history []measured
	state   incDecState
	target  autoscale.Configuration
	initial int
	ended   bool
}

type incDecState int

const (
	onlyRemote incDecState = iota
	increasingLocal
	decreasingRemote
	stable
)

func (s incDecState) String() string {
	return [...]string{"ONLY_REMOTE", "INCREASING_LOCAL", "DECREASING_REMOTE", "STABLE"}[s]
}

// outlier is the relative change above which the published code ignores a window.
const outlier = 1.3

// NewIncDec returns the policy with the constants of the published code.
func NewIncDec() *IncDec {
	return &IncDec{Up: 0.03, Harm: 0.10, MaxRemote: 20, MaxLocal: 10}
}

// Next decides from one window.
func (d *IncDec) Next(g autoscale.Goal, w autoscale.Window) autoscale.Decision {
	now := measured{w.Workers, w.MeanTime()}
	if len(d.history) == 0 && d.target == (autoscale.Configuration{}) {
		d.target = now.at
	}
	reason := d.step(g, now)
	d.target = g.Limits.Clamp(d.target)
	return autoscale.Decision{Target: d.target, State: d.state.String(), Converged: d.state == stable || d.ended, Reason: reason}
}

func (d *IncDec) step(g autoscale.Goal, now measured) string {
	if now.at != d.target {
		if !d.Forced || now.at.Remote != d.target.Remote {
			return "the window does not have the wanted workers"
		}
		if d.state != stable {
			d.state = increasingLocal
		}
	}
	if d.state == stable || d.ended {
		return "the last state is terminal"
	}
	d.history = append(d.history, now)
	if len(d.history) > 20 {
		d.history = d.history[1:]
	}
	if len(d.history) == 1 {
		d.target = autoscale.Configuration{Remote: now.at.Remote + 1, Local: now.at.Local}
		return "the first window is measured; a second configuration is needed to compare"
	}
	var before measured
	for _, m := range d.history {
		if m.at != now.at {
			before = m
		}
	}
	if before.time == 0 {
		d.ended = true
		return "no earlier window has another configuration"
	}
	r := 1 - now.time/before.time
	if math.Abs(r) > outlier {
		return fmt.Sprintf("the time changed by %.0f %%; the window is ignored", -100*r)
	}
	d.move(g.Prices, now.at, before.at, r)
	return fmt.Sprintf("%v takes %.1f %% less time than %v", now.at, 100*r, before.at)
}

func (d *IncDec) move(p autoscale.Prices, at, before autoscale.Configuration, r float64) {
	switch d.state {
	case onlyRemote:
		if d.helped(p, before, r) && at.Remote < d.MaxRemote {
			d.target = autoscale.Configuration{Remote: at.Remote + 1, Local: at.Local}
			return
		}
		remote := before.Remote
		if at.Remote == d.MaxRemote {
			remote = d.MaxRemote
		}
		d.target, d.state, d.initial = autoscale.Configuration{Remote: remote, Local: before.Local + 1}, increasingLocal, 0
	case increasingLocal:
		local := at.Local
		switch {
		case r < -d.Harm:
			local--
		case local < d.MaxLocal:
			d.target = autoscale.Configuration{Remote: at.Remote, Local: local + 1}
			return
		}
		if local == d.initial || at.Remote == 0 {
			d.target, d.state = autoscale.Configuration{Remote: at.Remote, Local: local}, stable
			return
		}
		d.target, d.state, d.initial = autoscale.Configuration{Remote: at.Remote - 1, Local: local}, decreasingRemote, at.Remote
	case decreasingRemote:
		remote := at.Remote
		if !d.acceptable(p, at, r) {
			remote++
		} else if remote > 0 {
			d.target = autoscale.Configuration{Remote: remote - 1, Local: at.Local}
			return
		}
		if remote == d.initial || at.Local >= d.MaxLocal {
			d.target, d.state = autoscale.Configuration{Remote: remote, Local: at.Local}, stable
			return
		}
		d.target, d.state, d.initial = autoscale.Configuration{Remote: remote, Local: at.Local + 1}, increasingLocal, at.Local
	}
}

// helped returns whether a remote worker was worth its price.
func (d *IncDec) helped(p autoscale.Prices, before autoscale.Configuration, r float64) bool {
	if !d.ByCost {
		return r > d.Up
	}
	return p.Remote*(1-r) < r*(p.Trainer+float64(before.Remote)*p.Remote)
}

// acceptable returns whether an element costs less after the removal of a remote worker.
func (d *IncDec) acceptable(p autoscale.Prices, at autoscale.Configuration, r float64) bool {
	return p.Remote > -r*(p.Trainer+float64(at.Remote)*p.Remote)
}
