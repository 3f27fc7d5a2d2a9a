package analysis

import (
	"fmt"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
)

// ModeChoice is the mode in which a job runs.
type ModeChoice struct {
	Mode  pecanv1.Mode
	Class pecanv1.DeterminismClass
	// Downgrade says why the mode is weaker than the requested one. It is "" if the mode is the requested
	// one.
	Downgrade string
}

// ChooseMode returns the requested mode if the dataset can keep its promise. Otherwise it returns a weaker
// mode if the user allows that, and else an error.
func (a *Analysis) ChooseMode(root *graph.Step, opts *pecanv1.JobOptions) (ModeChoice, error) {
	mode := opts.GetMode()
	found := a.obstacles(root, mode)
	broken := firstObstacle(found, mode)
	if broken == nil {
		return ModeChoice{Mode: mode, Class: weakestClass(found)}, nil
	}
	if !opts.GetAllowNondeterministic() {
		return ModeChoice{}, refusal(mode, broken)
	}
	weaker := pecanv1.Mode_MODE_EXACTLY_ONCE
	if found = a.obstacles(root, weaker); firstObstacle(found, weaker) != nil {
		weaker = pecanv1.Mode_MODE_AT_LEAST_ONCE
		found = a.obstacles(root, weaker)
	}
	return ModeChoice{Mode: weaker, Class: weakestClass(found), Downgrade: broken.where()}, nil
}

// firstObstacle returns the obstacle that breaks a mode's promise, nil if there is none. An obstacle of class
// C comes first.
func firstObstacle(obstacles []obstacle, mode pecanv1.Mode) *obstacle {
	var found *obstacle
	for i, f := range obstacles {
		switch {
		case !NeedsRepeatableOrder(mode):
		case f.class == classC:
			return &obstacles[i]
		case mode == pecanv1.Mode_MODE_DETERMINISTIC && found == nil && (f.class == classA || f.listing):
			found = &obstacles[i]
		}
	}
	return found
}

func (o *obstacle) where() string {
	return fmt.Sprintf("step %s (%s) prevents it: %s", nodedef.Quote(o.at.Node.GetName()), o.at.Node.GetOp(), o.text)
}

func refusal(mode pecanv1.Mode, f *obstacle) error {
	const orWeaker = "or set allow_nondeterministic=True to read it in a weaker mode"
	switch {
	case f.listing:
		return reason.New(reason.Nondeterministic, "the dataset cannot be read in mode deterministic: %s. List the files in the trainer "+
			"(tf.data.Dataset.list_files, tf.io.gfile.glob) and start the pipeline from their names; %s", f.where(), orWeaker)
	case mode == pecanv1.Mode_MODE_DETERMINISTIC:
		return reason.New(reason.Nondeterministic, "the dataset cannot be read in mode deterministic: %s, so two runs would differ. Draw with tf.random.stateless_* ops "+
			"from seeds in the elements, or apply that step after distribute(); %s", f.where(), orWeaker)
	}
	return reason.New(reason.Nondeterministic, "the dataset cannot be read in mode exactly_once: %s, so the loss of a worker would lose some elements and duplicate others. "+
		"Draw with tf.random.stateless_* ops from seeds in the elements (for a snapshot, use cache(path) instead), or apply that step after distribute(); "+
		"%s, or choose processing_mode=\"at_least_once\" or \"at_most_once\"", f.where(), orWeaker)
}
