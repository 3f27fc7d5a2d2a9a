package split

import (
	"math"

	"github.com/pecan-ml/pecan/service/graph"
)

// Edge is a place of the cut: the output of a step, in blocks of so many elements.
type Edge struct {
	at    *graph.Step
	block int64
	// files: the elements are names of files that a step above opens.
	files bool
}

// edgeSet is a cut: all its edges are cut together.
type edgeSet struct {
	Edges []Edge
	// splitCount is how many streams can have a share: blocks, elements or files.
	splitCount int64
}

const unlimitedSplits = math.MaxInt64

// Division is one possible plan: a division, and how batches stay whole above it.
type Division struct {
	edgeSet
	Strategy BatchStrategy
	// Batch is the grouping step whose short last batches are joined, nil with exact batches.
	Batch *graph.Step
	// Cuts finds the edge at a step.
	Cuts map[*graph.Step]int
}

func (w Division) indexed() Division {
	w.Cuts = make(map[*graph.Step]int, len(w.Edges))
	for i, e := range w.Edges {
		w.Cuts[e.at] = i
	}
	return w
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
