package analysis

import (
	"strings"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// harmlessState lists stateful ops that only read state from the graph itself, and Print, which
// rejection_resample uses for a warning.
var harmlessState = ops.Names(`
	LookupTableFindV2 LookupTableSizeV2 LookupTableExportV2 ReadVariableOp ResourceGather ResourceGatherNd VariableShape
	VarIsInitializedOp Assert CheckNumerics CheckNumericsV2 If While Case StatefulPartitionedCall GuaranteeConst Empty
	DummySeedGenerator DummyMemoryCache AnonymousSeedGenerator AnonymousRandomSeedGenerator AnonymousMemoryCache
	ReduceDataset DatasetToSingleElement StatelessRandomGetAlg DisableCopyOnRead Print DeepCopy
	IsResourceHandleRefCounting DummyIterationCounter DeleteSeedGenerator DeleteRandomSeedGenerator DeleteMemoryCache
`)

var unrepeatableOps = ops.Names(`Timestamp NonDeterministicInts`)

const manyOps = 40

// FunctionFacts merges the facts of a function and of all functions that it calls.
func (a *Analysis) FunctionFacts(name string) *Facts {
	if f, ok := a.funcs[name]; ok {
		return f
	}
	def := a.g.Function(name)
	facts := &Facts{Identity: nodedef.IsIdentity(def)}
	inside := map[string]*tf.NodeDef{}
	for _, n := range def.GetNodeDef() {
		inside[n.GetName()] = n
	}
	changes := false
	for _, n := range def.GetNodeDef() {
		own := &Facts{}
		a.addNode(own, n, inside)
		for _, called := range nodedef.CalledFunctions(n) {
			own.add(a.FunctionFacts(called))
		}
		isDataset, r := a.g.Ops().IsDataset(n.GetOp()), a.g.RuleOf(n)
		own.decidesCount = own.varies() && !(isDataset && r.Kind == ops.OneToOne)
		changes = changes || isDataset && ChangesCount(&graph.Step{Rule: r})
		facts.add(own)
	}
	facts.decidesCount = facts.decidesCount || changes && facts.varies()
	facts.expensive = facts.expensive || facts.ops > manyOps
	a.funcs[name] = facts
	return facts
}

// addNode adds what one node of a function does. An op without a rule here makes the function stateful if TensorFlow
// declares the op stateful.
func (a *Analysis) addNode(facts *Facts, n *tf.NodeDef, inside map[string]*tf.NodeDef) {
	op := n.GetOp()
	switch op {
	case "Const", "Identity", "NoOp", "IdentityN":
		return
	}
	facts.ops++
	for _, part := range expensiveOps {
		facts.expensive = facts.expensive || strings.Contains(op, part)
	}
	def := a.g.Ops().Def(op)
	isDataset := a.g.Ops().IsDataset(op)
	r := a.g.RuleOf(n)
	switch {
	case isDataset && r.Kind == ops.Source && r.Cost >= 2:
		facts.ReadsFiles = true
	case isDataset && r.Kind == ops.Repeated:
		times, ok := a.NestedInt(n, "count", inside)
		facts.Endless = facts.Endless || !ok || times < 0
	case isDataset && strings.HasPrefix(op, "RandomDataset"):
		facts.Endless, facts.Seeded = true, true
	}
	facts.parallel = facts.parallel || (isDataset && (ops.IsParallel(op) || op == "PrefetchDataset"))
	facts.unsequenceable = facts.unsequenceable || isDataset && ops.IsParallel(op) && ops.SequentialOps[op].Op == ""
	switch {
	case a.g.Ops().IsSeeded(op):
		facts.Random, facts.Seeded = true, true
	case isDataset && (r.Kind == ops.Shuffled || op == "SamplingDataset"):
		facts.Seeded = true
	case unrepeatableOps[op]:
		facts.Unrepeatable = true
	case ops.GeneratorOps[op]:
		facts.Random, facts.Seeded = true, true
	case op == "MatchingFiles", op == "MatchingFilesDataset":
		facts.ListsFiles = true
	case op == ignoreErrors:
		facts.IgnoresErrors = true
	case isDataset && r.Kind == ops.Cached:
		facts.CachesElements = true
	case ops.WritesVariable(op):
		// The effect depends on the variable. Facts decides it where the step captures that variable.
	case def.GetIsStateful() && !isDataset && !harmlessState[op] && !ops.IsTable(op) && !ops.FillsTable(op) && !strings.HasPrefix(op, "TensorArray") && !strings.HasPrefix(op, "Stack"):
		facts.Stateful = true
	}
}

// NestedInt reads an integer argument of a dataset op inside a function, if a Const of the same function
// provides it.
func (a *Analysis) NestedInt(n *tf.NodeDef, arg string, inside map[string]*tf.NodeDef) (int64, bool) {
	i := a.g.InputIndex(n, arg)
	if i < 0 || i >= len(n.GetInput()) {
		return 0, false
	}
	return nodedef.Int(inside[nodedef.InputNode(n.GetInput()[i])])
}
