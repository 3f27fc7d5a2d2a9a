package analysis

import (
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// Keyable tells whether all that a step draws can be keyed.
func (p *Analysis) Keyable(s *graph.Step) bool {
	attr := ops.ElementFunctionAttr(s.Node.GetOp())
	if f := p.Facts(s); attr == "" || !f.Random || f.WritesVariables {
		return false
	}
	for _, c := range p.Captures(s.Node) {
		if c.Use.IsRandomState() {
			return false
		}
	}
	return p.keyableFunction(s.Node.GetAttr()[attr].GetFunc().GetName())
}

func (p *Analysis) keyableFunction(name string) bool {
	for _, n := range p.g.Function(name).GetNodeDef() {
		if p.g.Ops().IsSeeded(n.GetOp()) && ops.StatelessOps[n.GetOp()].Op == "" || ops.GeneratorOps[n.GetOp()] {
			return false
		}
		for _, called := range nodedef.CalledFunctions(n) {
			if p.FunctionFacts(called).Random && (!ops.CallsOnce[n.GetOp()] || !p.keyableFunction(called)) {
				return false
			}
		}
	}
	return true
}

// KeySteps finds the steps that are keyed in a mode. Below a repeat there are none: each pass would draw the same again.
func (p *Analysis) KeySteps(root *graph.Step, mode pecanv1.Mode) {
	p.Keyed = map[string]bool{}
	if !NeedsRepeatableOrder(mode) {
		return
	}
	counts := map[*graph.Step]bool{}
	p.eachCounted(root, func(s *graph.Step, counted bool) { counts[s] = counted && p.races(s) })
	var below func(s *graph.Step)
	below = func(s *graph.Step) {
		if (mode == pecanv1.Mode_MODE_DETERMINISTIC || counts[s]) && p.Keyable(s) {
			p.Keyed[s.Node.GetName()] = true
		}
		if s.Rule.Kind == ops.Repeated {
			return
		}
		for _, in := range s.In {
			below(in)
		}
	}
	below(root)
}
