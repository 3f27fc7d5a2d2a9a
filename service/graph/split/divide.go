package split

import (
	"math"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/analysis"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// need says what the steps downstream of a step require of the division of its output.
type need int

const (
	// needRows means that elements are batches, and only their rows matter, not how rows are grouped.
	needRows need = iota
	// needElements means that every element is in exactly one stream.
	needElements
	// needCounts means needElements, and that in all streams but one the number of elements is a multiple of the block.
	needCounts
	// needPositions means needCounts, and that stream s has exactly the positions p with (p div block) mod S = s, in
	// order.
	needPositions
)

// divide puts the cut as far upstream of a step as the need allows. A cut directly after the step satisfies
// every need. With cutWithinFiles, divide does not cut by files.
func (p *Planner) divide(s *graph.Step, n need, block int64, cutWithinFiles bool) edgeSet {
	down := func(n need, block int64) edgeSet { return p.divide(s.In[0], n, block, cutWithinFiles) }
	each := func(steps []*graph.Step) edgeSet {
		var all edgeSet
		for _, in := range steps {
			d := p.divide(in, needElements, 1, cutWithinFiles)
			all.Edges = append(all.Edges, d.Edges...)
			all.splitCount = max(all.splitCount, d.splitCount)
		}
		return all
	}
	switch s.Rule.Kind {
	case ops.OneToOne:
		if n == needRows && !p.Facts(s).Identity {
			n = needElements
		}
		return down(n, block)
	case ops.PassThrough, ops.Cached, ops.Asserted:
		return down(n, block)
	case ops.PerElement:
		if n <= needElements && !p.Facts(s).Endless {
			return p.divideUpstreamOfFunction(s, block, cutWithinFiles)
		}
		// A block of records that is a whole number of extents can be cut at the list of extents. With needPositions, all
		// inputs of a zip are cut in one block, so the block must not grow here. The case of the zip has enlarged it before
		// (blockOfExtents).
		if each, _, ok := p.Extents(s); ok && !p.wholeFiles && block <= math.MaxInt64/each {
			if common := block / gcd(block, each) * each; n == needCounts || common == block {
				return p.atExtentBlocks(s, common/each)
			}
		}
	case ops.Shuffled:
		if n <= needCounts {
			return down(max(n, needElements), block)
		}
	case ops.Zipped:
		if n < needPositions {
			block = p.blockOfExtents(s, block)
		}
		return p.divideZip(s, block, cutWithinFiles)
	case ops.Concatenated:
		if n <= needElements && !p.MayBeEndless(s.In[0]) {
			return each(s.In)
		}
	case ops.Repeated:
		if times, ok := p.g.InputInt(s.Node, "count"); n <= needElements && ok && times >= 0 {
			d := down(needElements, block)
			if d.splitCount >= defaultGroup || p.CostOfHead(s) > 0 || p.splitCount(s, block) <= d.splitCount {
				return d
			}
			// The step repeats few, cheap elements often. A cut after the repeat has more elements to divide.
		}
	case ops.Directed:
		stops := p.g.Attr(s.Node, "stop_on_empty_dataset").GetB() && !p.AllEndless(s.In[1:])
		if n <= needElements && !stops && p.MayBeEndless(s.In[0]) {
			return each(s.In[1:])
		}
	case ops.Batched, ops.Windowed:
		if size, ok := p.groupSize(s); ok && block <= math.MaxInt64/size {
			if n == needRows && s.Rule.Kind == ops.Batched && !p.DropsRemainder(s.Node) && p.rowsIndependent(s) {
				return down(needElements, 1)
			}
			return down(max(n, needCounts), block*size)
		}
	}
	if s.Rule.Kind == ops.Rebatched {
		if d, ok := p.divideRebatch(s, n, block, cutWithinFiles); ok {
			return d
		}
	}
	return edgeSet{Edges: []Edge{{at: s, block: block}}, splitCount: p.splitCount(s, block)}
}

// divideRebatch cuts upstream of a step that regroups the rows of batches, if these batches have one known
// size. A block of rows that is a multiple of both sizes ends where batches of both kinds end.
func (p *Planner) divideRebatch(s *graph.Step, n need, block int64, cutWithinFiles bool) (edgeSet, bool) {
	rows, ok := p.batchRows(s)
	under := s.In[0]
	for under.Rule.Kind == ops.PassThrough || (under.Rule.Kind == ops.OneToOne && p.Facts(under).Identity) {
		under = under.In[0]
	}
	if !ok || rows < 1 || under.Rule.Kind != ops.Batched || p.DropsRemainder(under.Node) || block > math.MaxInt64/rows {
		return edgeSet{}, false
	}
	size, ok := p.groupSize(under)
	if !ok || rows*block/gcd(rows*block, size) > math.MaxInt64/size {
		return edgeSet{}, false
	}
	common := rows * block / gcd(rows*block, size) * size
	if n == needPositions && common != rows*block {
		return edgeSet{}, false
	}
	return p.divide(under.In[0], max(n, needCounts), common, cutWithinFiles), true
}

// divideUpstreamOfFunction cuts upstream of a step whose function returns any number of elements for each input.
func (p *Planner) divideUpstreamOfFunction(s *graph.Step, block int64, cutWithinFiles bool) edgeSet {
	if p.ReadsExtents(s) {
		d := atExtents(p.divide(s.In[0], needElements, 1, cutWithinFiles))
		if p.wholeFiles {
			return p.atFiles(d)
		}
		return d
	}
	reads := p.Facts(s).ReadsFiles
	if reads && cutWithinFiles {
		return edgeSet{Edges: []Edge{{at: s, block: block}}, splitCount: p.splitCount(s, block)}
	}
	need := needElements
	if s.Node.GetOp() == "UnbatchDataset" {
		need = needRows
	}
	d := p.divide(s.In[0], need, 1, cutWithinFiles)
	for i := range d.Edges {
		if reads && p.namesFiles(d.Edges[i].at) {
			d.Edges[i].files = true
		}
	}
	return d
}

// blockOfExtents returns the smallest multiple of a block of a step's elements that fills whole extents in each input that
// reads extents.
func (p *Planner) blockOfExtents(s *graph.Step, block int64) int64 {
	switch s.Rule.Kind {
	case ops.OneToOne, ops.PassThrough, ops.Cached, ops.Asserted:
		return p.blockOfExtents(s.In[0], block)
	case ops.Zipped:
		for _, in := range s.In {
			block = p.blockOfExtents(in, block)
		}
	case ops.Batched, ops.Windowed:
		if size, ok := p.groupSize(s); ok && block <= math.MaxInt64/size {
			return p.blockOfExtents(s.In[0], block*size) / size
		}
	case ops.PerElement:
		if each, _, ok := p.Extents(s); ok && block <= math.MaxInt64/each {
			return block / gcd(block, each) * each
		}
	}
	return block
}

// atExtentBlocks cuts at the list of extents that a step opens. The units of the edge are blocks of extents, which have the
// same number of records.
func (p *Planner) atExtentBlocks(s *graph.Step, block int64) edgeSet {
	extents := p.Cardinality(s.In[0])
	blocks, count := [][][2]int64(nil), extents
	if starts := p.ExtentBlocks(s); starts != nil {
		for i, first := range starts {
			blocks = append(blocks, [][2]int64{{first, append(starts, extents)[i+1]}})
		}
		count = int64(len(blocks))
	}
	return atExtents(edgeSet{Edges: []Edge{{at: s.In[0], block: block, units: blocks}}, splitCount: analysis.CeilDiv(count, block)})
}

// atFiles makes each file a split of a cut at a list of extents, whatever the order of the list.
func (p *Planner) atFiles(d edgeSet) edgeSet {
	for i, e := range d.Edges {
		names, ok := nodedef.Strings(p.g.Input(e.at.Node, "components"))
		if !ok {
			return d
		}
		files, at := [][][2]int64(nil), map[string]int{}
		for row, file := range names {
			if _, seen := at[string(file)]; !seen {
				at[string(file)] = len(files)
				files = append(files, nil)
			}
			rows := &files[at[string(file)]]
			*rows = append(*rows, [2]int64{int64(row), int64(row) + 1})
		}
		d.Edges[i].extents, d.Edges[i].units, d.splitCount = false, files, int64(len(files))
	}
	return d
}

// atExtents marks a cut at a list of extents: its elements are names of files, with offsets and numbers of records.
func atExtents(d edgeSet) edgeSet {
	for i := range d.Edges {
		d.Edges[i].files, d.Edges[i].extents = true, true
	}
	return d
}

// divideZip cuts every input at the same positions, each as far upstream as its own steps allow.
func (p *Planner) divideZip(s *graph.Step, block int64, cutWithinFiles bool) edgeSet {
	all := edgeSet{splitCount: unlimitedSplits}
	for _, in := range s.In {
		d := p.divide(in, needPositions, block, cutWithinFiles)
		all.Edges = append(all.Edges, d.Edges...)
		all.splitCount = min(all.splitCount, d.splitCount)
	}
	return all
}

// groupSize is the number of consecutive elements that a grouping step combines into one.
func (p *Planner) groupSize(s *graph.Step) (int64, bool) {
	if s.Rule.Kind == ops.Batched {
		size, ok := p.g.InputInt(s.Node, "batch_size")
		return size, ok && size > 0
	}
	size, ok1 := p.g.InputInt(s.Node, "size")
	shift, ok2 := p.g.InputInt(s.Node, "shift")
	stride, ok3 := p.g.InputInt(s.Node, "stride")
	return size, ok1 && ok2 && ok3 && size > 0 && shift == size && stride == 1
}

func (p *Planner) splitCount(s *graph.Step, block int64) int64 {
	n := p.Cardinality(s)
	if n < 0 {
		return unlimitedSplits
	}
	return analysis.CeilDiv(n, block)
}

// namesFiles reports whether the elements of a step are the strings of a constant, as lists of files are.
func (p *Planner) namesFiles(s *graph.Step) bool {
	types := p.g.OutputTypes(s.OutputOf)
	if len(types) != 1 || types[0] != tf.DataType_DT_STRING {
		return false
	}
	for ; len(s.In) > 0; s = s.In[0] {
		switch s.Rule.Kind {
		case ops.OneToOne, ops.PassThrough, ops.Shuffled, ops.Positional, ops.Repeated, ops.Cached, ops.Asserted:
		default:
			return false
		}
	}
	return s.Rule.Kind == ops.Source && s.Rule.Cost == 0
}

// exactDivision returns a division in which the streams produce the batches of a local run.
func (p *Planner) exactDivision(root *graph.Step, cutWithinFiles bool) Division {
	return Division{edgeSet: p.divide(root, needElements, 1, cutWithinFiles), Strategy: ExactBatches}.indexed()
}
