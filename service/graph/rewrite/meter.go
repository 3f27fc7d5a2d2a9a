package rewrite

import (
	"fmt"
	"strings"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/split"
)

// tf.data's model of a running iterator forgets a node when its iterator goes, and most steps drop the iterators below them
// when those have come to their end: at the end of a stream nothing is left of what was below a batch or a filter. So what a
// step gives is counted by a meter above it (a stock op that passes elements on) wherever that can happen. Meters count in a
// resource that outlives them, exactly, also over repeats and steps that stop early. One costs 0.5 to 1 µs per element; where
// the model keeps a node to the end there is none.
//
// The resource is dear to some parallel steps: where they see it, each has a thread that wakes up with every element, 25 µs of CPU. So
// it is kept below them where that is possible: what gives an element for each that it gets needs no meter above a counted step.

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

// wakesPerElement are ops that pay for a resource of meters above them. tf.data makes parallel maps of plain ones.
var wakesPerElement = map[string]bool{
	"MapDataset": true, "ParallelMapDataset": true, "ParallelMapDatasetV2": true, "ParallelBatchDataset": true, "ParseExampleDatasetV2": true,
}

// oneForOne are ops that give, in the end, an element for each that they get.
var oneForOne = map[string]bool{
	"MapDataset": true, "ParallelMapDataset": true, "ParallelMapDatasetV2": true, "PrefetchDataset": true, "OptionsDataset": true,
	"ParseExampleDatasetV2": true, "ShuffleDataset": true, "ShuffleDatasetV2": true, "ShuffleDatasetV3": true,
	"SetStatsAggregatorDataset": true, "BytesProducedStatsDataset": true,
}

// OneForOne tells whether a step of that op has given as many elements as its first input when the input has ended.
func OneForOne(op string) bool { return oneForOne[op] }

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
	m := &metering{e: e, of: map[string]string{}, wakes: map[string]bool{}, counts: map[string]bool{}, resourceBelow: true}
	m.planMeters(root, false)
	root = m.addMeters(root, false)
	if !m.resourceBelow && m.meters > 0 || m.resourceBelow && m.counts[root] {
		return m.passResource(root)
	}
	return root
}

// metering remembers which nodes were seen, and what stands for their output.
type metering struct {
	e  *editor
	of map[string]string
	// meters is how many were put in.
	meters int
	// wakes are nodes with a step in or below them that pays for a resource above it; counts those with meters below.
	wakes, counts map[string]bool
	// resourceBelow: no meter is needed above such a step, so that the resource stays below all of them.
	resourceBelow bool
	// resources numbers the nodes that hand the resource down.
	resources int
}

// inputs are the places of a node's inputs that are datasets, and the nodes they come from.
func (m *metering) inputs(n *tf.NodeDef) (places []int, from []string) {
	for i, input := range n.GetInput() {
		name, _, control := nodedef.SplitInput(input)
		if !control && strings.Contains(m.e.Node(name).GetOp(), "Dataset") {
			places, from = append(places, i), append(from, name)
		}
	}
	return places, from
}

// planMeters finds out where the resource can be, before anything is changed. It tells whether what a node gives is counted when the model
// has forgotten the node: by a meter, or by what a step below it gives.
func (m *metering) planMeters(name string, vanishes bool) (counted bool) {
	n := m.e.Node(name)
	_, inputs := m.inputs(n)
	m.wakes[name] = wakesPerElement[n.GetOp()]
	below := false
	for i, from := range inputs {
		known := m.planMeters(from, vanishes || i > 0 || !keepsInput[n.GetOp()])
		below = below || i == 0 && known
		m.wakes[name] = m.wakes[name] || m.wakes[from]
	}
	switch {
	case n.GetOp() == "IgnoreErrorsDataset":
		// Steps below it give fewer elements than they get.
		m.resourceBelow = false
	case m.e.countedAs(n) == "" || !vanishes && modelled[n.GetOp()]:
	case !m.wakes[name]:
		return true
	case !below || !oneForOne[n.GetOp()]:
		m.resourceBelow = false
	}
	// What numbers the elements of its first input gives as many.
	return below && (oneForOne[n.GetOp()] || strings.HasPrefix(name, indexPrefix))
}

// passResource hands what meters count in down to a node and all below it.
func (m *metering) passResource(name string) string {
	e, top := m.e, m.e.Node(name)
	handle := e.Add(&tf.NodeDef{Name: "pecan_meters", Op: "StatsAggregatorHandle",
		Attr: map[string]*tf.AttrValue{"container": nodedef.BytesAttr(""), "shared_name": nodedef.BytesAttr(e.at.Meters)}})
	own := "pecan_metered"
	if m.resources > 0 {
		own = fmt.Sprintf("pecan_metered_%d", m.resources)
	}
	m.resources++
	return e.Add(&tf.NodeDef{Name: own, Op: "SetStatsAggregatorDataset",
		Input: []string{name, handle, e.Add(nodedef.StringConst("pecan_meters/tag", "")), e.Add(nodedef.StringConst("pecan_meters/prefix", "pecan"))},
		Attr:  nodedef.DatasetAttrs(e.g.OutputTypes(top), e.g.OutputShapes(top))})
}

// addMeters meters a node and all below it. vanishes tells whether the model may forget the node.
func (m *metering) addMeters(name string, vanishes bool) string {
	if known, ok := m.of[name]; ok {
		return known
	}
	n := m.e.Node(name)
	m.of[name] = name
	places, inputs := m.inputs(n)
	for i, from := range inputs {
		// What a function captures is read once per call.
		kept := !vanishes && places[i] == 0 && keepsInput[n.GetOp()]
		stands := m.addMeters(from, !kept)
		if m.counts[stands] {
			if m.resourceBelow && m.wakes[name] && !m.wakes[from] {
				stands = m.passResource(stands)
			} else {
				m.counts[name] = true
			}
		}
		if stands != from {
			m.e.Edit(name).Input[places[i]] = stands
		}
	}
	if counted := m.e.countedAs(n); counted != "" && (vanishes || !modelled[n.GetOp()]) && !(m.resourceBelow && m.wakes[name]) {
		m.of[name] = m.e.addMeter(n, counted)
		m.counts[m.of[name]] = true
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
	return e.Has(split.CutPrefix+name+"/flatten") && !e.Has(split.CutPrefix+name+"/window")
}

func (e *editor) addMeter(n *tf.NodeDef, counted string) string {
	name := meterPrefix + counted
	return e.Add(&tf.NodeDef{Name: name, Op: "BytesProducedStatsDataset", Input: []string{n.GetName(), e.Add(nodedef.StringConst(name+"/tag", counted))},
		Attr: nodedef.DatasetAttrs(e.g.OutputTypes(n), e.g.OutputShapes(n))})
}

// ops are the ops of the registered graph's dataset nodes.
func (e *editor) ops() map[string]string {
	ops := map[string]string{}
	for _, n := range e.g.Order() {
		if strings.Contains(n.GetOp(), "Dataset") {
			ops[n.GetName()] = n.GetOp()
		}
	}
	return ops
}
