package graph

import (
	"strings"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
)

// functionFacts is what planning needs to know of a function and of everything it calls.
type functionFacts struct {
	ops int
	// heavy: decoding, parsing, images, linear algebra, loops; work that pays for running in several places.
	heavy bool
	// reads: opens record files.
	reads bool
	// endless: makes a dataset that may not end.
	endless bool
	// draws: uses a random op whose generator goes on from call to call, so that the order of calls tells.
	draws bool
	// parallel: makes a dataset whose elements are computed side by side.
	parallel bool
	// stubborn: does so in a way that cannot be put in order.
	stubborn bool
	// decides: what it draws may have a say in how many elements the dataset that it makes gives, or whether one is kept.
	decides bool
	// seeded: has seeds to set, of random ops or of datasets.
	seeded bool
	// wild: gives other values in each run whatever the seeds are.
	wild bool
	// caches: keeps the elements of a dataset that a function makes.
	caches bool
	// stateful: anything else that is more than a function of its arguments.
	stateful bool
	// identity: gives its arguments unchanged.
	identity bool
	// writes: changes a variable whose value means something.
	writes bool
	// lists: finds out while it runs which files there are.
	lists bool
}

func (f *functionFacts) add(o *functionFacts) {
	f.ops += o.ops
	f.heavy = f.heavy || o.heavy
	f.reads = f.reads || o.reads
	f.endless = f.endless || o.endless
	f.draws = f.draws || o.draws
	f.parallel = f.parallel || o.parallel
	f.stubborn = f.stubborn || o.stubborn
	f.decides = f.decides || o.decides
	f.seeded = f.seeded || o.seeded
	f.wild = f.wild || o.wild
	f.caches = f.caches || o.caches
	f.stateful = f.stateful || o.stateful
	f.writes = f.writes || o.writes
	f.lists = f.lists || o.lists
}

// varies tells whether two calls with equal arguments may differ.
func (f *functionFacts) varies() bool { return f.draws || f.wild || f.stateful || f.writes }

// pure tells whether calling the function is of no consequence but its result.
func (f *functionFacts) pure() bool {
	return !f.seeded && !f.wild && !f.caches && !f.stateful && !f.writes
}

// heavyOps are found by a part of their name.
var heavyOps = []string{
	"Decode", "Parse", "Resize", "Crop", "ReadFile", "Conv", "MatMul", "Einsum", "FFT", "Svd", "Cholesky", "While",
	"MapDefun", "AdjustHue", "AdjustSaturation", "AdjustContrast", "ExtractImagePatches", "Spectrogram", "Mfcc",
	"RGBToHSV", "HSVToRGB", "ImageProjective", "Unicode", "Deserialize", "LMDB", "Sql", "Load", "Pool",
}

// harmlessState are stateful ops that only read what came along, and the print of rejection_resample's warning.
var harmlessState = wordSet(`
	LookupTableFindV2 LookupTableSizeV2 LookupTableExportV2 ReadVariableOp ResourceGather ResourceGatherNd VariableShape
	VarIsInitializedOp Assert CheckNumerics CheckNumericsV2 If While Case StatefulPartitionedCall GuaranteeConst Empty
	DummySeedGenerator DummyMemoryCache AnonymousSeedGenerator AnonymousRandomSeedGenerator AnonymousMemoryCache
	ReduceDataset DatasetToSingleElement StatelessRandomGetAlg DisableCopyOnRead Print DeepCopy
	IsResourceHandleRefCounting DummyIterationCounter DeleteSeedGenerator DeleteRandomSeedGenerator DeleteMemoryCache
`)

var wildOps = wordSet(`Timestamp NonDeterministicInts`)

// generatorOps draw from a tf.random.Generator, whose state is a variable that every stream has a copy of. It goes on from
// call to call.
var generatorOps = wordSet(`
	StatefulRandomBinomial StatefulStandardNormal StatefulStandardNormalV2 StatefulTruncatedNormal StatefulUniform
	StatefulUniformFullInt StatefulUniformInt RngReadAndSkip RngSkip
`)

