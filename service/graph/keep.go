package graph

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/pecan-ml/pecan/proto/frame"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
)

// This file finds the step that pecan.cache() puts into a pipeline, decides whether what passes it can be kept, and divides a
// stream's graph there: what lies below, which the worker leaves out when it has the elements, and what lies above, which takes
// them from the worker. docs/design/0008-cache.md says why it is so.

// CacheMark is the name of the step: take(-1, name=CacheMark), which TensorFlow passes through.
const CacheMark = "pecan_cache"

// packBytes is up to what size elements travel in packs: one call for each costs more than a small element is worth.
const packBytes = 16 << 10

// maxPath is more than a path may have.
const maxPath = 4096

// isMark tells whether a node is a cached step.
func (g *Graph) isMark(n *tf.NodeDef) bool { return g.markOf(n) == CacheMark }

// planKeep decides what becomes of the cached step, once the cut is decided. root is the tree that was cut.
func (p *planner) planKeep(plan *pecanv1.Plan, root *step) {
	marks := p.marks(root)
	if marks == 0 {
		return
	}
	mark, why := p.keptStep(plan, root)
	if why != "" {
		say(plan, "cache() does nothing here: %s.", why)
		return
	}
	if marks > 1 {
		say(plan, "Of the %d cache() steps only %s, the last one, does something.", marks, mark.node.GetName())
	}
	types, shapes := p.g.outputTypes(mark.like), p.g.outputShapes(mark.like)
	plan.Cache = &pecanv1.CachePlan{Node: mark.node.GetName(), Seeded: p.drawsSeeds(mark), Packed: packs(types, shapes)}
	plan.Cache.Key = p.keepKey(plan)
	again := ""
	if plan.Cache.Seeded {
		again = ", and where the seed is the same, since steps below it draw from it"
	}
	say(plan, "What passes cache() (%s) is written in the first epoch and read in later ones, also by other jobs over the same dataset%s. "+
		"No epoch is opened ahead of need.", mark.node.GetName(), again)
}

// marks counts the cached steps of a dataset.
func (p *planner) marks(root *step) (n int) {
	root.walk(func(s *step) { n += int(boolInt(p.g.isMark(s.node))) })
	return n
}

// keptStep finds the step whose elements can be kept, or says why there is none.
func (p *planner) keptStep(plan *pecanv1.Plan, root *step) (mark *step, why string) {
	if plan.GetCut().GetKind() == pecanv1.Cut_HINT {
		return nil, "with sharding HINT the dataset is the user's to divide"
	}
	w := way{}
	if plan.GetNumStreams() > 1 {
		found, err := p.findWay(root, plan)
		if err != nil {
			return nil, "the cut was not found"
		}
		w = found
	}
	// The batch whose short last elements are joined has to lie above.
	below := w.batch == nil
	for s := root; ; s = s.in[0] {
		if _, cut := w.cuts[s]; cut {
			return nil, fmt.Sprintf("it stands below %s, where the dataset is divided, and every stream would keep the same elements. Move it behind that step", s.node.GetName())
		}
		if p.g.isMark(s.node) {
			if !below {
				return nil, fmt.Sprintf("it stands behind %s, and how many elements reach that is not known beforehand. Move it before that step", w.batch.node.GetName())
			}
			return s, p.whyNotKept(s, plan.GetMode())
		}
		if !readsOnce(s) || len(s.in) != 1 {
			return nil, fmt.Sprintf("above it stands %s, which may read it more than once, or not to its end. Move it behind that step", s.node.GetName())
		}
		below = below || s == w.batch
	}
}

// readsOnce tells whether a step reads its only input to the end, once.
func readsOnce(s *step) bool {
	switch s.rule.kind {
	case oneToOne, pass, perElement, batched, rebatched, windowed, cached, asserted:
		return true
	case shuffled:
		return s.node.GetOp() != "SnapshotDatasetV2"
	}
	return false
}

// whyNotKept says what keeps the elements of a step from being kept.
func (p *planner) whyNotKept(mark *step, mode pecanv1.Mode) string {
	for _, t := range p.g.outputTypes(mark.like) {
		if t != tf.DataType_DT_STRING && frame.Width(uint32(t)) == 0 {
			return fmt.Sprintf("its elements have a component of dtype %s, which cannot be written. Flatten ragged and sparse values before it", frame.DTypeName(uint32(t)))
		}
	}
	if p.endless(mark) {
		return "what lies below it never ends. Put repeat() behind it"
	}
	if worst(p.flaws(mark, mode)) == classC {
		return "what lies below it gives other elements in each run"
	}
	why := ""
	mark.walk(func(s *step) {
		f := p.facts(s)
		switch {
		case f.stateful || f.writes || f.wild:
			why = fmt.Sprintf("%s below it gives other values in each run", s.node.GetName())
		case f.lists || s.node.GetOp() == "MatchingFilesDataset":
			why = fmt.Sprintf("%s below it looks for files while it runs, and whether they changed would go unseen. Use list_files", s.node.GetName())
		}
	})
	if why == "" && p.namesRemoteFiles() {
		why = "the dataset names files by URL, and whether they changed would go unseen"
	}
	return why
}

