package graph

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
)

// Env is what a plan may know of the service.
type Env struct {
	// StaticWorkers is the length of the dispatcher's configured list of worker addresses, 0 without one. Only the
	// sharding policies that tf.data service ties to that list (FILE, DATA, FILE_OR_DATA, HINT) look at it.
	StaticWorkers int
}

// MaxStreams bounds S where no list of workers sets it: every open stream has threads, buffers and a copy of the graph.
const MaxStreams = 16

// Analyze decides how a dataset is divided into streams. It is a pure function of the graph, the options and, for the
// static sharding policies, the length of the worker list: never of the workers that happen to be there.
func Analyze(g *Graph, opts *pecanv1.JobOptions, env Env) (*pecanv1.Plan, error) {
	p := newPlanner(g)
	plan := &pecanv1.Plan{
		Fingerprint: g.fingerprint, NumStreams: 1, BatchStrategy: pecanv1.BatchStrategy_BATCH_STRATEGY_EXACT, Repeat: 1,
		Cut: &pecanv1.Cut{Kind: pecanv1.Cut_NONE}, Components: g.Outputs(), AssertedCardinality: unknown,
		WritesFiles: g.writesFiles(),
	}
	if err := p.checkHint(opts); err != nil {
		return nil, err
	}
	if isOff(opts) {
		p.planOff(plan)
		return finish(plan), nil
	}
	root, isTree := g.tree()
	if isTree {
		root, plan.Repeat = p.onePass(root)
	}
	run, err := p.settle(root, opts)
	if err != nil {
		return nil, err
	}
	plan.Mode, plan.Determinism = run.mode, run.class
	p.key(root, run.mode)
	plan.Keyed = slices.Sorted(maps.Keys(p.keyed))
	p.sayOrder(plan, root)
	if run.why != "" {
		say(plan, "The job runs in mode %s and not %s, as the user allows: %s.", modeWord(run.mode), modeWord(opts.GetMode()), run.why)
	}
	if !isTree {
		plan.Cardinality = unknown
		say(plan, "The dataset is not divided: its graph uses one dataset in two places, which tf.data does not write.")
		return finish(plan), nil
	}
	if plan.WritesFiles {
		say(plan, "A cache or a snapshot writes files, so the next epoch is opened when it is asked for and not ahead of need.")
	}
	if plan.Repeat != 1 {
		say(plan, "The outermost repeat was taken off: each pass is an epoch of its own.")
	}
	plan.Cardinality = p.cardinality(root)
	p.planAssert(plan, root)
	switch p.cacheBelow(root) {
	case cacheInMemory:
		say(plan, "A cache in memory holds each stream's share for one epoch, and is filled anew in the next.")
	case cacheInFile:
		say(plan, "With several streams, each writes cache files of its own beside the path that was given (.stream-s-of-S).")
	}
	plan.AllOpen = p.endless(root) || run.mode == pecanv1.Mode_MODE_DETERMINISTIC
	if err := p.planCut(plan, root, opts, env); err != nil {
		return nil, err
	}
	if plan.NumStreams > 1 {
		root = p.sink(root)
	}
	p.planKeep(plan, root)
	return finish(plan), nil
}

// sayOrder tells what becomes of steps that draw random values.
func (p *planner) sayOrder(plan *pecanv1.Plan, root *step) {
	if len(plan.Keyed) > 0 {
		say(plan, "What %s draw(s) follows from the seed and the number of the element alone, so parallel calls stay parallel.", strings.Join(plan.Keyed, ", "))
	}
	if serial := slices.Sorted(maps.Keys(p.mended(root, plan.Mode))); len(serial) > 0 {
		say(plan, "%s work(s) on one element at a time: its calls would else draw, or count, in any order.", strings.Join(serial, ", "))
	}
}

// onePass takes the outermost repeat off, and tells how many passes it stood for.
func (p *planner) onePass(root *step) (*step, int64) {
	if p.variablesDecide(root) {
		return root, 1
	}
	return p.takeRepeatOff(root)
}

func modeWord(mode pecanv1.Mode) string {
	return strings.ToLower(strings.TrimPrefix(mode.String(), "MODE_"))
}

