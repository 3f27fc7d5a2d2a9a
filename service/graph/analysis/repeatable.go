package analysis

import (
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// eachCounted visits all steps; counted tells whether what a step's functions draw decides how many elements there are.
func (p *Analysis) eachCounted(root *graph.Step, visit func(s *graph.Step, counted bool)) {
	var below func(s *graph.Step, counted bool)
	below = func(s *graph.Step, counted bool) {
		visit(s, counted || ChangesCount(s) && p.Facts(s).decidesCount)
		counted = counted || ChangesCount(s)
		for _, in := range s.In {
			below(in, counted)
		}
		for _, c := range s.Captured {
			below(c, true)
		}
	}
	below(root, false)
}

// SequencedSteps are the steps, by name, whose draws the rewrite puts in order where they cannot be keyed: all in deterministic mode,
// and in exactly-once mode those whose values decide which elements there are.
func (p *Analysis) SequencedSteps(root *graph.Step, mode pecanv1.Mode) map[string]bool {
	found := map[string]bool{}
	if !NeedsRepeatableOrder(mode) {
		return found
	}
	p.eachCounted(root, func(s *graph.Step, counted bool) {
		if (counted || mode == pecanv1.Mode_MODE_DETERMINISTIC) && p.races(s) && p.serialises(s) && !p.Keyed[s.Node.GetName()] {
			found[s.Node.GetName()] = true
		}
	})
	return found
}

// NeedsRepeatableOrder tells whether a mode needs element i of a stream to be the same in every run.
func NeedsRepeatableOrder(m pecanv1.Mode) bool {
	switch m {
	case pecanv1.Mode_MODE_UNSPECIFIED, pecanv1.Mode_MODE_EXACTLY_ONCE, pecanv1.Mode_MODE_DETERMINISTIC:
		return true
	}
	return false
}

// UnorderedStep finds a step by which the user allowed parallel steps to give elements as they get ready.
func (p *Analysis) UnorderedStep(root *graph.Step) *graph.Step {
	var found *graph.Step
	root.Walk(func(s *graph.Step) {
		loose := s.Node.GetAttr()["sloppy"].GetB()
		if v, ok := s.Node.GetAttr()["deterministic"]; ok && string(v.GetS()) == "false" {
			loose = true
		}
		if options, ok := graph.ReadOptions(s.Node); ok && options.GetOptionalDeterministic() != nil && !options.GetDeterministic() {
			loose = true
		}
		if loose {
			found = s
		}
	})
	return found
}

// races tells whether the values that a step draws, or counts with a variable, depend on which of its calls came first.
func (a *Analysis) races(s *graph.Step) bool {
	f := a.Facts(s)
	return (f.Random || f.WritesVariables) && (f.parallel || ops.IsParallel(s.Node.GetOp()))
}

// serialises tells whether a step can be made to work on one element after another.
func (a *Analysis) serialises(s *graph.Step) bool {
	op := s.Node.GetOp()
	return (!ops.IsParallel(op) || ops.SequentialOps[op].Op != "") && !a.Facts(s).unsequenceable
}

// IsDeterministic tells whether a mode promises equal bytes in equal order.
func IsDeterministic(mode pecanv1.Mode) bool { return mode == pecanv1.Mode_MODE_DETERMINISTIC }

// SameInEveryRun tells whether element p of a step comes from the same source positions in each run with the same seeds.
func (p *Analysis) SameInEveryRun(s *graph.Step) bool {
	ok := true
	var below func(s *graph.Step, counted bool)
	below = func(s *graph.Step, counted bool) {
		f := p.Facts(s)
		counted = counted || ChangesCount(s)
		switch {
		case (f.CachesElements || f.Stateful || f.WritesVariables) && s.Rule.Kind != ops.Source:
			ok = false
		case counted && (f.Unrepeatable || p.races(s)):
			ok = false
		case s.Node.GetOp() == "ShuffleDatasetV2", s.Node.GetOp() == "SnapshotDatasetV2":
			ok = false
		}
		for _, in := range s.In {
			below(in, counted)
		}
		for _, c := range s.Captured {
			below(c, true)
		}
	}
	below(s, false)
	return ok
}

// ChangesCount tells whether values decide how many elements a step gives.
func ChangesCount(s *graph.Step) bool {
	switch s.Rule.Kind {
	case ops.PerElement, ops.Undivided, ops.Directed:
		return true
	}
	return false
}

// VariablesDecideCount tells whether a variable that functions change may have a say in which elements there are.
func (p *Analysis) VariablesDecideCount(root *graph.Step) bool {
	decide := false
	var below func(s *graph.Step, counted bool)
	below = func(s *graph.Step, counted bool) {
		counted = counted || ChangesCount(s)
		decide = decide || (counted && p.Facts(s).WritesVariables)
		for _, in := range s.In {
			below(in, counted)
		}
		for _, c := range s.Captured {
			below(c, true)
		}
	}
	below(root, false)
	return decide
}
