package analysis

import (
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
)

// Analysis answers questions about the steps of one graph and caches the answers.
type Analysis struct {
	*graph.Variables
	g     *graph.Graph
	cards map[*graph.Step]int64
	ends  map[*graph.Step]bool
	costs map[*graph.Step]int
	steps map[*tf.NodeDef]*Facts
	funcs map[string]*Facts
	// Keyed contains the names of the steps whose random values are keyed.
	Keyed map[string]bool
}

// New returns an Analysis of a graph.
func New(g *graph.Graph) *Analysis {
	return &Analysis{
		Variables: graph.NewVariables(g), g: g, cards: map[*graph.Step]int64{}, ends: map[*graph.Step]bool{}, costs: map[*graph.Step]int{},
		steps: map[*tf.NodeDef]*Facts{}, funcs: map[string]*Facts{},
	}
}
