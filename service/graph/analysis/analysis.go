package analysis

import (
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
)

// Analysis answers questions about the steps of one graph and keeps the answers.
type Analysis struct {
	*graph.Variables
	g     *graph.Graph
	cards map[*graph.Step]int64
	ends  map[*graph.Step]bool
	costs map[*graph.Step]int
	steps map[*tf.NodeDef]*Facts
	funcs map[string]*Facts
	// Keyed are the steps, by name, whose random values are keyed.
	Keyed map[string]bool
}

// New prepares the analysis of a graph.
func New(g *graph.Graph) *Analysis {
	return &Analysis{
		Variables: graph.NewVariables(g), g: g, cards: map[*graph.Step]int64{}, ends: map[*graph.Step]bool{}, costs: map[*graph.Step]int{},
		steps: map[*tf.NodeDef]*Facts{}, funcs: map[string]*Facts{},
	}
}
