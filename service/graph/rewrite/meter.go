package rewrite

import (
	"fmt"
	"strings"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/split"
)

// tf.data's model of a running iterator forgets a node when the node's iterator is deleted. Most steps delete
// the iterators of their inputs at the end of the input. At the end of a stream the model has no node upstream
// of a batch or a filter. So Pecan adds a meter after each step that the model may forget: a stock op that
// returns its input and counts it. Meters count in a resource that outlives them. Their counts are exact, also
// with repeats and with steps that stop early. A meter costs 0.5 to 1 µs per element. A node that the model
// keeps to the end gets none.
//
// The resource makes some parallel steps expensive. A step upstream of the meter has a thread that wakes up for every
// element, which takes 25 µs of CPU. So the resource is upstream of these steps if possible. A step that returns one element
// for each input needs no meter if its input is counted.

// meterPrefix begins the names of meters. The name of the counted node follows.
const meterPrefix = "pecan_meter/"

// keepsInput are ops whose inputs stay in the model as long as the ops themselves.
var keepsInput = map[string]bool{
	"MapDataset": true, "ParallelMapDataset": true, "ParallelMapDatasetV2": true, "PrefetchDataset": true, "OptionsDataset": true,
	"ParseExampleDatasetV2": true,
}

// KeepsInput returns whether the first input of a step of an op stays in the model as long as the step itself. The ops of
// meters keep theirs too.
func KeepsInput(op string) bool {
	return keepsInput[op] || op == "SetStatsAggregatorDataset" || op == "BytesProducedStatsDataset"
}

// modelled are ops that the model knows: it has a node with the op's name for each step. Other ops always get a
// meter.
var modelled = map[string]bool{
	"MapDataset": true, "ParallelMapDataset": true, "ParallelMapDatasetV2": true, "PrefetchDataset": true, "ParseExampleDatasetV2": true,
	"RangeDataset": true, "TensorSliceDataset": true, "TFRecordDataset": true, "TFRecordDatasetV2": true, "FilterDataset": true,
	"FlatMapDataset": true, "InterleaveDataset": true, "ParallelInterleaveDatasetV4": true, "ShuffleDatasetV3": true, "ZipDataset": true,
	"BatchDatasetV2": true, "ParallelBatchDataset": true, "PaddedBatchDatasetV2": true, "UnbatchDataset": true,
}

// wakesPerElement are ops that become expensive if a resource of meters is downstream of them. Plain maps are
// listed, because tf.data makes them parallel.
var wakesPerElement = map[string]bool{
	"MapDataset": true, "ParallelMapDataset": true, "ParallelMapDatasetV2": true, "ParallelBatchDataset": true, "ParseExampleDatasetV2": true,
}

// oneForOne are ops that have returned one element for each input when the input ends.
var oneForOne = map[string]bool{
	"MapDataset": true, "ParallelMapDataset": true, "ParallelMapDatasetV2": true, "PrefetchDataset": true, "OptionsDataset": true,
	"ParseExampleDatasetV2": true, "ShuffleDataset": true, "ShuffleDatasetV2": true, "ShuffleDatasetV3": true,
	"SetStatsAggregatorDataset": true, "BytesProducedStatsDataset": true,
}

// OneForOne returns whether a step of an op has returned as many elements as its first input when the input ends.
func OneForOne(op string) bool { return oneForOne[op] }

// MeteredNode returns the node whose elements a meter counts, by the meter's name; "" for other nodes.
func MeteredNode(name string) string {
	if counted, ok := strings.CutPrefix(name, meterPrefix); ok {
		return counted
	}
	return ""
}

// meter adds the needed meters at a root and upstream, and returns the new root.
func (e *editor) meter(root string) string {
	if e.at.Meters == "" {
		return root
	}
	m := &metering{e: e, of: map[string]string{}, wakes: map[string]bool{}, counts: map[string]bool{}, resourceUpstream: true}
	m.planMeters(root, false)
	root = m.addMeters(root, false)
	if !m.resourceUpstream && m.meters > 0 || m.resourceUpstream && m.counts[root] {
		return m.passResource(root)
	}
	return root
}

// metering is the state of adding meters to a graph.
type metering struct {
	e *editor
	// of has the node that replaces the output of each visited node.
	of map[string]string
	// meters is the number of added meters.
	meters int
	// wakes are the nodes of wakesPerElement and all nodes downstream of them. counts are the nodes downstream
	// of a meter whose resource is not yet added.
	wakes, counts map[string]bool
	// resourceUpstream is set if no meter is needed downstream of a node of wakes, so the resource can be upstream of all
	// of them.
	resourceUpstream bool
	// resources is the number of nodes that pass the resource to their inputs.
	resources int
}

// inputs returns the positions of a node's inputs that are datasets, and the nodes of these inputs.
func (m *metering) inputs(n *tf.NodeDef) (positions []int, from []string) {
	for i, input := range n.GetInput() {
		name, _, control := nodedef.SplitInput(input)
		if !control && strings.Contains(m.e.Node(name).GetOp(), "Dataset") {
			positions, from = append(positions, i), append(from, name)
		}
	}
	return positions, from
}

