package graph

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pecan-ml/pecan/proto/reason"
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// verdict is the reason why an op is refused. The zero value allows the op.
type verdict struct {
	reason reason.Reason
	text   string
}

const (
	textPython = "it refers to a Python function in the trainer's process, which no worker has. There are three solutions: write the step " +
		"with TensorFlow ops; move it after distribute(), where it runs in the trainer; or store its results once " +
		"(dataset.save or TFRecord files) and read these. (In tf.data's debug mode all steps are Python functions)"
	textState = "it keeps state in the trainer's process, which no worker sees. Remove it from the pipeline, or " +
		"move it after distribute()"
	textWrites = "it changes state while elements are computed, and every worker would change its own copy. Compute the " +
		"value from the element, or move the step after distribute()"
	textPrint  = "it would print on a worker, where you do not see it. Remove it, or move it after distribute()"
	textEffect = "it acts on files, the network or devices of the worker. Remove it from the pipeline; an administrator " +
		"may allow the op by name"
	textGathers = "it collects elements of several calls in a queue that it finds by name, and on a worker these may be calls from other " +
		"streams, jobs and datasets. Use dataset.batch(), or move the step after distribute()"
	textTwice = "the dataset was distributed already. Apply distribute() once, after all steps that workers must run; what " +
		"comes after it stays in the trainer"
	textNested = "a pipeline that reads from a data service cannot be distributed again. Distribute the pipeline that feeds " +
		"that service instead"
)

// refusedOps are always refused, stateful or not.
var refusedOps = map[string]verdict{
	"PyFunc": {reason.PyFunction, textPython}, "PyFuncStateless": {reason.PyFunction, textPython},
	"EagerPyFunc": {reason.PyFunction, textPython}, "GeneratorDataset": {reason.PyFunction, textPython},

	"Print": {reason.ExternalState, textPrint}, "PrintV2": {reason.ExternalState, textPrint},

	"DatasetFromGraph": {reason.OpForbidden, textEffect}, "RemoteCall": {reason.OpForbidden, textEffect},
	"NonSerializableDataset":             {reason.ExternalState, textState},
	"ExperimentalNonSerializableDataset": {reason.ExternalState, textState},

	"Batch": {reason.ExternalState, textGathers}, "BatchFunction": {reason.ExternalState, textGathers},
	"Unbatch": {reason.ExternalState, textGathers}, "UnbatchGrad": {reason.ExternalState, textGathers},

	"LookupTableInsertV2": {reason.ExternalState, textWrites}, "LookupTableRemoveV2": {reason.ExternalState, textWrites},
}

// refusedPrefixes refuse families of ops by the prefix of their names.
var refusedPrefixes = []struct {
	prefix string
	verdict
}{
	{"DataServiceDataset", verdict{reason.Unsupported, textNested}},
	{"Debug", verdict{reason.OpForbidden, textEffect}},
	// TensorFlow treats these ops as stateless, but they connect to an address that the graph contains.
	{"RegisterDataset", verdict{reason.OpForbidden, textEffect}},
	{"ResourceApply", verdict{reason.ExternalState, textWrites}},
	{"ResourceSparseApply", verdict{reason.ExternalState, textWrites}},
}

// statefulNameParts are parts of the names of stateful ops that keep state between calls.
var statefulNameParts = []string{
	"Queue", "Iterator", "Reader", "Stage", "Barrier", "Accumulator", "Session", "Mutex", "MapSize", "MapPeek", "MapClear",
	"MapIncomplete", "MapUnstage", "Variable", "TensorsMap", "StatsAggregator", "ThreadPool", "Token",
}

// allowedStateful are the stateful ops that a worker runs. Datasets and seeded random ops are also allowed.
var allowedStateful = ops.Names(`
	Assert CheckNumerics CheckNumericsV2 DeepCopy Empty GuaranteeConst ReduceDataset DatasetToSingleElement
	If While Case StatefulPartitionedCall _Retval StatelessRandomGetAlg
	VarHandleOp AssignVariableOp ReadVariableOp ResourceGather ResourceGatherNd VarIsInitializedOp VariableShape
	DisableCopyOnRead
	HashTable HashTableV2 MutableHashTableV2 MutableDenseHashTableV2 MutableHashTableOfTensorsV2 AnonymousHashTable
	LookupTableImportV2 LookupTableFindV2 LookupTableSizeV2 LookupTableExportV2 InitializeTableV2
	InitializeTableFromTextFileV2
	DummySeedGenerator AnonymousSeedGenerator AnonymousRandomSeedGenerator DummyMemoryCache AnonymousMemoryCache
	DummyIterationCounter DeleteSeedGenerator DeleteRandomSeedGenerator DeleteMemoryCache
	TensorArrayV3 TensorArrayReadV3 TensorArrayWriteV3 TensorArrayGatherV3 TensorArrayScatterV3 TensorArrayConcatV3
	TensorArraySplitV3 TensorArraySizeV3 TensorArrayCloseV3 StackV2 StackPushV2 StackPopV2 StackCloseV2
	Timestamp NonDeterministicInts StatefulRandomBinomial StatefulStandardNormal StatefulStandardNormalV2
	StatefulTruncatedNormal StatefulUniform StatefulUniformFullInt StatefulUniformInt RngReadAndSkip RngSkip
	IsResourceHandleRefCounting
`)