func isOff(opts *pecanv1.JobOptions) bool {
	return opts.GetMode() == pecanv1.Mode_MODE_OFF || opts.GetSharding() == pecanv1.Sharding_SHARDING_OFF
}

func say(plan *pecanv1.Plan, format string, args ...any) {
	plan.Reasons = append(plan.Reasons, fmt.Sprintf(format, args...))
}

// finish seals a plan: the hash covers all that affects elements.
func finish(plan *pecanv1.Plan) *pecanv1.Plan {
	plan.Hash = planHash(plan)
	return plan
}

func planHash(plan *pecanv1.Plan) string {
	bare := proto.Clone(plan).(*pecanv1.Plan)
	// How a stream goes on after a failure changes no element, and neither does what is kept. In which order the steps run is decided
	// from epoch to epoch, of one plan.
	bare.Hash, bare.Reasons, bare.Resume, bare.Cache, bare.Order = "", nil, nil, nil, nil
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(bare)
	if err != nil {
		// Only invalid UTF-8 could fail here, and Unmarshal has refused that.
		raw = []byte(err.Error())
	}
	sum := sha256.Sum256(append([]byte("pecan plan 1\n"), raw...))
	return hex.EncodeToString(sum[:])
}

func (p *planner) planOff(plan *pecanv1.Plan) {
	root, isTree := p.g.tree()
	plan.NumStreams = 0
	plan.Cardinality = p.cardinality(root)
	plan.AllOpen = p.endless(root)
	plan.Mode, plan.Determinism = pecanv1.Mode_MODE_OFF, worst(p.flaws(root, pecanv1.Mode_MODE_OFF))
	say(plan, "Sharding is off: every worker gives the whole dataset.")
	if p.marks(root) > 0 {
		say(plan, "cache() does nothing here: every worker would keep the whole dataset.")
	}
	if isTree {
		p.planResume(plan, root, way{})
	}
}

// planAssert keeps a promised number of elements for the client to check: a stream's share has fewer and would fail.
func (p *planner) planAssert(plan *pecanv1.Plan, root *step) {
	plan.AssertedCardinality = p.rootAssert(root)
	promised := false
	root.walk(func(s *step) { promised = promised || s.rule.kind == asserted })
	if promised && plan.AssertedCardinality == unknown && plan.Cardinality >= 0 {
		// The promise stands deeper, and the steps above it carry it to the root.
		plan.AssertedCardinality = plan.Cardinality
	}
	if plan.AssertedCardinality != unknown {
		say(plan, "assert_cardinality is checked in the trainer, where all streams meet.")
	}
}

// planCut chooses the cut, the batch way and S.
func (p *planner) planCut(plan *pecanv1.Plan, root *step, opts *pecanv1.JobOptions, env Env) error {
	sharding := opts.GetSharding()
	if sharding == pecanv1.Sharding_SHARDING_HINT {
		p.planHint(plan, root, env)
		p.planResume(plan, root, way{})
		return nil
	}
	static := 0
	switch sharding {
	case pecanv1.Sharding_SHARDING_FILE, pecanv1.Sharding_SHARDING_DATA, pecanv1.Sharding_SHARDING_FILE_OR_DATA:
		static = env.StaticWorkers
	}
	sunk := p.sink(root)
	w, err := p.chooseBySharding(sunk, sharding, env)
	if err != nil {
		return err
	}
	streams, why := p.streams(sunk, w, static)
	if streams <= 1 && static == 0 && sharding != pecanv1.Sharding_SHARDING_FILE {
		// One file, or a costly head: the records of that file may still be worth dividing.
		if other := p.choose(sunk, true); !sameEdges(other, w) {
			if n, otherWhy := p.streams(sunk, other, 0); n > 1 {
				w, streams, why = other, n, otherWhy
			}
		}
	}
	plan.Reasons = append(plan.Reasons, why...)
	if streams <= 1 {
		p.planResume(plan, root, way{})
		return nil
	}
	p.writeCut(plan, w, streams)
	p.planResume(plan, sunk, w)
	return nil
}

