package split

import (
	"math"

	"github.com/pecan-ml/pecan/service/graph"
)

// Edge is one edge of the cut: the output of one step, divided in blocks of elements.
type Edge struct {
	at    *graph.Step
	block int64
	// files: the elements are names of files that a downstream step opens.
	files bool
}

// edgeSet is a cut: the edges that are divided together.
type edgeSet struct {
	Edges []Edge
	// splitCount is the number of splits: blocks, elements or files. No more streams can have a share.
	splitCount int64
}

const unlimitedSplits = math.MaxInt64

// Division is one possible cut and its batch strategy.
type Division struct {
	edgeSet
	Strategy BatchStrategy
	// Batch is the grouping step whose short last batches are joined. It is nil with exact batches.
	Batch *graph.Step
	// Cuts maps a step to the index of its edge.
	Cuts map[*graph.Step]int
}

func (d Division) indexed() Division {
	d.Cuts = make(map[*graph.Step]int, len(d.Edges))
	for i, e := range d.Edges {
		d.Cuts[e.at] = i
	}
	return d
}

func allFiles(w Division) bool {
	for _, e := range w.Edges {
		if !e.files {
			return false
		}
	}
	return true
}

func maxBlock(w Division) int64 {
	block := int64(1)
	for _, e := range w.Edges {
		block = max(block, e.block)
	}
	return block
}