const manyOps = 40

// facts merges the facts of all functions that a step calls, and of the step's own op.
func (p *planner) facts(s *step) *functionFacts {
	if known, ok := p.steps[s.node]; ok {
		return known
	}
	merged := &functionFacts{}
	p.steps[s.node] = merged
	for _, name := range calledFunctions(s.node) {
		merged.add(p.functionFacts(name))
	}
	for _, c := range p.captures(s.node) {
		switch {
		case c.use.randomState():
			merged.draws, merged.seeded, merged.decides = true, true, true
		case c.use.counts():
			merged.writes, merged.decides = true, true
		}
	}
	if strings.Contains(s.node.GetOp(), "ParseExample") {
		merged.heavy = true
	}
	if names := calledFunctions(s.node); len(names) == 1 {
		merged.identity = p.functionFacts(names[0]).identity
	}
	return merged
}

func (p *planner) functionFacts(name string) *functionFacts {
	if f, ok := p.funcs[name]; ok {
		return f
	}
	def := p.g.functions[name]
	facts := &functionFacts{identity: isIdentity(def)}
	inside := map[string]*tf.NodeDef{}
	for _, n := range def.GetNodeDef() {
		inside[n.GetName()] = n
	}
	changes := false
	for _, n := range def.GetNodeDef() {
		own := &functionFacts{}
		p.addNode(own, n, inside)
		for _, called := range calledFunctions(n) {
			own.add(p.functionFacts(called))
		}
		isDataset, r := p.g.ops.isDataset(n.GetOp()), p.g.ruleOf(n)
		own.decides = own.varies() && !(isDataset && r.kind == oneToOne)
		changes = changes || isDataset && changesCount(&step{rule: r})
		facts.add(own)
	}
	facts.decides = facts.decides || changes && facts.varies()
	facts.heavy = facts.heavy || facts.ops > manyOps
	p.funcs[name] = facts
	return facts
}

func (p *planner) addNode(facts *functionFacts, n *tf.NodeDef, inside map[string]*tf.NodeDef) {
	op := n.GetOp()
	switch op {
	case "Const", "Identity", "NoOp", "IdentityN":
		return
	}
	facts.ops++
	for _, part := range heavyOps {
		facts.heavy = facts.heavy || strings.Contains(op, part)
	}
	def := p.g.ops.byName[op]
	isDataset := p.g.ops.isDataset(op)
	r := p.g.ruleOf(n)
	switch {
	case isDataset && r.kind == source && r.cost >= 2:
		facts.reads = true
	case isDataset && r.kind == repeated:
		times, ok := p.nestedInt(n, "count", inside)
		facts.endless = facts.endless || !ok || times < 0
	case isDataset && strings.HasPrefix(op, "RandomDataset"):
		facts.endless, facts.seeded = true, true
	}
	facts.parallel = facts.parallel || (isDataset && (sideBySide(op) || op == "PrefetchDataset"))
	facts.stubborn = facts.stubborn || isDataset && sideBySide(op) && serialOps[op].op == ""
	switch {
	case p.g.ops.isSeeded(op):
		facts.draws, facts.seeded = true, true
	case isDataset && (r.kind == shuffled || op == "SamplingDataset"):
		facts.seeded = true
	case wildOps[op]:
		facts.wild = true
	case generatorOps[op]:
		facts.draws, facts.seeded = true, true
	case op == "MatchingFiles", op == "MatchingFilesDataset":
		facts.lists = true
	case isDataset && r.kind == cached:
		facts.caches = true
	case writesVariable(op):
		// What that means depends on the variable, which the step knows.
	case def.GetIsStateful() && !isDataset && !harmlessState[op] && !isTable(op) && !fillsTable(op) && !strings.HasPrefix(op, "TensorArray") && !strings.HasPrefix(op, "Stack"):
		facts.stateful = true
	}
}

