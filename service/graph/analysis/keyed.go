package analysis

import (
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// Keyable reports whether all random values of a step can be keyed.
func (a *Analysis) Keyable(s *graph.Step) bool {
	attr := ops.ElementFunctionAttr(s.Node.GetOp())
	if f := a.Facts(s); attr == "" || !f.Random || f.WritesVariables {
		return false
	}
	for _, c := range a.Captures(s.Node) {
		if c.Use.IsRandomState() {
			return false
		}
	}
	return a.keyableFunction(s.Node.GetAttr()[attr].GetFunc().GetName())
}

func (a *Analysis) keyableFunction(name string) bool {
	for _, n := range a.g.Function(name).GetNodeDef() {
		if a.g.Ops().IsSeeded(n.GetOp()) && ops.StatelessOps[n.GetOp()].Op == "" || ops.GeneratorOps[n.GetOp()] {
			return false
		}
		for _, called := range nodedef.CalledFunctions(n) {
			if a.FunctionFacts(called).Random && (!ops.CallsOnce[n.GetOp()] || !a.keyableFunction(called)) {
				return false
			}
		}
	}
	return true
}

// KeySteps finds the steps that are keyed in a mode. It keys no step upstream of a repeat, because each pass
// would draw the same values again.
func (a *Analysis) KeySteps(root *graph.Step, mode pecanv1.Mode) {
	a.Keyed = map[string]bool{}
	if !NeedsRepeatableOrder(mode) {
		return
	}
	counts := map[*graph.Step]bool{}
	a.eachCounted(root, func(s *graph.Step, counted bool) { counts[s] = counted && a.races(s) })
	var visitUpstream func(s *graph.Step)
	visitUpstream = func(s *graph.Step) {
		if (mode == pecanv1.Mode_MODE_DETERMINISTIC || a.KeyAll || counts[s]) && a.Keyable(s) {
			a.Keyed[s.Node.GetName()] = true
		}
		if s.Rule.Kind == ops.Repeated {
			return
		}
		for _, in := range s.In {
			visitUpstream(in)
		}
	}
	visitUpstream(root)
}

// PassesIndex reports whether a step can return the index of an element as an additional component.
func PassesIndex(s *graph.Step) bool {
	switch s.Rule.Kind {
	case ops.PassThrough, ops.Positional, ops.Asserted:
		return true
	case ops.OneToOne, ops.PerElement:
		return ops.ElementFunctionAttr(s.Node.GetOp()) != "" || drops(s)
	case ops.Shuffled:
		return s.Node.GetOp() != "SnapshotDatasetV2"
	}
	return false
}

// KeepsIndex reports whether the index of an element is its number after the step, if it was before the step.
func KeepsIndex(s *graph.Step) bool {
	return s.Rule.Kind == ops.OneToOne && !drops(s) || s.Rule.Kind == ops.PassThrough || s.Rule.Kind == ops.Asserted
}

const ignoreErrors = "IgnoreErrorsDataset"

// drops reports whether a step leaves failed elements out.
func drops(s *graph.Step) bool { return s.Node.GetOp() == ignoreErrors }

// IgnoresErrors reports whether a step leaves out elements that fail, in itself or in its functions.
func (a *Analysis) IgnoresErrors(s *graph.Step) bool { return drops(s) || a.Facts(s).IgnoresErrors }
