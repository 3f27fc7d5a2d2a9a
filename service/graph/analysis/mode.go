package analysis

import (
	"fmt"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
)

// ModeChoice is how a job runs.
type ModeChoice struct {
	Mode  pecanv1.Mode
	Class pecanv1.DeterminismClass
	// Downgrade is set where the mode is weaker than the one asked for.
	Downgrade string
}

// ChooseMode finds the mode that a job runs in: the one asked for where the dataset can keep its promise, and a weaker one
// where it cannot and the user allows that.
func (p *Analysis) ChooseMode(root *graph.Step, opts *pecanv1.JobOptions) (ModeChoice, error) {
	mode := opts.GetMode()
	found := p.obstacles(root, mode)
	broken := firstObstacle(found, mode)
	if broken == nil {
		return ModeChoice{Mode: mode, Class: weakestClass(found)}, nil
	}
	if !opts.GetAllowNondeterministic() {
		return ModeChoice{}, refusal(mode, broken)
	}
	weaker := pecanv1.Mode_MODE_EXACTLY_ONCE
	if found = p.obstacles(root, weaker); firstObstacle(found, weaker) != nil {
		weaker = pecanv1.Mode_MODE_AT_LEAST_ONCE
		found = p.obstacles(root, weaker)
	}
	return ModeChoice{Mode: weaker, Class: weakestClass(found), Downgrade: broken.where()}, nil
}

// firstObstacle gives the flaw that a mode's promise does not survive, the worst one first, or nil.
func firstObstacle(flaws []obstacle, mode pecanv1.Mode) *obstacle {
	var found *obstacle
	for i, f := range flaws {
		switch {
		case !NeedsRepeatableOrder(mode):
		case f.class == classC:
			return &flaws[i]
		case mode == pecanv1.Mode_MODE_DETERMINISTIC && found == nil && (f.class == classA || f.listing):
			found = &flaws[i]
		}
	}
	return found
}

func (f *obstacle) where() string {
	return fmt.Sprintf("step %s (%s) stands in the way: %s", nodedef.Quote(f.at.Node.GetName()), f.at.Node.GetOp(), f.text)
}

func refusal(mode pecanv1.Mode, f *obstacle) error {
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
