package split

import (
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/analysis"
)

// Planner divides one dataset.
type Planner struct {
	*analysis.Analysis
	g *graph.Graph
	// CachedStep is the step at which the graph is divided for a cache, "" when it is not divided there.
	CachedStep string
}

// NewPlanner prepares the planning of a graph.
func NewPlanner(g *graph.Graph) *Planner { return &Planner{Analysis: analysis.New(g), g: g} }
