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
	// index is the plan of the index column, for steps with keyed randomness.
	index indexColumn
	// sequenced are the steps that compute one element at a time, so that they draw random values in order.
	sequenced map[string]bool
	// serial is set while the functions of such a step are written.
	serial bool
	// cached is the plan of the cache at whose step the graph is divided; nil if it is not divided.
	cached *pecanv1.CachePlan
	// upstreamGraph is the graph upstream of the cached step.
	upstreamGraph []byte
	// parts are the parts of the stream, in order.
	parts []uint32
	// stored is StreamGraphs.StoredTypes.
	stored []tf.DataType
	// names is StreamGraphs.FileNames.
	names func(part uint32) []string
	// stop is the cached step.
	stop *graph.Step
	// stopOutput is the node that replaces the output of stop.
	stopOutput string
	// shared are the tables and variables that streams share by their names.
	shared []Shared
	// seededFunctions has the results of needsClone.
	seededFunctions map[string]bool
	// assigned has the node that assigns the first value of each variable.
	assigned map[string]*tf.NodeDef
	// skips is the number of elements that are skipped after a step, for a stream that begins at an index.
	skips map[*graph.Step]int64
	// skippedUpstream are the steps downstream of those, which do not get the skipped elements.
	skippedUpstream map[*graph.Step]bool
	// clones counts the copied function nodes, to refuse graphs that would grow without bound.
	clones int
}

// planFacts are the fields of a plan that the rewrites need.
type planFacts struct {
	streams int64
	// open is how many streams an epoch has open together. The shuffle buffers of these streams together hold the user's
	// number of elements.
	open     int64
	division split.Division
	// parts are those that the stream has at the cached step, in no order.
	parts []uint32
	// share is the stream's part of the dataset. cut is the cut of the plan.
	share split.Share
	cut   *pecanv1.Cut
	// frozen are the late shuffles that keep the order of the first epoch.
	frozen map[string]bool
	hint   bool
	off    bool
	// carry is set if the rows that do not fill a batch in the last closing stream belong to the next epoch.
	carry bool
}

func (e *editor) ordered() bool { return e.at.Mode.String() == "MODE_DETERMINISTIC" }

// fork returns an editor for a second graph that starts from the current state of this one.
func (e *editor) fork() *editor {
	c := *e
	c.Editor = e.Editor.Fork()
	return &c
}
