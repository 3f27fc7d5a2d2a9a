package graph

import (
	"fmt"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// A dataset's class says what two runs of one stream have in common. In class A element i is made of the same source
// records, in class B it has the same bytes too, in class C neither: dropping what was delivered and computing the rest
// again would lose some elements and double others.

// flaw is why a dataset, run in some mode, is not of class B.
type flaw struct {
	class pecanv1.DeterminismClass
	// listing: nothing is random, but files are listed while the dataset runs, and somebody may add one.
	listing bool
	at      *step
	text    string
}

const (
	classA = pecanv1.DeterminismClass_DETERMINISM_CLASS_A
	classB = pecanv1.DeterminismClass_DETERMINISM_CLASS_B
	classC = pecanv1.DeterminismClass_DETERMINISM_CLASS_C
)

// flaws looks at the whole pipeline as it runs in a mode, after all that the rewrite mends.
func (p *planner) flaws(root *step, mode pecanv1.Mode) []flaw {
	var found []flaw
	if len(root.in) == 0 && root.rule.kind != source {
		return []flaw{{class: classC, at: root, text: "one dataset is used in two places, which tf.data does not write"}}
	}
	if at := p.loose(root); at != nil && !keepsOrder(mode) {
		found = append(found, flaw{class: classC, at: at, text: "it gives elements as they get ready (deterministic=False)"})
	}
	p.key(root, mode)
	mended := p.mended(root, mode)
	p.eachCounted(root, func(s *step, counted bool) {
		f, name := p.facts(s), s.node.GetName()
		why := ""
		switch {
		case f.wild:
			why = "it draws values that no seed decides"
		case f.stateful:
			why = "it keeps state that Pecan knows nothing of"
		case p.races(s) && !mended[name] && !p.keyed[name]:
			why = "it draws random values, or changes a variable, for several elements at once"
		}
		switch op := s.node.GetOp(); {
		case op == "ShuffleDatasetV2":
			found = append(found, flaw{class: classC, at: s, text: "its random order comes from a generator of the trainer's process"})
		case op == "SnapshotDatasetV2":
			found = append(found, flaw{class: classC, at: s, text: "a snapshot may be read in another order than it was written in"})
		case why != "" && counted:
			found = append(found, flaw{class: classC, at: s, text: why + ", and they decide which elements there are"})
		case why != "":
			found = append(found, flaw{class: classA, at: s, text: why})
		}
		if f.lists || s.node.GetOp() == "MatchingFilesDataset" {
			found = append(found, flaw{class: classB, listing: true, at: s, text: "it lists files while it runs, and the list may change"})
		}
	})
	return found
}

func worst(flaws []flaw) pecanv1.DeterminismClass {
	class := classB
	for _, f := range flaws {
		if f.class == classC || class == classB {
			class = f.class
		}
	}
	return class
}

// eachCounted visits all steps; counted tells whether what a step's functions draw decides how many elements there are.
func (p *planner) eachCounted(root *step, visit func(s *step, counted bool)) {
	var below func(s *step, counted bool)
	below = func(s *step, counted bool) {
		visit(s, counted || changesCount(s) && p.facts(s).decides)
		counted = counted || changesCount(s)
		for _, in := range s.in {
			below(in, counted)
		}
		for _, c := range s.captured {
			below(c, true)
		}
	}
	below(root, false)
}

// mended are the steps, by name, whose draws the rewrite puts in order where they cannot be keyed: all in deterministic mode,
// and in exactly-once mode those whose values decide which elements there are.
func (p *planner) mended(root *step, mode pecanv1.Mode) map[string]bool {
	found := map[string]bool{}
	if !keepsOrder(mode) {
		return found
	}
	p.eachCounted(root, func(s *step, counted bool) {
		if (counted || mode == pecanv1.Mode_MODE_DETERMINISTIC) && p.races(s) && p.serialises(s) && !p.keyed[s.node.GetName()] {
			found[s.node.GetName()] = true
		}
	})
	return found
}

// settled is how a job runs.
type settled struct {
	mode  pecanv1.Mode
	class pecanv1.DeterminismClass
	// why is set where the mode is weaker than the one asked for.
	why string
}

// settle finds the mode that a job runs in: the one asked for where the dataset can keep its promise, and a weaker one
// where it cannot and the user allows that.
func (p *planner) settle(root *step, opts *pecanv1.JobOptions) (settled, error) {
	mode := opts.GetMode()
	found := p.flaws(root, mode)
	broken := breaks(found, mode)
	if broken == nil {
		return settled{mode: mode, class: worst(found)}, nil
	}
	if !opts.GetAllowNondeterministic() {
		return settled{}, refuse(mode, broken)
	}
	weaker := pecanv1.Mode_MODE_EXACTLY_ONCE
	if found = p.flaws(root, weaker); breaks(found, weaker) != nil {
		weaker = pecanv1.Mode_MODE_AT_LEAST_ONCE
		found = p.flaws(root, weaker)
	}
	return settled{mode: weaker, class: worst(found), why: broken.where()}, nil
}

// breaks gives the flaw that a mode's promise does not survive, the worst one first, or nil.
func breaks(flaws []flaw, mode pecanv1.Mode) *flaw {
	var found *flaw
	for i, f := range flaws {
		switch {
		case !keepsOrder(mode):
		case f.class == classC:
			return &flaws[i]
		case mode == pecanv1.Mode_MODE_DETERMINISTIC && found == nil && (f.class == classA || f.listing):
			found = &flaws[i]
		}
	}
	return found
}

func (f *flaw) where() string {
	return fmt.Sprintf("step %s (%s) stands in the way: %s", quoteName(f.at.node.GetName()), f.at.node.GetOp(), f.text)
}

func refuse(mode pecanv1.Mode, f *flaw) error {
	const orWeaker = "or give allow_nondeterministic=True to read it in a weaker mode"
	switch {
	case f.listing:
		return reason.New(reason.Nondeterministic, "the dataset cannot be read in mode deterministic: %s. List the files in the trainer "+
			"(tf.data.Dataset.list_files, tf.io.gfile.glob) and begin the pipeline with their names; %s", f.where(), orWeaker)
	case mode == pecanv1.Mode_MODE_DETERMINISTIC:
		return reason.New(reason.Nondeterministic, "the dataset cannot be read in mode deterministic: %s, so two runs would differ. Draw with tf.random.stateless_* ops "+
			"from seeds that the elements bring along, or apply that step after distribute(); %s", f.where(), orWeaker)
	}
	return reason.New(reason.Nondeterministic, "the dataset cannot be read in mode exactly_once: %s, so after the loss of a worker elements would be lost and others doubled. "+
		"Draw with tf.random.stateless_* ops from seeds that the elements bring along (and for a snapshot, take cache(path)), or apply that step after distribute(); "+
		"%s, or choose processing_mode=\"at_least_once\" or \"at_most_once\"", f.where(), orWeaker)
}

// Settle refuses a job whose mode its dataset cannot keep, as Analyze does, without dividing anything.
func Settle(g *Graph, opts *pecanv1.JobOptions) error {
	if isOff(opts) {
		return nil
	}
	p := newPlanner(g)
	root, isTree := g.tree()
	if isTree {
		root, _ = p.onePass(root)
	}
	_, err := p.settle(root, opts)
	return err
}

// keepsOrder tells whether a mode needs element i of a stream to be the same in every run.
func keepsOrder(m pecanv1.Mode) bool {
	switch m {
	case pecanv1.Mode_MODE_UNSPECIFIED, pecanv1.Mode_MODE_EXACTLY_ONCE, pecanv1.Mode_MODE_DETERMINISTIC:
		return true
	}
	return false
}

// loose finds a step by which the user allowed parallel steps to give elements as they get ready.
func (p *planner) loose(root *step) *step {
	var found *step
	root.walk(func(s *step) {
		loose := s.node.GetAttr()["sloppy"].GetB()
		if v, ok := s.node.GetAttr()["deterministic"]; ok && string(v.GetS()) == "false" {
			loose = true
		}
		if options, ok := readOptions(s.node); ok && options.GetOptionalDeterministic() != nil && !options.GetDeterministic() {
			loose = true
		}
		if loose {
			found = s
		}
	})
	return found
}
