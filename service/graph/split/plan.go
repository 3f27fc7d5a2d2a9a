package split

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/analysis"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// Env is the part of the service's configuration that a plan may depend on.
type Env struct {
	// StaticWorkers is the length of the dispatcher's configured list of worker addresses, 0 without a list.
	// Only the sharding policies that tf.data service ties to that list (FILE, DATA, FILE_OR_DATA, HINT) read
	// it.
	StaticWorkers int
	// FileBytes is the size of the files that the dataset names, 0 if it is not known.
	FileBytes int64
	// FileRecords is about the number of records in these files, 0 if it is not known. It is an estimate from the sizes of
	// sampled records.
	FileRecords int64
	// Profile has the costs of the steps that an earlier job with this dataset measured, nil without one.
	Profile []*pecanv1.NodeMetrics
	// Division is S and G of a saved position, nil without one. The plan then divides the dataset in the same way.
	Division *pecanv1.Division
	// CacheStreams is S of a complete cache that the job can read, 0 without one.
	CacheStreams int
	// Carry allows a plan in which batches go on from one epoch to the next.
	Carry bool
}

// maxStreams bounds S where no list of workers sets it. The dispatcher keeps a few bytes for each stream of an epoch.
const maxStreams = 1 << 16

// MakePlan decides how a dataset is divided into streams. The result depends only on the graph, the options and
// Env. It never depends on the workers that are connected.
func MakePlan(g *graph.Graph, opts *pecanv1.JobOptions, env Env) (*pecanv1.Plan, error) {
	plan, err := keyedPlan(g, opts, env, false)
	if err != nil {
		return nil, err
	}
	if carried := planWithCarry(g, opts, env, plan); carried != nil {
		return carried, nil
	}
	return plan, nil
}

func keyedPlan(g *graph.Graph, opts *pecanv1.JobOptions, env Env, carry bool) (*pecanv1.Plan, error) {
	// If there are several streams, every step that can be keyed is keyed. A keyed step keeps no state, so the streams
	// share iterators. A plan with one stream keeps the random values of a local run.
	plan, err := makePlan(g, opts, env, true, carry)
	if err != nil || plan.Mode == pecanv1.Mode_MODE_DETERMINISTIC || len(plan.Keyed) == 0 || plan.NumStreams > 1 {
		return plan, err
	}
	return makePlan(g, opts, env, false, carry)
}

// makePlan makes a plan. With keyAll, it keys every step that can be keyed. With carry, it may remove an endless repeat
// upstream of a batch.
func makePlan(g *graph.Graph, opts *pecanv1.JobOptions, env Env, keyAll, carry bool) (*pecanv1.Plan, error) {
	p := NewPlanner(g)
	p.KeyAll, p.Carry = keyAll, carry
	plan := &pecanv1.Plan{
		Fingerprint: g.Fingerprint(), NumStreams: 1, BatchStrategy: pecanv1.BatchStrategy_BATCH_STRATEGY_EXACT, Repeat: 1,
		Cut: &pecanv1.Cut{Kind: pecanv1.Cut_NONE}, Components: g.Outputs(), AssertedCardinality: analysis.Unknown,
		WritesFiles: writesFiles(g),
	}
	if err := p.checkHint(opts); err != nil {
		return nil, err
	}
	if shardingOff(opts) {
		p.planUnsharded(plan, opts, env)
		return seal(plan), nil
	}
	root, isTree := g.Steps()
	if isTree {
		root, plan.Repeat = p.oneEpoch(root)
	}
	run, err := p.ChooseMode(root, opts)
	if err != nil {
		return nil, err
	}
	plan.Mode, plan.Determinism = run.Mode, run.Class
	p.KeySteps(root, run.Mode)
	plan.Keyed = slices.Sorted(maps.Keys(p.Keyed))
	p.reportRandomSteps(plan, root)
	if run.Downgrade != "" {
		addReason(plan, "The job runs in mode %s and not %s, as the user allows: %s.", modeWord(run.Mode), modeWord(opts.GetMode()), run.Downgrade)
	}
	if !isTree {
		plan.Cardinality = analysis.Unknown
		addReason(plan, "The dataset is not divided: its graph uses one dataset in two places, which tf.data does not write.")
		return seal(plan), nil
	}
	if plan.WritesFiles {
		addReason(plan, "A cache or a snapshot writes files, so the next epoch is not prefetched: it opens when the trainer requests it.")
	}
	if plan.Repeat != 1 {
		addReason(plan, "The outermost repeat was removed: each repetition is a separate epoch.")
	}
	plan.Cardinality = p.Cardinality(root)
	p.planAssert(plan, root)
	switch p.cacheUpstream(root) {
	case cacheInMemory:
		addReason(plan, "A cache in memory keeps each stream's share for one epoch. The next epoch fills it again.")
	case cacheInFile:
		addReason(plan, "If there are several streams, each writes its own cache files next to the given path (.stream-s-of-S).")
	}
	plan.AllOpen = p.MayBeEndless(root) || run.Mode == pecanv1.Mode_MODE_DETERMINISTIC
	if err := p.planCut(plan, root, opts, env); err != nil {
		return nil, err
	}
	p.setCarry(plan, root, opts, env)
	if plan.NumStreams > 1 && plan.GetCut().GetKind() != pecanv1.Cut_HINT {
		root = p.Arrange(root, plan)
	}
	p.planCache(plan, root, opts, env)
	return seal(plan), nil
}