// sideBySide tells whether a dataset op calls its function for several elements at once.
func sideBySide(op string) bool {
	return strings.Contains(op, "Parallel") && !strings.Contains(op, "ParallelBatch") || strings.HasPrefix(op, "MapAndBatch")
}

// races tells whether the values that a step draws, or counts with a variable, depend on which of its calls came first.
func (p *planner) races(s *step) bool {
	f := p.facts(s)
	return (f.draws || f.writes) && (f.parallel || sideBySide(s.node.GetOp()))
}

// serialOps are the steps that do the same as parallel ones, one element at a time. Of the inputs they keep those up to
// lastArg; behind other_arguments comes one that is left out.
var serialOps = map[string]struct{ op, lastArg string }{
	"ParallelMapDataset":                {"MapDataset", "other_arguments"},
	"ParallelMapDatasetV2":              {"MapDataset", "other_arguments"},
	"ParallelFilterDataset":             {"FilterDataset", "other_arguments"},
	"ParallelInterleaveDatasetV2":       {"InterleaveDataset", "block_length"},
	"ParallelInterleaveDatasetV3":       {"InterleaveDataset", "block_length"},
	"ParallelInterleaveDatasetV4":       {"InterleaveDataset", "block_length"},
	"LegacyParallelInterleaveDatasetV2": {"InterleaveDataset", "block_length"},
}

// serialises tells whether a step can be made to work on one element after another.
func (p *planner) serialises(s *step) bool {
	op := s.node.GetOp()
	return (!sideBySide(op) || serialOps[op].op != "") && !p.facts(s).stubborn
}

// nestedInt reads a number that a dataset op inside a function takes from a Const beside it.
func (p *planner) nestedInt(n *tf.NodeDef, arg string, inside map[string]*tf.NodeDef) (int64, bool) {
	i := p.g.inputIndex(n, arg)
	if i < 0 || i >= len(n.GetInput()) {
		return 0, false
	}
	return constInt(inside[functionInputNode(n.GetInput()[i])])
}

// isIdentity tells whether a function gives exactly its arguments, in order.
func isIdentity(f *tf.FunctionDef) bool {
	args, outs := f.GetSignature().GetInputArg(), f.GetSignature().GetOutputArg()
	if len(args) != len(outs) {
		return false
	}
	from := map[string]string{}
	for _, n := range f.GetNodeDef() {
		if n.GetOp() != "Identity" || len(n.GetInput()) == 0 {
			return false
		}
		from[n.GetName()] = n.GetInput()[0]
	}
	for i, out := range outs {
		name := functionInputNode(f.GetRet()[out.GetName()])
		for hops := 0; hops <= len(from); hops++ {
			source, ok := from[name]
			if !ok {
				break
			}
			name = functionInputNode(source)
		}
		if name != args[i].GetName() {
			return false
		}
	}
	return true
}

// The weight of work, for choosing how often a head may run.
const (
	weightNone = iota
	weightLight
	weightHeavy
)

func (p *planner) weight(s *step) int {
	f := p.facts(s)
	switch {
	case f.heavy || f.reads:
		return weightHeavy
	case f.ops > 0:
		return weightLight
	}
	return weightNone
}

// headCost tells what it costs to run a step and all below it: 0 what an index gives, 1 light functions, 2 reading
// records, 3 real work.
func (p *planner) headCost(s *step) int {
	if known, ok := p.costs[s]; ok {
		return known
	}
	p.costs[s] = p.costOf(s)
	return p.costs[s]
}

func (p *planner) costOf(s *step) int {
	cost := s.rule.cost
	f := p.facts(s)
	switch {
	case f.reads && s.rule.kind == perElement && f.ops <= 8:
		cost = max(cost, 2)
	case f.heavy || f.reads:
		cost = max(cost, 3)
	case f.ops > 0:
		cost = max(cost, 1)
	}
	for _, in := range s.in {
		cost = max(cost, p.headCost(in))
	}
	for _, c := range s.captured {
		cost = max(cost, p.headCost(c))
	}
	return cost
}
