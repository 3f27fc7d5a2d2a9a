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
	// KeyAll makes KeySteps key every step that can be keyed, as in mode deterministic.
	KeyAll bool
}

// New returns an Analysis of a graph.
func New(g *graph.Graph) *Analysis {
	return &Analysis{
		Variables: graph.NewVariables(g), g: g, cards: map[*graph.Step]int64{}, ends: map[*graph.Step]bool{}, costs: map[*graph.Step]int{},
		steps: map[*tf.NodeDef]*Facts{}, funcs: map[string]*Facts{},
	}
}

// answer returns the cached answer for a step. It computes and caches an answer that is missing.
func answer[T any](cached map[*graph.Step]T, s *graph.Step, compute func(*graph.Step) T) T {
	if known, ok := cached[s]; ok {
		return known
	}
	cached[s] = compute(s)
	return cached[s]
}
