package split

import (
	"math"
	"slices"

	"github.com/pecan-ml/pecan/service/graph"
)

// Edge is one edge of the cut: the output of one step, divided in blocks of elements.
type Edge struct {
	at    *graph.Step
	block int64
	// files is set if the elements are names of files that a downstream step opens.
	files bool
	// extents is set if they are files that have a name for each of their extents.
	extents bool
	// units has the rows of each unit of a list of extents, nil if each extent is one. block is a number of units.
	units [][][2]int64
	// mixed is set if the list is shuffled downstream, so its rows are taken in a fixed random order. Each part is then a
	// sample.
	mixed bool
}

// mixSeed is the seed of the order of the rows of mixed lists. Segments of caches depend on it, so it never changes.
const mixSeed = 15

// rows returns the rows of a list that are in a share. The list has the elements of the edge.
func (e Edge) rows(rows int64, share Share) rowRanges {
	if e.mixed {
		return rowRanges{count: shareRows(rows, e.block, share), list: func() (out [][2]int64) {
			for _, r := range shareRanges(rows, e.block, share) {
				for i := r[0]; i < r[1]; i++ {
					row := permuted(i, rows, mixSeed, 0)
					out = append(out, [2]int64{row, row + 1})
				}
			}
			return out
		}}
	}
	if e.units == nil {
		return rowRanges{count: shareRows(rows, e.block, share), list: func() [][2]int64 { return shareRanges(rows, e.block, share) }}
	}
	out, count := [][2]int64(nil), int64(0)
	for _, part := range shareRanges(int64(len(e.units)), e.block, share) {
		out = append(out, slices.Concat(e.units[part[0]:part[1]]...)...)
	}
	for _, r := range out {
		count += r[1] - r[0]
	}
	return rowRanges{count: count, list: func() [][2]int64 { return out }}
}

// rowRanges is the number of rows of a share, and their half-open ranges. They are listed only if they are needed,
// because a constant of one value may stand for very many rows.
type rowRanges struct {
	count int64
	list  func() [][2]int64
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
	// part is the number of blocks of a part; 0 if the source is not divided by parts. ordering are the steps that only
	// order. If the source is divided by parts, streams do not run them. late are the shuffles that run after the step
	// lateAfter.
	part           int64
	ordering, late []string
	lateAfter      string
}

func (d Division) indexed() Division {
	d.Cuts = make(map[*graph.Step]int, len(d.Edges))
	for i, e := range d.Edges {
		d.Cuts[e.at] = i
	}
	return d
}

func allFiles(d Division) bool {
	for _, e := range d.Edges {
		if !e.files {
			return false
		}
	}
	return true
}

func anyExtents(d Division) bool {
	return slices.ContainsFunc(d.Edges, func(e Edge) bool { return e.extents })
}

func maxBlock(d Division) int64 {
	block := int64(1)
	for _, e := range d.Edges {
		block = max(block, e.block)
	}
	return block
}
