package graph

import (
	"math"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
)

// need is what the steps above ask of the division of a step's output.
type need int

const (
	// needRows: elements are batches whose rows count, not their borders.
	needRows need = iota
	// needElements: every element in exactly one stream.
	needElements
	// needCounts: besides, each stream but one has a multiple of the block in elements.
	needCounts
	// needPositions: besides, stream s has just the positions p with (p div block) mod S = s, in order.
	needPositions
)

// edge is a place of the cut: the output of a step, in blocks of so many elements.
type edge struct {
	at    *step
	block int64
	// files: the elements are names of files that a step above opens.
	files bool
}

// division is a cut: all its edges are cut together.
type division struct {
	edges []edge
	// splits is how many streams can have a share: blocks, elements or files.
	splits int64
}

const manySplits = math.MaxInt64

// divide puts the cut as low below a step as the need allows. A cut right at the step always satisfies every need.
// keepFiles forbids to cut by files.
func (p *planner) divide(s *step, n need, block int64, keepFiles bool) division {
	down := func(n need, block int64) division { return p.divide(s.in[0], n, block, keepFiles) }
	each := func(steps []*step) division {
		var all division
		for _, in := range steps {
			d := p.divide(in, needElements, 1, keepFiles)
			all.edges = append(all.edges, d.edges...)
			all.splits = max(all.splits, d.splits)
		}
		return all
	}
	switch s.rule.kind {
	case oneToOne:
		if n == needRows && !p.facts(s).identity {
			n = needElements
		}
		return down(n, block)
	case pass, cached, asserted:
		return down(n, block)
	case perElement:
		if n <= needElements && !p.facts(s).endless {
			return p.divideBelowFunction(s, block, keepFiles)
		}
	case shuffled:
		if n <= needCounts {
			return down(max(n, needElements), block)
		}
	case zipped:
		return p.divideZip(s, block, keepFiles)
	case concatenated:
		if n <= needElements && !p.endless(s.in[0]) {
			return each(s.in)
		}
	case repeated:
		if times, ok := p.g.inputInt(s.node, "count"); n <= needElements && ok && times >= 0 {
			d := down(needElements, block)
			if d.splits >= MaxStreams || p.headCost(s) > 0 || p.splits(s, block) <= d.splits {
				return d
			}
			// Few elements, many passes, and cheap to make: more is to be divided above the repeat.
		}
	case directed:
		stops := p.g.attr(s.node, "stop_on_empty_dataset").GetB() && !p.allEndless(s.in[1:])
		if n <= needElements && !stops && p.endless(s.in[0]) {
			return each(s.in[1:])
		}
	case batched, windowed:
		if size, ok := p.groupSize(s); ok && block <= math.MaxInt64/size {
			if n == needRows && s.rule.kind == batched && !p.drops(s.node) && p.rowsStandAlone(s) {
				return down(needElements, 1)
			}
			return down(max(n, needCounts), block*size)
		}
	}
	if s.rule.kind == rebatched {
		if d, ok := p.divideRebatch(s, n, block, keepFiles); ok {
			return d
		}
	}
	return division{edges: []edge{{at: s, block: block}}, splits: p.splits(s, block)}
}

// divideRebatch goes below a step that regroups the rows of batches, when these are of one known size: blocks of rows
// that both sizes divide keep the borders of either.
func (p *planner) divideRebatch(s *step, n need, block int64, keepFiles bool) (division, bool) {
	rows, ok := p.batchRows(s)
	under := s.in[0]
	for under.rule.kind == pass || (under.rule.kind == oneToOne && p.facts(under).identity) {
		under = under.in[0]
	}
	if !ok || rows < 1 || under.rule.kind != batched || p.drops(under.node) || block > math.MaxInt64/rows {
		return division{}, false
	}
	size, ok := p.groupSize(under)
	if !ok || rows*block/gcd(rows*block, size) > math.MaxInt64/size {
		return division{}, false
	}
	common := rows * block / gcd(rows*block, size) * size
	if n == needPositions && common != rows*block {
		return division{}, false
	}
	return p.divide(under.in[0], max(n, needCounts), common, keepFiles), true
}

// divideBelowFunction goes below a step whose function makes any number of elements of one.
func (p *planner) divideBelowFunction(s *step, block int64, keepFiles bool) division {
	reads := p.facts(s).reads
	if reads && keepFiles {
		return division{edges: []edge{{at: s, block: block}}, splits: p.splits(s, block)}
	}
	need := needElements
	if s.node.GetOp() == "UnbatchDataset" {
		need = needRows
	}
	d := p.divide(s.in[0], need, 1, keepFiles)
	for i := range d.edges {
		if reads && p.namesFiles(d.edges[i].at) {
			d.edges[i].files = true
		}
	}
	return d
}

// divideZip cuts every input at the same positions, each as low as its own steps allow.
func (p *planner) divideZip(s *step, block int64, keepFiles bool) division {
	all := division{splits: manySplits}
	for _, in := range s.in {
		d := p.divide(in, needPositions, block, keepFiles)
		all.edges = append(all.edges, d.edges...)
		all.splits = min(all.splits, d.splits)
	}
	return all
}