// planMeters decides where the resource can be, before meter changes the graph. It returns whether a meter, or the count of
// a step upstream, counts the elements of a node after the model has forgotten the node.
func (m *metering) planMeters(name string, vanishes bool) (counted bool) {
	n := m.e.Node(name)
	_, inputs := m.inputs(n)
	// tf.data does not make the map parallel that pulls from the worker.
	m.wakes[name] = wakesPerElement[n.GetOp()] && name != PullNode
	inputCounted := false
	for i, from := range inputs {
		known := m.planMeters(from, vanishes || i > 0 || !keepsInput[n.GetOp()])
		inputCounted = inputCounted || i == 0 && known
		m.wakes[name] = m.wakes[name] || m.wakes[from]
	}
	switch {
	case n.GetOp() == "IgnoreErrorsDataset":
		// Steps upstream of it return fewer elements than they get.
		m.resourceUpstream = false
	case m.e.countedAs(n) == "" || !vanishes && modelled[n.GetOp()]:
	case !m.wakes[name]:
		return true
	case !inputCounted || !oneForOne[n.GetOp()]:
		m.resourceUpstream = false
	}
	// A node that adds the index column returns one element for each input.
	return inputCounted && (oneForOne[n.GetOp()] || strings.HasPrefix(name, indexPrefix))
}

// passResource adds a node that passes the resource of the meters to a node and all nodes upstream.
func (m *metering) passResource(name string) string {
	e, input := m.e, m.e.Node(name)
	handle := e.Add(&tf.NodeDef{Name: "pecan_meters", Op: "StatsAggregatorHandle",
		Attr: map[string]*tf.AttrValue{"container": nodedef.BytesAttr(""), "shared_name": nodedef.BytesAttr(e.at.Meters)}})
	own := "pecan_metered"
	if m.resources > 0 {
		own = fmt.Sprintf("pecan_metered_%d", m.resources)
	}
	m.resources++
	return e.Add(&tf.NodeDef{Name: own, Op: "SetStatsAggregatorDataset",
		Input: []string{name, handle, e.Add(nodedef.StringConst("pecan_meters/tag", "")), e.Add(nodedef.StringConst("pecan_meters/prefix", "pecan"))},
		Attr:  nodedef.DatasetAttrs(e.g.OutputTypes(input), e.g.OutputShapes(input))})
}

// addMeters adds meters for a node and all nodes upstream. vanishes is true if the model may forget the node.
func (m *metering) addMeters(name string, vanishes bool) string {
	if known, ok := m.of[name]; ok {
		return known
	}
	n := m.e.Node(name)
	m.of[name] = name
	positions, inputs := m.inputs(n)
	for i, from := range inputs {
		// A captured dataset is read once per call.
		kept := !vanishes && positions[i] == 0 && keepsInput[n.GetOp()]
		output := m.addMeters(from, !kept)
		if m.counts[output] {
			if m.resourceUpstream && m.wakes[name] && !m.wakes[from] {
				output = m.passResource(output)
			} else {
				m.counts[name] = true
			}
		}
		if output != from {
			m.e.Edit(name).Input[positions[i]] = output
		}
	}
	if counted := m.e.countedAs(n); counted != "" && (vanishes || !modelled[n.GetOp()]) && !(m.resourceUpstream && m.wakes[name]) {
		m.of[name] = m.e.addMeter(n, counted)
		m.counts[m.of[name]] = true
		m.meters++
	}
	return m.of[name]
}

// countedAs returns the name under which a node's elements are counted; "" for a node without metrics. A range
// that is cut in blocks returns the first numbers of the blocks. The node that flattens the blocks returns the
// elements of the range, so it has the name of the range.
func (e *editor) countedAs(n *tf.NodeDef) string {
	name, original := n.GetName(), OriginalNode(n.GetName())
	switch {
	case e.cutInBlocks(name), n.GetOp() == "OptionsDataset":
		return ""
	case name == original, name == PullNode, name == pullElements, strings.HasSuffix(name, "/shard"):
		return name
	case strings.HasSuffix(name, "/flatten"):
		if e.cutInBlocks(original) {
			return original
		}
		return name
	}
	return ""
}

// cutInBlocks returns whether a range returns the first numbers of blocks.
func (e *editor) cutInBlocks(name string) bool {
	return e.Has(split.CutPrefix+name+"/flatten") && !e.Has(split.CutPrefix+name+"/window")
}

func (e *editor) addMeter(n *tf.NodeDef, counted string) string {
	name := meterPrefix + counted
	return e.Add(&tf.NodeDef{Name: name, Op: "BytesProducedStatsDataset", Input: []string{n.GetName(), e.Add(nodedef.StringConst(name+"/tag", counted))},
		Attr: nodedef.DatasetAttrs(e.g.OutputTypes(n), e.g.OutputShapes(n))})
}

// nodes describes the dataset nodes of the registered graph.
func (e *editor) nodes() Nodes {
	nodes := Nodes{Ops: map[string]string{}, Passed: map[string]string{}}
	for _, n := range e.g.Order() {
		if strings.Contains(n.GetOp(), "Dataset") {
			nodes.Ops[n.GetName()] = n.GetOp()
		}
		if takesAll(e.g, n) {
			nodes.Passed[n.GetName()] = nodedef.InputNode(n.GetInput()[0])
		}
	}
	return nodes
}
