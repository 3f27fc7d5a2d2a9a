package split

import (
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/analysis"
)

// Planner plans the division of one dataset.
type Planner struct {
	*analysis.Analysis
	g *graph.Graph
	// wholeFiles is set if the splits of a list of extents are its files.
	wholeFiles bool
	// CachedStep is the step at which the graph is divided for a cache, "" without a cache.
	CachedStep string
	// Carry allows the planner to remove an endless repeat upstream of a batch: the next epoch sends the rows that are left
	// in one epoch. carried is set if such a repeat was removed.
	Carry   bool
	carried bool
}

// NewPlanner returns a Planner for a graph.
func NewPlanner(g *graph.Graph) *Planner { return &Planner{Analysis: analysis.New(g), g: g} }