// ownOps is the prefix of the names of the ops that distribute() adds to the trainer's graph.
const ownOps = "Pecan"

// sinkDatasets are datasets that write files.
var sinkDatasets = ops.Names(`DatasetToTFRecord ExperimentalDatasetToTFRecord SaveDataset SaveDatasetV2`)

// verdictOf decides about one known op. top is true for a node outside of functions. There, variables and
// tables get the values that they had in the trainer.
func (g *Graph) verdictOf(op string, top bool) verdict {
	for _, allowed := range g.limits.AllowOps {
		if allowed == op {
			return verdict{}
		}
	}
	if v, ok := refusedOps[op]; ok {
		return v
	}
	for _, family := range refusedPrefixes {
		if strings.HasPrefix(op, family.prefix) {
			return family.verdict
		}
	}
	def := g.ops.Def(op)
	switch {
	case sinkDatasets[op]:
		return verdict{reason.OpForbidden, textEffect}
	case op == "_Retval" && top:
		return verdict{}
	case strings.HasPrefix(op, "_"):
		return verdict{reason.OpForbidden, "it is an internal op of TensorFlow's runtime. Send the result of dataset._as_serialized_graph()"}
	case !def.GetIsStateful() || g.ops.IsSeeded(op) || g.ops.IsDataset(op):
		return verdict{}
	case ops.WritesVariable(op) && !top:
		// The graph contains the value of the variable, and each stream changes its own copy.
		return verdict{}
	case ops.WritesVariable(op) && op != "AssignVariableOp":
		return verdict{reason.ExternalState, textWrites}
	case allowedStateful[op]:
		return verdict{}
	}
	for _, word := range statefulNameParts {
		if strings.Contains(op, word) {
			return verdict{reason.ExternalState, textState}
		}
	}
	return verdict{reason.OpForbidden, textEffect}
}

// checkOps refuses a dataset that is already distributed, then all unknown ops together, then the first op
// that a worker must not run.
func (g *Graph) checkOps() error {
	if err := g.EachNode(func(n *tf.NodeDef, function string) error {
		if strings.HasPrefix(n.GetOp(), ownOps) {
			return reason.New(reason.Unsupported, "node %s is a %s: %s", nodedef.Quote(nodedef.Path(function, n)), n.GetOp(), textTwice)
		}
		return nil
	}); err != nil {
		return err
	}
	unknown := map[string]string{}
	note := func(n *tf.NodeDef, path string) {
		op := n.GetOp()
		switch {
		case g.ops.Def(op) == nil:
			unknown[op] = fmt.Sprintf("%s (node %s)", nodedef.Quote(op), nodedef.Quote(path))
		case g.ops.NoCPU(op):
			unknown[op] = fmt.Sprintf("%s (node %s; it has no CPU kernel)", nodedef.Quote(op), nodedef.Quote(path))
		}
	}
	g.EachNode(func(n *tf.NodeDef, function string) error {
		note(n, nodedef.Path(function, n))
		return nil
	})
	if len(unknown) > 0 {
		list := make([]string, 0, len(unknown))
		for _, text := range unknown {
			list = append(list, text)
		}
		slices.Sort(list)
		if len(list) > 20 {
			list = append(list[:20], fmt.Sprintf("and %d more", len(unknown)-20))
		}
		return reason.New(reason.OpUnknown,
			"the workers (TensorFlow %s) do not have these ops: %s. Ops of custom libraries cannot be distributed: replace them, or move the steps after distribute()",
			g.ops.Release(), strings.Join(list, ", "))
	}
	return g.EachNode(func(n *tf.NodeDef, function string) error {
		v := g.verdictOf(n.GetOp(), function == "")
		if v.reason == "" || warnsOfRejections(n) {
			return nil
		}
		return reason.New(v.reason, "node %s of the dataset is a %s: %s", nodedef.Quote(nodedef.Path(function, n)), n.GetOp(), v.text)
	})
}

// warnsOfRejections reports whether a node is the print in rejection_resample, which users cannot remove. Its
// warning goes to the worker's log.
func warnsOfRejections(n *tf.NodeDef) bool {
	return n.GetOp() == "Print" && strings.HasPrefix(string(n.GetAttr()["message"].GetS()), "Proportion of examples rejected by sampler is high")
}
