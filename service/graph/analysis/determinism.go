package analysis

import (
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// The class of a dataset says what two runs of one stream have in common. In class A, element i is computed
// from the same source records. In class B, it also has the same bytes. In class C, neither holds. There, a
// worker that drops the delivered elements and recomputes the rest would lose some elements and duplicate
// others.

// obstacle is a reason why a dataset, run in some mode, is not of class B.
type obstacle struct {
	class pecanv1.DeterminismClass
	// listing is set if nothing is random, but the dataset lists files while it runs, and files may be added.
	listing bool
	at      *graph.Step
	text    string
}

const (
	classA = pecanv1.DeterminismClass_DETERMINISM_CLASS_A
	classB = pecanv1.DeterminismClass_DETERMINISM_CLASS_B
	classC = pecanv1.DeterminismClass_DETERMINISM_CLASS_C
)

// obstacles checks the whole pipeline as it runs in a mode. It takes into account what the rewrite repairs.
func (a *Analysis) obstacles(root *graph.Step, mode pecanv1.Mode) []obstacle {
	var found []obstacle
	if len(root.In) == 0 && root.Rule.Kind != ops.Source {
		return []obstacle{{class: classC, at: root, text: "the graph uses one dataset in two places, which tf.data does not write"}}
	}
	if at := a.UnorderedStep(root); at != nil && !NeedsRepeatableOrder(mode) {
		found = append(found, obstacle{class: classC, at: at, text: "it gives elements in the order of their completion (deterministic=False)"})
	}
	a.KeySteps(root, mode)
	sequenced := a.SequencedSteps(root, mode)
	a.eachCounted(root, func(s *graph.Step, counted bool) {
		f, name := a.Facts(s), s.Node.GetName()
		why := ""
		switch {
		case f.Unrepeatable:
			why = "it draws values that no seed decides"
		case f.Stateful:
			why = "it keeps state that Pecan does not know"
		case a.races(s) && !sequenced[name] && !a.Keyed[name]:
			why = "it draws random values, or changes a variable, for several elements at once"
		}
		switch op := s.Node.GetOp(); {
		case op == "ShuffleDatasetV2":
			found = append(found, obstacle{class: classC, at: s, text: "its random order comes from a generator in the trainer's process"})
		case op == "SnapshotDatasetV2":
			found = append(found, obstacle{class: classC, at: s, text: "a snapshot may return elements in another order than it stored them"})
		case why != "" && counted:
			found = append(found, obstacle{class: classC, at: s, text: why + ", and this decides which elements exist"})
		case why != "":
			found = append(found, obstacle{class: classA, at: s, text: why})
		}
		if f.ListsFiles || s.Node.GetOp() == "MatchingFilesDataset" {
			found = append(found, obstacle{class: classB, listing: true, at: s, text: "it lists files while it runs, and the list may change"})
		}
	})
	return found
}

// DeterminismClass is the determinism class of a dataset that runs in a mode.
func (a *Analysis) DeterminismClass(root *graph.Step, mode pecanv1.Mode) pecanv1.DeterminismClass {
	return weakestClass(a.obstacles(root, mode))
}

func weakestClass(obstacles []obstacle) pecanv1.DeterminismClass {
	class := classB
	for _, f := range obstacles {
		if f.class == classC || class == classB {
			class = f.class
		}
	}
	return class
}
