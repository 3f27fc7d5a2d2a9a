package autoplacement

import (
	"fmt"

	"github.com/pecan-ml/pecan/policies/autoscale"
)

// Paper is algorithm 1 of Graur et al., "Pecan: Cost-Efficient ML Data Preprocessing with Automatic Transformation Ordering
// and Hybrid Placement" (USENIX ATC 2024), for comparison. It adds remote workers until that gains less than Threshold. Then
// it repeats two phases until neither changes anything. The first adds local workers until the element time is Threshold
// above that of the remote workers alone. The second removes remote workers until the price of an element rises. That holds for all objectives.
//
// The paper monitors afterwards and gives no rule. Here it starts again if the element time at every tenth
// window is 1.5 times that of convergence, as Cachew does.
type Paper struct {
	// Threshold is T of the paper.
	Threshold float64

	phase     string
	target    autoscale.Configuration
	reference float64
	// kept is the last configuration that the phases did not take back. round is the one at the start of both phases.
	kept, round measured
	stable      int
}

type measured struct {
	at   autoscale.Configuration
	time float64
}

// NewPaper returns the policy with the threshold of the paper.
func NewPaper() *Paper { return &Paper{Threshold: 0.03} }

const (
	phaseRemote = "adds remote workers"
	phaseLocal  = "adds local workers"
	phaseRemove = "removes remote workers"
	phaseStable = "stable"
)

// Next decides from one window.
func (p *Paper) Next(g autoscale.Goal, w autoscale.Window) autoscale.Decision {
	if p.phase == "" {
		p.phase, p.target = phaseRemote, g.Limits.Clamp(autoscale.Configuration{Remote: 1})
	}
	reason := "the window does not have the wanted workers"
	if w.Workers == p.target && w.MeanTime() > 0 {
		reason = p.step(g, measured{w.Workers, w.MeanTime()})
	}
	return autoscale.Decision{Target: p.target, State: p.phase, Converged: p.phase == phaseStable, Reason: reason}
}

func (p *Paper) step(g autoscale.Goal, now measured) string {
	r := 1 - now.time/p.kept.time
	switch p.phase {
	case phaseRemote:
		if p.kept.time > 0 && !(r > p.Threshold) {
			p.reference = p.kept.time
			p.round = p.kept
			p.addLocal(g)
			return fmt.Sprintf("the last remote worker changed the time by %.1f %%, which is the plateau", -100*r)
		}
		p.kept = now
		if now.at.Remote >= g.Limits.Max.Remote {
			p.reference, p.round = now.time, now
			p.addLocal(g)
			return "the limit of remote workers is reached"
		}
		p.target.Remote++
		return "one more remote worker may shorten the time"
	case phaseLocal:
		if now.time/p.reference-1 >= p.Threshold {
			p.removeRemote(g)
			return fmt.Sprintf("the last local worker is harmful: the time is %.1f %% above the plateau", 100*(now.time/p.reference-1))
		}
		p.kept = now
		p.addLocal(g)
		return "one more local worker does no harm yet"
	case phaseRemove:
		if g.PerHour(now.at)*now.time > g.PerHour(p.kept.at)*p.kept.time {
			p.endRound(g)
			return "the removal of the last remote worker raised the price of an element"
		}
		p.kept = now
		p.removeRemote(g)
		return "the removal of a remote worker did not raise the price of an element"
	}
	if p.stable++; p.stable%10 == 0 && now.time > 1.5*p.kept.time {
		*p = Paper{Threshold: p.Threshold, phase: phaseRemote, target: g.Limits.Clamp(autoscale.Configuration{Remote: 1})}
		return "the time grew by half since the search ended, so the search starts again"
	}
	return "neither phase changed the configuration"
}

func (p *Paper) addLocal(g autoscale.Goal) {
	if p.kept.at.Local >= g.Limits.Max.Local {
		p.removeRemote(g)
		return
	}
	p.phase, p.target = phaseLocal, p.kept.at
	p.target.Local++
}

func (p *Paper) removeRemote(g autoscale.Goal) {
	if p.kept.at.Remote <= g.Limits.Min.Remote || p.kept.at.Remote+p.kept.at.Local <= 1 {
		p.endRound(g)
		return
	}
	p.phase, p.target = phaseRemove, p.kept.at
	p.target.Remote--
}

func (p *Paper) endRound(g autoscale.Goal) {
	p.target = p.kept.at
	if p.kept.at == p.round.at {
		p.phase, p.stable = phaseStable, 0
		return
	}
	p.round = p.kept
	if p.kept.at.Local < g.Limits.Max.Local {
		p.addLocal(g)
		return
	}
	// More local workers are not allowed, and the last phase ended at this number of remote ones.
	p.phase, p.stable = phaseStable, 0
}
