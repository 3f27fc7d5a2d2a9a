package analysis

import (
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// A dataset's class says what two runs of one stream have in common. In class A element i is made of the same source
// records, in class B it has the same bytes too, in class C neither: dropping what was delivered and computing the rest
// again would lose some elements and double others.

// obstacle is why a dataset, run in some mode, is not of class B.
type obstacle struct {
	class pecanv1.DeterminismClass
	// listing: nothing is random, but files are listed while the dataset runs, and somebody may add one.
	listing bool
	at      *graph.Step
	text    string
}

const (
	classA = pecanv1.DeterminismClass_DETERMINISM_CLASS_A
	classB = pecanv1.DeterminismClass_DETERMINISM_CLASS_B
	classC = pecanv1.DeterminismClass_DETERMINISM_CLASS_C
)

// obstacles looks at the whole pipeline as it runs in a mode, after all that the rewrite mends.
func (p *Analysis) obstacles(root *graph.Step, mode pecanv1.Mode) []obstacle {
	var found []obstacle
	if len(root.In) == 0 && root.Rule.Kind != ops.Source {
		return []obstacle{{class: classC, at: root, text: "one dataset is used in two places, which tf.data does not write"}}
	}
	if at := p.UnorderedStep(root); at != nil && !NeedsRepeatableOrder(mode) {
		found = append(found, obstacle{class: classC, at: at, text: "it gives elements as they get ready (deterministic=False)"})
	}
	p.KeySteps(root, mode)
	mended := p.SequencedSteps(root, mode)
	p.eachCounted(root, func(s *graph.Step, counted bool) {
		f, name := p.Facts(s), s.Node.GetName()
		why := ""
		switch {
		case f.Unrepeatable:
			why = "it draws values that no seed decides"
		case f.Stateful:
			why = "it keeps state that Pecan knows nothing of"
		case p.races(s) && !mended[name] && !p.Keyed[name]:
			why = "it draws random values, or changes a variable, for several elements at once"
		}
		switch op := s.Node.GetOp(); {
		case op == "ShuffleDatasetV2":
			found = append(found, obstacle{class: classC, at: s, text: "its random order comes from a generator of the trainer's process"})
		case op == "SnapshotDatasetV2":
			found = append(found, obstacle{class: classC, at: s, text: "a snapshot may be read in another order than it was written in"})
		case why != "" && counted:
			found = append(found, obstacle{class: classC, at: s, text: why + ", and they decide which elements there are"})
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
func (p *Analysis) DeterminismClass(root *graph.Step, mode pecanv1.Mode) pecanv1.DeterminismClass {
	return weakestClass(p.obstacles(root, mode))
}

func weakestClass(flaws []obstacle) pecanv1.DeterminismClass {
	class := classB
	for _, f := range flaws {
		if f.class == classC || class == classB {
			class = f.class
		}
	}
	return class
}
