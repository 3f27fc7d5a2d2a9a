package split

import "github.com/pecan-ml/pecan/service/graph"

// Estimate returns about the number of elements of a dataset whose files have this many records.
func Estimate(g *graph.Graph, records int64) int64 {
	root, _ := g.Steps()
	return NewPlanner(g).estimate(root, records)
}