// groupSize is how many consecutive elements a grouping step takes for one of its own.
func (p *planner) groupSize(s *step) (int64, bool) {
	if s.rule.kind == batched {
		size, ok := p.g.inputInt(s.node, "batch_size")
		return size, ok && size > 0
	}
	size, ok1 := p.g.inputInt(s.node, "size")
	shift, ok2 := p.g.inputInt(s.node, "shift")
	stride, ok3 := p.g.inputInt(s.node, "stride")
	return size, ok1 && ok2 && ok3 && size > 0 && shift == size && stride == 1
}

func (p *planner) splits(s *step, block int64) int64 {
	n := p.cardinality(s)
	if n < 0 {
		return manySplits
	}
	return n/block + boolInt(n%block > 0)
}

// namesFiles tells whether a step gives the strings of a constant, as lists of files do.
func (p *planner) namesFiles(s *step) bool {
	types := p.g.outputTypes(s.like)
	if len(types) != 1 || types[0] != tf.DataType_DT_STRING {
		return false
	}
	for ; len(s.in) > 0; s = s.in[0] {
		switch s.rule.kind {
		case oneToOne, pass, shuffled, position, repeated, cached, asserted:
		default:
			return false
		}
	}
	return s.rule.kind == source && s.rule.cost == 0
}

// way is one possible plan: a division, and how batches stay whole above it.
type way struct {
	division
	batchWay batchWay
	// batch is the grouping step whose short last batches are joined, nil with exact batches.
	batch *step
	// cuts finds the edge at a step.
	cuts map[*step]int
}

func (w way) indexed() way {
	w.cuts = make(map[*step]int, len(w.edges))
	for i, e := range w.edges {
		w.cuts[e.at] = i
	}
	return w
}

type batchWay int

const (
	exact batchWay = iota
	remainder
	closing
)

// exactWay cuts so that the streams give the local batches as they are.
func (p *planner) exactWay(root *step, keepFiles bool) way {
	return way{division: p.divide(root, needElements, 1, keepFiles), batchWay: exact}.indexed()
}

// joinedWay cuts below a batch whose count of rows is not known beforehand; ok is false where there is no such batch or
// its remainders could not travel.
func (p *planner) joinedWay(root *step, keepFiles bool) (w way, ok bool) {
	w.batchWay = remainder
	s := root
	for ; s.rule.kind != batched && s.rule.kind != rebatched; s = s.in[0] {
		switch s.rule.kind {
		case pass, asserted:
		case oneToOne, perElement, shuffled, cached:
			if p.facts(s).endless || s.node.GetOp() == "SnapshotDatasetV2" {
				return way{}, false
			}
			w.batchWay = closing
		default:
			return way{}, false
		}
	}
	if !p.remaindersTravel(s) {
		return way{}, false
	}
	w.batch = s
	under := needElements
	if s.rule.kind == rebatched {
		under = needRows
	}
	w.division = p.divide(s.in[0], under, 1, keepFiles)
	return w.indexed(), true
}

// batchRows is the number of rows of a full batch of a grouping step.
func (p *planner) batchRows(s *step) (int64, bool) {
	if s.rule.kind == rebatched {
		sizes, ok := constInts(p.g.input(s.node, "batch_sizes"))
		if !ok || len(sizes) != 1 {
			return 0, false
		}
		return sizes[0], true
	}
	return p.g.inputInt(s.node, "batch_size")
}

// remaindersTravel tells whether rows of a short batch can be taken out of it, carried elsewhere and batched again
// without anything to see: no objects, and no padding that depends on the neighbours.
func (p *planner) remaindersTravel(s *step) bool {
	if rows, ok := p.batchRows(s); !ok || rows < 1 {
		return false
	}
	for _, t := range p.g.outputTypes(s.node) {
		if t == tf.DataType_DT_VARIANT || t == tf.DataType_DT_RESOURCE {
			return false
		}
	}
	return p.rowsStandAlone(s)
}

// rowsStandAlone tells whether a row is the same whichever rows are batched with it: padding to the longest of them is
// to be seen.
func (p *planner) rowsStandAlone(s *step) bool {
	switch s.node.GetOp() {
	case "BatchDataset", "BatchDatasetV2", "ParallelBatchDataset", "RebatchDatasetV2":
		return true
	case "PaddedBatchDataset", "PaddedBatchDatasetV2":
		at := p.g.inputIndex(s.node, "padded_shapes")
		if int(p.g.attr(s.node, "N").GetI()) != len(p.g.outputTypes(s.node)) {
			return false
		}
		for i := range p.g.outputTypes(s.node) {
			name, _, _ := splitInput(s.node.GetInput()[at+i])
			dims, ok := constInts(p.g.nodes[name])
			if !ok {
				return false
			}
			for _, d := range dims {
				if d < 0 {
					return false
				}
			}
		}
		return true
	}
	return false
}
