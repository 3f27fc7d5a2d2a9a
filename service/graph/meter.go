package graph

import (
	"strings"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
)

// tf.data's model of a running iterator forgets a node when its iterator goes, and most steps drop the iterators below them
// when those have come to their end: at the end of a stream nothing is left of what was below a batch or a filter. So what a
// step gives is counted by a meter above it (a stock op that passes elements on) wherever that can happen. Meters count in a
// resource that outlives them, exactly, also over repeats and steps that stop early. One costs 0.5 to 1 µs per element; where
// the model keeps a node to the end there is none.

// meterPrefix begins the names of meters; the name of the node that is counted follows.
const meterPrefix = "pecan_meter/"

// keepsInput are ops whose input stays in the model as long as they do.
var keepsInput = map[string]bool{
	"MapDataset": true, "ParallelMapDataset": true, "ParallelMapDatasetV2": true, "PrefetchDataset": true, "OptionsDataset": true,
	"ParseExampleDatasetV2": true,
}

// modelled are ops whose steps the model can be asked about: it has a node for each under the op's own name. Others get a
// meter in any case.
var modelled = map[string]bool{
	"MapDataset": true, "ParallelMapDataset": true, "ParallelMapDatasetV2": true, "PrefetchDataset": true, "ParseExampleDatasetV2": true,
	"RangeDataset": true, "TensorSliceDataset": true, "TFRecordDataset": true, "TFRecordDatasetV2": true, "FilterDataset": true,
	"FlatMapDataset": true, "InterleaveDataset": true, "ParallelInterleaveDatasetV4": true, "ShuffleDatasetV3": true, "ZipDataset": true,
	"BatchDatasetV2": true, "ParallelBatchDataset": true, "PaddedBatchDatasetV2": true, "UnbatchDataset": true,
}

// MeteredNode gives the node whose elements a meter counts, by the meter's name; "" for other nodes.
func MeteredNode(name string) string {
	if counted, ok := strings.CutPrefix(name, meterPrefix); ok {
		return counted
	}
	return ""
}

// meter puts meters below a root where they are needed, and gives the root to go on from.
func (e *editor) meter(root string) string {
	if e.at.Meters == "" {
		return root
	}
	m := &metering{e: e, of: map[string]string{}}
	root = m.below(root, false)
	if m.meters == 0 {
		return root
	}
	handle := e.add(&tf.NodeDef{Name: "pecan_meters", Op: "StatsAggregatorHandle",
		Attr: map[string]*tf.AttrValue{"container": bytesAttr(""), "shared_name": bytesAttr(e.at.Meters)}})
	top := e.node(root)
	return e.add(&tf.NodeDef{Name: "pecan_metered", Op: "SetStatsAggregatorDataset",
		Input: []string{root, handle, e.add(stringConst("pecan_meters/tag", "")), e.add(stringConst("pecan_meters/prefix", "pecan"))},
		Attr:  datasetAttrs(e.g.outputTypes(top), e.g.outputShapes(top))})
}

// metering remembers which nodes were seen, and what stands for their output.
type metering struct {
	e  *editor
	of map[string]string
	// meters is how many were put in.
	meters int
}

// below meters a node and all below it. vanishes tells whether the model may forget the node.
func (m *metering) below(name string, vanishes bool) string {
	if known, ok := m.of[name]; ok {
		return known
	}
	n := m.e.node(name)
	m.of[name] = name
	for i, input := range n.GetInput() {
		from, _, control := splitInput(input)
		if control || !strings.Contains(m.e.node(from).GetOp(), "Dataset") {
			continue
		}
		// What a function captures is read once per call.
		kept := !vanishes && i == 0 && keepsInput[n.GetOp()]
		if stands := m.below(from, !kept); stands != from {
			m.e.edit(name).Input[i] = stands
		}
	}
	if counted := m.e.countedAs(n); counted != "" && (vanishes || !modelled[n.GetOp()]) {
		m.of[name] = m.e.addMeter(n, counted)
		m.meters++
	}
	return m.of[name]
}

// countedAs gives the name under which a node's elements are counted: its own, or none for what has no figures. A range that
// is cut in blocks gives the blocks' first numbers, and the flattening of the blocks gives what the range does.
func (e *editor) countedAs(n *tf.NodeDef) string {
	name, original := n.GetName(), OriginalNode(n.GetName())
	switch {
	case e.cutInBlocks(name), n.GetOp() == "OptionsDataset":
		return ""
	case name == original, name == PullNode, strings.HasSuffix(name, "/shard"):
		return name
	case strings.HasSuffix(name, "/flatten"):
		if e.cutInBlocks(original) {
			return original
		}
		return name
	}
	return ""
}

// cutInBlocks tells whether a range gives the first numbers of blocks.
func (e *editor) cutInBlocks(name string) bool {
	_, flattened := e.nodes[cutPrefix+name+"/flatten"]
	_, windowed := e.nodes[cutPrefix+name+"/window"]
	return flattened && !windowed
}

func (e *editor) addMeter(n *tf.NodeDef, counted string) string {
	name := meterPrefix + counted
	return e.add(&tf.NodeDef{Name: name, Op: "BytesProducedStatsDataset", Input: []string{n.GetName(), e.add(stringConst(name+"/tag", counted))},
		Attr: datasetAttrs(e.g.outputTypes(n), e.g.outputShapes(n))})
}

func stringConst(name, value string) *tf.NodeDef {
	return constNode(name, &tf.TensorProto{Dtype: tf.DataType_DT_STRING, TensorShape: shapeOf(), StringVal: [][]byte{[]byte(value)}})
}

// ops are the ops of the registered graph's dataset nodes.
func (e *editor) ops() map[string]string {
	ops := map[string]string{}
	for _, n := range e.g.order {
		if strings.Contains(n.GetOp(), "Dataset") {
			ops[n.GetName()] = n.GetOp()
		}
	}
	return ops
}