func sameEdges(a, b way) bool {
	if a.batchWay != b.batchWay || len(a.edges) != len(b.edges) {
		return false
	}
	for i := range a.edges {
		if a.edges[i].at.node != b.edges[i].at.node || a.edges[i].block != b.edges[i].block {
			return false
		}
	}
	return true
}

func (p *planner) writeCut(plan *pecanv1.Plan, w way, streams int64) {
	plan.NumStreams = int32(streams)
	plan.Cut.Kind = pecanv1.Cut_ELEMENTS
	plan.Cut.Block = 1
	files := true
	for _, e := range w.edges {
		plan.Cut.Edges = append(plan.Cut.Edges, e.at.node.GetName())
		plan.Cut.Block = max(plan.Cut.Block, e.block)
		files = files && e.files
	}
	switch {
	case files:
		plan.Cut.Kind = pecanv1.Cut_FILES
	case plan.Cut.Block > 1:
		plan.Cut.Kind = pecanv1.Cut_BLOCKS
	}
	if w.batch == nil {
		return
	}
	plan.BatchStrategy = pecanv1.BatchStrategy_BATCH_STRATEGY_REMAINDER
	if w.batchWay == closing {
		plan.BatchStrategy = pecanv1.BatchStrategy_BATCH_STRATEGY_CLOSING
	}
	plan.BatchRows, _ = p.batchRows(w.batch)
	plan.DropRemainder = p.drops(w.batch.node)
	say(plan, "How many elements reach %s is not known beforehand: the streams send full batches, and their short last ones are joined.", w.batch.node.GetName())
}

// chooseBySharding picks the way that a sharding policy asks for.
func (p *planner) chooseBySharding(root *step, sharding pecanv1.Sharding, env Env) (way, error) {
	switch sharding {
	case pecanv1.Sharding_SHARDING_FILE:
		w, files := p.fileWay(root)
		switch {
		case files == 0:
			return way{}, reason.New(reason.ShardingSource,
				"sharding FILE needs a dataset that reads files named by a list (list_files, TFRecordDataset, interleave over names), this one has no such source: use DATA or DYNAMIC")
		case files < int64(env.StaticWorkers):
			return way{}, reason.New(reason.ShardingFiles,
				"sharding FILE needs at least one file for each of the %d workers of the dispatcher's list (--worker-addresses), the dataset has %d: use DATA or FILE_OR_DATA, write more files, or list fewer workers", env.StaticWorkers, files)
		}
		return w, nil
	case pecanv1.Sharding_SHARDING_FILE_OR_DATA:
		if w, files := p.fileWay(root); files > 0 && files >= int64(env.StaticWorkers) {
			return w, nil
		}
		return p.choose(root, true), nil
	case pecanv1.Sharding_SHARDING_DATA:
		return p.choose(root, true), nil
	}
	return p.choose(root, false), nil
}

// fileWay gives the best way that cuts by files, or the best that is correct where files cannot be cut, and how many
// files there are; 0 means that the dataset names no files.
func (p *planner) fileWay(root *step) (way, int64) {
	candidates := []way{p.exactWay(root, false)}
	if w, ok := p.joinedWay(root, false); ok {
		candidates = append(candidates, w)
	}
	for _, w := range candidates {
		all := true
		for _, e := range w.edges {
			all = all && e.files
		}
		if all {
			return w, w.splits
		}
	}
	files := int64(0)
	root.walk(func(s *step) {
		if s.rule.kind == perElement && p.facts(s).reads && p.namesFiles(s.in[0]) {
			files = max(files, p.splits(s.in[0], 1))
		}
	})
	return p.choose(root, false), files
}

// choose takes the exact way when its head is cheap, else the cheaper one.
func (p *planner) choose(root *step, keepFiles bool) way {
	best := p.exactWay(root, keepFiles)
	if p.wayCost(best) == 0 && p.sameInAllStreams(best) {
		return best
	}
	if w, ok := p.joinedWay(root, keepFiles); ok {
		if p.wayCost(w) < p.wayCost(best) || !p.sameInAllStreams(best) {
			return w
		}
	}
	return best
}

func (p *planner) wayCost(w way) int {
	cost := 0
	for _, e := range w.edges {
		cost = max(cost, p.headCost(e.at))
	}
	return cost
}