// reportRandomSteps adds reasons about the steps that draw random values: which are keyed and which run
// serially.
func (p *Planner) reportRandomSteps(plan *pecanv1.Plan, root *graph.Step) {
	if len(plan.Keyed) > 0 {
		addReason(plan, "The random values of %s depend only on the seed and the element index, so parallel calls stay parallel.", strings.Join(plan.Keyed, ", "))
	}
	if serial := slices.Sorted(maps.Keys(p.SequencedSteps(root, plan.Mode))); len(serial) > 0 {
		addReason(plan, "%s processes one element at a time: parallel calls would draw random values, or count, in any order.", strings.Join(serial, ", "))
	}
}

// oneEpoch removes the outermost repeat, and returns the number of its repetitions. It leaves the repeat if variables
// decide how many elements exist.
func (p *Planner) oneEpoch(root *graph.Step) (*graph.Step, int64) {
	if p.VariablesDecideCount(root) {
		return root, 1
	}
	return p.RemoveOuterRepeat(root)
}

func modeWord(mode pecanv1.Mode) string {
	return strings.ToLower(strings.TrimPrefix(mode.String(), "MODE_"))
}

func shardingOff(opts *pecanv1.JobOptions) bool {
	return opts.GetMode() == pecanv1.Mode_MODE_OFF || opts.GetSharding() == pecanv1.Sharding_SHARDING_OFF
}

func addReason(plan *pecanv1.Plan, format string, args ...any) {
	plan.Reasons = append(plan.Reasons, fmt.Sprintf(format, args...))
}

// seal sets the plan's hash, which covers everything that affects elements.
func seal(plan *pecanv1.Plan) *pecanv1.Plan {
	plan.Hash, plan.OrderHash = PlanHash(plan), orderHash(plan)
	return plan
}

func (p *Planner) planUnsharded(plan *pecanv1.Plan, opts *pecanv1.JobOptions, env Env) {
	root, isTree := p.g.Steps()
	plan.NumStreams = 0
	plan.Cardinality = p.Cardinality(root)
	plan.AllOpen = p.MayBeEndless(root)
	plan.Mode, plan.Determinism = pecanv1.Mode_MODE_OFF, p.DeterminismClass(root, pecanv1.Mode_MODE_OFF)
	addReason(plan, "Sharding is off: every worker produces the whole dataset.")
	if isTree {
		p.planCache(plan, root, opts, env)
		p.planResume(plan, root, Division{})
	}
}

// planAssert records an asserted number of elements, which the client checks. One stream has fewer elements,
// so the check would fail there.
func (p *Planner) planAssert(plan *pecanv1.Plan, root *graph.Step) {
	plan.AssertedCardinality = p.rootAssert(root)
	promised := false
	root.Walk(func(s *graph.Step) { promised = promised || s.Rule.Kind == ops.Asserted })
	if promised && plan.AssertedCardinality == analysis.Unknown && plan.Cardinality >= 0 {
		// The assertion is upstream of the root. The steps after it pass its number of elements on to the
		// root.
		plan.AssertedCardinality = plan.Cardinality
	}
	if plan.AssertedCardinality != analysis.Unknown {
		addReason(plan, "assert_cardinality is checked in the trainer, where all streams meet.")
	}
}

// planCut chooses the cut, the batch strategy and S.
func (p *Planner) planCut(plan *pecanv1.Plan, root *graph.Step, opts *pecanv1.JobOptions, env Env) error {
	sharding := opts.GetSharding()
	if sharding == pecanv1.Sharding_SHARDING_HINT {
		p.planHint(plan, root, env)
		p.planResume(plan, root, Division{})
		return nil
	}
	static := 0
	switch sharding {
	case pecanv1.Sharding_SHARDING_FILE, pecanv1.Sharding_SHARDING_DATA, pecanv1.Sharding_SHARDING_FILE_OR_DATA:
		static = env.StaticWorkers
	}
	pushed := p.pushPositionsUpstream(root)
	d, err := p.chooseBySharding(pushed, sharding, env)
	if err != nil {
		return err
	}
	d = p.inParts(plan, pushed, opts, d)
	n := p.countStreams(pushed, d, static, plan, env)
	if n.streams <= 1 && static == 0 && sharding != pecanv1.Sharding_SHARDING_FILE {
		// The source is one file, or the head is expensive. Dividing the records of that file can still pay.
		if other := p.inParts(plan, pushed, opts, p.choose(pushed, true)); !sameEdges(other, d) {
			if within := p.countStreams(pushed, other, 0, plan, env); within.streams > 1 || n.most <= 1 && within.most > 1 {
				d, n = other, within
			}
		}
	}
	n = n.asked(p, d, opts, env)
	plan.Reasons, plan.StreamsWhy = append(plan.Reasons, n.reason), n.why
	if n.streams <= 1 {
		p.planResume(plan, root, Division{})
		return nil
	}
	p.writeCut(plan, d, n)
	if len(d.late) > 0 {
		pushed = p.Arrange(root, plan)
		if d, err = p.FindDivision(pushed, plan); err != nil {
			return err
		}
	}
	plan.Shuffled = p.shufflesAfter(pushed, d) && (plan.Group > 0 || n.streams <= mixedGroup && n.load.mixes(n.streams))
	p.planResume(plan, pushed, d)
	return nil
}

// CheckMode refuses a job whose dataset does not support the job's mode. It refuses the same jobs as MakePlan,
// but divides nothing.
func CheckMode(g *graph.Graph, opts *pecanv1.JobOptions) error {
	if shardingOff(opts) {
		return nil
	}
	p := NewPlanner(g)
	root, isTree := g.Steps()
	if isTree {
		root, _ = p.oneEpoch(root)
	}
	_, err := p.ChooseMode(root, opts)
	return err
}
