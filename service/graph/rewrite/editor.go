package rewrite

import (
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/split"
)

// editor writes the graphs of one stream.
type editor struct {
	*graph.Editor
	g     *graph.Graph
	p     *split.Planner
	plan  planFacts
	at    At
	seeds seedSource
	// index says where the numbers of elements travel, for steps that draw by them.
	index indexColumn
	// sequenced are the steps that work on one element after another, so that their draws come in order.
	sequenced map[string]bool
	// serial: functions are being written for such a step.
	serial bool
	// cachePlan is the plan at whose cached step the graph is divided, nil when it is not. What lies below is written to below, and
	// stopOutput stands for the output of stop.
	cachePlan  *pecanv1.Plan
	below      []byte
	names      []string
	stop       *graph.Step
	stopOutput string
	// shared are the tables and variables that other streams find by their names.
	shared []Shared
	// seededFunctions remembers which functions hold something that a stream sets.
	seededFunctions map[string]bool
	// assigned finds the node that gives a variable its value.
	assigned map[string]*tf.NodeDef
	// skips is how many elements are left out above a step, for a stream that begins at an index.
	skips map[*graph.Step]int64
	// skippedBelow are the steps above those, which see nothing of the elements that are left out.
	skippedBelow map[*graph.Step]bool
	// clones counts function nodes that were copied, to refuse graphs that would grow without measure.
	clones int
}

// planFacts is the part of a plan that rewriting looks at.
type planFacts struct {
	streams  int64
	division split.Division
	hint     bool
	off      bool
}

func (e *editor) ordered() bool { return e.at.Mode.String() == "MODE_DETERMINISTIC" }

// fork starts a second graph that begins as this one stands.
func (e *editor) fork() *editor {
	c := *e
	c.Editor = e.Editor.Fork()
	return &c
}