func (p *planner) namesRemoteFiles() bool {
	remote := false
	_ = p.g.eachNode(func(n *tf.NodeDef, _ string) error {
		values, _ := constStrings(n)
		for _, v := range values {
			scheme, _, found := strings.Cut(string(v), "://")
			remote = remote || found && scheme != "" && !strings.ContainsAny(scheme, "/ ")
		}
		return nil
	})
	return remote
}

// drawsSeeds tells whether the elements of a step depend on seeds.
func (p *planner) drawsSeeds(mark *step) bool {
	draws := false
	mark.walk(func(s *step) {
		takes := p.g.inputIndex(s.node, "seed") >= 0 && p.g.inputIndex(s.node, "seed2") >= 0
		draws = draws || takes || p.facts(s).seeded
	})
	return draws
}

// packs tells whether elements are small and all of one shape.
func packs(types []tf.DataType, shapes []*tf.TensorShapeProto) bool {
	total := uint64(0)
	for i, t := range types {
		size := frame.Width(uint32(t))
		if size == 0 || i >= len(shapes) || shapes[i].GetUnknownRank() {
			return false
		}
		for _, dim := range shapes[i].GetDim() {
			if dim.GetSize() < 1 || dim.GetSize() > packBytes {
				return false
			}
			if size *= uint64(dim.GetSize()); size > packBytes {
				return false
			}
		}
		total += size
	}
	return total <= packBytes
}

// keepKey hashes all that decides which elements pass a stream's cached step, but the files they come from and the job's seed.
// Graphs that are written alike up to there have one key, whatever stands above; where seeds are drawn, which hang on names,
// the whole dataset is in it.
func (p *planner) keepKey(plan *pecanv1.Plan) string {
	h := newHasher(p.g)
	sum := sha256.New()
	writePart(sum, []byte("pecan cache 1"))
	writePart(sum, h.node(plan.GetCache().GetNode()))
	if plan.GetCache().GetSeeded() {
		writePart(sum, []byte(p.g.fingerprint))
		writePart(sum, []byte(plan.GetCache().GetNode()))
	}
	number := func(n int64) { writePart(sum, binary.BigEndian.AppendUint64(nil, uint64(n))) }
	number(int64(plan.GetNumStreams()))
	number(int64(plan.GetCut().GetKind()))
	number(plan.GetCut().GetBlock())
	for _, edge := range plan.GetCut().GetEdges() {
		writePart(sum, h.node(edge))
	}
	order := int64(0)
	switch {
	case isOrdered(plan.GetMode()):
		order = 2
	case keepsOrder(plan.GetMode()):
		order = 1
	}
	number(order)
	number(boolInt(plan.GetCache().GetPacked()))
	return hex.EncodeToString(sum.Sum(nil))
}

// below finds the cached step of a plan under a step, and tells whether a cache of tf.data stands between them.
func (p *planner) below(top *step, plan *pecanv1.Plan, at place) (*step, place) {
	for s := top; ; s = s.in[0] {
		if s.node.GetName() == plan.GetCache().GetNode() {
			return s, at
		}
		at.cached = at.cached || s.rule.kind == cached
		if len(s.in) != 1 {
			return nil, at
		}
	}
}

// divideAtKept writes what lies below the plan's cached step as a graph of its own, and has the rest take its elements from
// the worker. top is the step whose graph is about to be written.
func (e *editor) divideAtKept(top *step, at place) error {
	mark, at := e.p.below(top, e.keep, at)
	if mark == nil {
		return nil
	}
	under := e.fork()
	// What is left out at the start is left out above: a segment has all elements.
	under.skips = nil
	graphs, err := under.single(under.emit(mark, at), mark.node)
	if err != nil {
		return err
	}
	e.below = graphs.A
	e.names = mayBeFiles(graphs.A)
	types, shapes := e.g.outputTypes(mark.like), e.g.outputShapes(mark.like)
	e.stop = mark
	if !e.keep.GetCache().GetPacked() {
		e.stopOutput = e.skip(mark, e.addPull(types, shapes, e.at.KeptSource))
		return nil
	}
	packs := make([]*tf.TensorShapeProto, len(shapes))
	for i, s := range shapes {
		packs[i] = &tf.TensorShapeProto{Dim: append([]*tf.TensorShapeProto_Dim{{Size: -1}}, s.GetDim()...)}
	}
	e.stopOutput = e.skip(mark, e.add(&tf.NodeDef{Name: pullPrefix + "/elements", Op: "UnbatchDataset",
		Input: []string{e.addPull(types, packs, e.at.KeptSource)}, Attr: datasetAttrs(types, shapes)}))
	return nil
}

// mayBeFiles gives the strings of a serialised graph that may be names of files, sorted.
func mayBeFiles(serialised []byte) []string {
	var def tf.GraphDef
	if proto.Unmarshal(serialised, &def) != nil {
		return nil
	}
	found := map[string]bool{}
	for _, n := range def.GetNode() {
		takeFileNames(n, found)
	}
	for _, f := range def.GetLibrary().GetFunction() {
		for _, n := range f.GetNodeDef() {
			takeFileNames(n, found)
		}
	}
	return sortedNames(found)
}
