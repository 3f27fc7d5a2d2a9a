package graph

import (
	"fmt"
	"sort"
	"strings"

	"github.com/pecan-ml/pecan/proto/reason"
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// verdict is why an op is refused; the zero value lets it pass.
type verdict struct {
	reason reason.Reason
	text   string
}

const (
	saysPython = "it names a Python function of the trainer's process, which no worker has. Three ways out: write the step " +
		"with TensorFlow ops; move it after distribute(), where it runs in the trainer; or store its results once " +
		"(dataset.save or TFRecord files) and read these. (tf.data's debug mode makes Python functions of all steps)"
	saysState = "it keeps state in the trainer's process, which a worker would not see. Take it out of the pipeline, or " +
		"move it after distribute()"
	saysWrites = "it changes state while elements are made, and every worker would change a copy of its own. Compute the " +
		"value from the element, or move the step after distribute()"
	saysPrint  = "it would print on a worker, out of your sight. Take it out, or move it after distribute()"
	saysEffect = "it acts on files, the network or devices of the worker. Take it out of the pipeline; an administrator " +
		"may allow the op by name"
	saysGathers = "it puts elements of several calls together in a queue that it finds by name, and on a worker these may be calls of other " +
		"streams, jobs and datasets. Use dataset.batch(), or move the step after distribute()"
	saysTwice = "the dataset was distributed already. Apply distribute() once, behind all steps that workers shall run; what " +
		"comes after it stays in the trainer"
	saysNested = "a pipeline that reads from a data service cannot be distributed again. Distribute the pipeline that feeds " +
		"that service instead"
)

// refusedOps are refused wherever they stand, stateful or not.
var refusedOps = map[string]verdict{
	"PyFunc": {reason.PyFunction, saysPython}, "PyFuncStateless": {reason.PyFunction, saysPython},
	"EagerPyFunc": {reason.PyFunction, saysPython}, "GeneratorDataset": {reason.PyFunction, saysPython},

	"Print": {reason.ExternalState, saysPrint}, "PrintV2": {reason.ExternalState, saysPrint},

	"DatasetFromGraph": {reason.OpForbidden, saysEffect}, "RemoteCall": {reason.OpForbidden, saysEffect},
	"NonSerializableDataset":             {reason.ExternalState, saysState},
	"ExperimentalNonSerializableDataset": {reason.ExternalState, saysState},

	"Batch": {reason.ExternalState, saysGathers}, "BatchFunction": {reason.ExternalState, saysGathers},
	"Unbatch": {reason.ExternalState, saysGathers}, "UnbatchGrad": {reason.ExternalState, saysGathers},

	"LookupTableInsertV2": {reason.ExternalState, saysWrites}, "LookupTableRemoveV2": {reason.ExternalState, saysWrites},
}

// refusedPrefixes catch families of ops.
var refusedPrefixes = []struct {
	prefix string
	verdict
}{
	{"DataServiceDataset", verdict{reason.Unsupported, saysNested}},
	{"Debug", verdict{reason.OpForbidden, saysEffect}},
	// They have no state, as TensorFlow sees it, and connect to whatever address the graph names.
	{"RegisterDataset", verdict{reason.OpForbidden, saysEffect}},
	{"ResourceApply", verdict{reason.ExternalState, saysWrites}},
	{"ResourceSparseApply", verdict{reason.ExternalState, saysWrites}},
}

// stateWords mark stateful ops that hold state of their own between calls.
var stateWords = []string{
	"Queue", "Iterator", "Reader", "Stage", "Barrier", "Accumulator", "Session", "Mutex", "MapSize", "MapPeek", "MapClear",
	"MapIncomplete", "MapUnstage", "Variable", "TensorsMap", "StatsAggregator", "ThreadPool", "Token",
}

// allowedStateful are the stateful ops that a worker runs. Datasets, and random ops with seeds, are allowed besides.
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

// ownOps begins the names of the operations that distribute() leaves in the trainer's graph.
const ownOps = "Pecan"

// sinkDatasets are datasets that write.
var sinkDatasets = ops.Names(`DatasetToTFRecord ExperimentalDatasetToTFRecord SaveDataset SaveDatasetV2`)

// verdictOf decides on one known op. top tells whether the node stands outside of functions, where variables and tables
// get the values they had in the trainer.
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
		return verdict{reason.OpForbidden, saysEffect}
	case op == "_Retval" && top:
		return verdict{}
	case strings.HasPrefix(op, "_"):
		return verdict{reason.OpForbidden, "it is an internal op of TensorFlow's runtime. Send what dataset._as_serialized_graph() gives"}
	case !def.GetIsStateful() || g.ops.IsSeeded(op) || g.ops.IsDataset(op):
		return verdict{}
	case ops.WritesVariable(op) && !top:
		// The variable came along by value, and the stream changes a copy of its own.
		return verdict{}
	case ops.WritesVariable(op) && op != "AssignVariableOp":
		return verdict{reason.ExternalState, saysWrites}
	case allowedStateful[op]:
		return verdict{}
	}
	for _, word := range stateWords {
		if strings.Contains(op, word) {
			return verdict{reason.ExternalState, saysState}
		}
	}
	return verdict{reason.OpForbidden, saysEffect}
}

// checkOps refuses a dataset that was distributed already, unknown ops, all at once, and then the first op that a worker must not run.
func (g *Graph) checkOps() error {
	if err := g.EachNode(func(n *tf.NodeDef, function string) error {
		if strings.HasPrefix(n.GetOp(), ownOps) {
			return reason.New(reason.Unsupported, "node %s is a %s: %s", nodedef.Quote(nodedef.Path(function, n)), n.GetOp(), saysTwice)
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
		sort.Strings(list)
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

// warnsOfRejections tells the one print that is not the user's: rejection_resample warns with it, and nobody could take it
// out. It goes to the worker's log.
func warnsOfRejections(n *tf.NodeDef) bool {
	return n.GetOp() == "Print" && strings.HasPrefix(string(n.GetAttr()["message"].GetS()), "Proportion of examples rejected by sampler is high")
}
