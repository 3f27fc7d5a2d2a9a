package analysis

import (
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// WalkCounted visits a step and all steps upstream of it. counted is true if the values of a step downstream
// decide how many elements there are. It is always true in a captured dataset.
func WalkCounted(root *graph.Step, visit func(s *graph.Step, counted bool)) {
	var visitUpstream func(s *graph.Step, counted bool)
	visitUpstream = func(s *graph.Step, counted bool) {
		visit(s, counted)
		counted = counted || ChangesCount(s)
		for _, in := range s.In {
			visitUpstream(in, counted)
		}
		for _, c := range s.Captured {
			visitUpstream(c, true)
		}
	}
	visitUpstream(root, false)
}

// eachCounted visits all steps. counted is true if the random values of a step's functions decide how many
// elements there are.
func (a *Analysis) eachCounted(root *graph.Step, visit func(s *graph.Step, counted bool)) {
	WalkCounted(root, func(s *graph.Step, counted bool) {
		visit(s, counted || ChangesCount(s) && a.Facts(s).decidesCount)
	})
}

// SequencedSteps returns the names of the steps whose random draws must run in sequence because they cannot
// be keyed. The rewrite makes these steps sequential. In deterministic mode they are all steps whose draws
// race. In exactly-once mode they are only those whose values decide which elements exist.
func (a *Analysis) SequencedSteps(root *graph.Step, mode pecanv1.Mode) map[string]bool {
	found := map[string]bool{}
	if !NeedsRepeatableOrder(mode) {
		return found
	}
	a.eachCounted(root, func(s *graph.Step, counted bool) {
		if (counted || mode == pecanv1.Mode_MODE_DETERMINISTIC) && a.races(s) && a.serialises(s) && !a.Keyed[s.Node.GetName()] {
			found[s.Node.GetName()] = true
		}
	})
	return found
}

// NeedsRepeatableOrder reports whether a mode requires that element i of a stream is the same in every run.
func NeedsRepeatableOrder(m pecanv1.Mode) bool {
	switch m {
	case pecanv1.Mode_MODE_UNSPECIFIED, pecanv1.Mode_MODE_EXACTLY_ONCE, pecanv1.Mode_MODE_DETERMINISTIC:
		return true
	}
	return false
}

// UnorderedStep returns a step at which the user allowed elements in the order of their completion, nil if
// there is none.
func (a *Analysis) UnorderedStep(root *graph.Step) *graph.Step {
	var found *graph.Step
	root.Walk(func(s *graph.Step) {
		unordered := s.Node.GetAttr()["sloppy"].GetB()
		if v, ok := s.Node.GetAttr()["deterministic"]; ok && string(v.GetS()) == "false" {
			unordered = true
		}
		if options, ok := graph.ReadOptions(s.Node); ok && options.GetOptionalDeterministic() != nil && !options.GetDeterministic() {
			unordered = true
		}
		if unordered {
			found = s
		}
	})
	return found
}

// races reports whether values depend on the order of concurrent calls: values that a step draws, or that it
// counts with a variable.
func (a *Analysis) races(s *graph.Step) bool {
	f := a.Facts(s)
	return (f.Random || f.WritesVariables) && (f.parallel || ops.IsParallel(s.Node.GetOp()))
}

// serialises reports whether a step can process its elements one at a time.
func (a *Analysis) serialises(s *graph.Step) bool {
	op := s.Node.GetOp()
	return (!ops.IsParallel(op) || ops.SequentialOps[op].Op != "") && !a.Facts(s).unsequenceable
}

// IsDeterministic reports whether a mode promises equal bytes in equal order.
func IsDeterministic(mode pecanv1.Mode) bool { return mode == pecanv1.Mode_MODE_DETERMINISTIC }

// SameInEveryRun reports whether element p of a step comes from the same source positions in every run with
// the same seeds.
func (a *Analysis) SameInEveryRun(s *graph.Step) bool {
	ok := true
	WalkCounted(s, func(s *graph.Step, counted bool) {
		f := a.Facts(s)
		counted = counted || ChangesCount(s)
		switch {
		case (f.CachesElements || f.Stateful || f.WritesVariables) && s.Rule.Kind != ops.Source:
			ok = false
		case counted && (f.Unrepeatable || a.races(s)):
			ok = false
		case s.Node.GetOp() == "ShuffleDatasetV2", s.Node.GetOp() == "SnapshotDatasetV2":
			ok = false
		}
	})
	return ok
}

// FixedSeeds reports whether the attributes of an op exclude the epoch from its seeds.
func FixedSeeds(n *tf.NodeDef) bool {
	for _, key := range []string{"reshuffle_each_iteration", "rerandomize_each_iteration"} {
		if v, ok := n.GetAttr()[key]; ok && !v.GetB() {
			return true
		}
	}
	return false
}

// ChangesCount reports whether values decide how many elements a step gives.
func ChangesCount(s *graph.Step) bool {
	switch s.Rule.Kind {
	case ops.PerElement, ops.Undivided, ops.Directed:
		return true
	}
	return false
}

// VariablesDecideCount reports whether a variable that functions change may decide which elements exist.
func (a *Analysis) VariablesDecideCount(root *graph.Step) bool {
	decide := false
	WalkCounted(root, func(s *graph.Step, counted bool) {
		counted = counted || ChangesCount(s)
		decide = decide || (counted && a.Facts(s).WritesVariables)
	})
	return decide
}
