package split

import (
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/analysis"
)

// Planner plans the division of one dataset.
type Planner struct {
	*analysis.Analysis
	g *graph.Graph
	// CachedStep is the step at which the graph is divided for a cache, "" without a cache.
	CachedStep string
}

// NewPlanner returns a Planner for a graph.
func NewPlanner(g *graph.Graph) *Planner { return &Planner{Analysis: analysis.New(g), g: g} }
