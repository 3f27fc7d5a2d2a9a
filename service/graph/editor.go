package graph

import (
	"sort"
	"strings"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
)

// editor builds one graph out of a checked one. Nodes of the original are copied when they are changed, never before:
// constants may be large, and the original is shared.
type editor struct {
	g     *Graph
	p     *planner
	plan  planFacts
	at    At
	seeds seedSource
	nodes map[string]*tf.NodeDef
	added []string
	funcs map[string]*tf.FunctionDef
	// cargo says where the numbers of elements travel, for steps that draw by them.
	cargo carriage
	// mended are the steps that work on one element after another, so that their draws come in order.
	mended map[string]bool
	// serial: functions are being written for such a step.
	serial bool
	// keep is the plan at whose cached step the graph is divided, nil when it is not. What lies below is written to below, and
	// stopOutput stands for the output of stop.
	keep       *pecanv1.Plan
	below      []byte
	names      []string
	stop       *step
	stopOutput string
	// shared are the tables and variables that other streams find by their names.
	shared []Shared
	// touched remembers which functions hold something that a stream sets.
	touched map[string]bool
	// assigned finds the node that gives a variable its value.
	assigned map[string]*tf.NodeDef
	// skips is how many elements are left out above a step, for a stream that begins at an index.
	skips map[*step]int64
	// sunk are the steps above those, which see nothing of the elements that are left out.
	sunk map[*step]bool
	// clones counts function nodes that were copied, to refuse graphs that would grow without measure.
	clones int
}

// planFacts is the part of a plan that rewriting looks at.
type planFacts struct {
	streams int64
	way     way
	hint    bool
	off     bool
}

func (e *editor) ordered() bool { return e.at.Mode.String() == "MODE_DETERMINISTIC" }

func (e *editor) node(name string) *tf.NodeDef {
	if n, ok := e.nodes[name]; ok {
		return n
	}
	return e.g.nodes[name]
}

// edit gives a copy of a node that may be changed; the values of its attributes are still shared.
func (e *editor) edit(name string) *tf.NodeDef {
	if n, ok := e.nodes[name]; ok {
		return n
	}
	c := copyNode(e.g.nodes[name])
	e.nodes[name] = c
	return c
}

func copyNode(n *tf.NodeDef) *tf.NodeDef {
	c := &tf.NodeDef{Name: n.GetName(), Op: n.GetOp(), Device: n.GetDevice()}
	c.Input = append([]string(nil), n.GetInput()...)
	c.Attr = make(map[string]*tf.AttrValue, len(n.GetAttr())+1)
	for k, v := range n.GetAttr() {
		c.Attr[k] = v
	}
	return c
}

// add puts a new node in and gives its name back.
func (e *editor) add(n *tf.NodeDef) string {
	if _, ok := e.nodes[n.GetName()]; !ok {
		e.added = append(e.added, n.GetName())
	}
	e.nodes[n.GetName()] = n
	return n.GetName()
}

func (e *editor) addInt(name string, value int64) string { return e.add(int64Const(name, value)) }

// setInput replaces one argument of a node.
func (e *editor) setInput(node, arg, value string) {
	i := e.g.inputIndex(e.g.nodes[node], arg)
	if i >= 0 {
		e.edit(node).Input[i] = value
	}
}

// fork starts a second graph that begins as this one stands.
func (e *editor) fork() *editor {
	c := *e
	c.nodes = make(map[string]*tf.NodeDef, len(e.nodes))
	for k, v := range e.nodes {
		c.nodes[k] = copyNode(v)
	}
	c.added = append([]string(nil), e.added...)
	return &c
}

// Attribute helpers.

func typesAttr(types []tf.DataType) *tf.AttrValue {
	return &tf.AttrValue{Value: &tf.AttrValue_List{List: &tf.AttrValue_ListValue{Type: types}}}
}

func shapesAttr(shapes []*tf.TensorShapeProto) *tf.AttrValue {
	return &tf.AttrValue{Value: &tf.AttrValue_List{List: &tf.AttrValue_ListValue{Shape: shapes}}}
}

func boolAttr(b bool) *tf.AttrValue        { return &tf.AttrValue{Value: &tf.AttrValue_B{B: b}} }
func intAttr(i int64) *tf.AttrValue        { return &tf.AttrValue{Value: &tf.AttrValue_I{I: i}} }
func bytesAttr(s string) *tf.AttrValue     { return &tf.AttrValue{Value: &tf.AttrValue_S{S: []byte(s)}} }
func typeAttr(t tf.DataType) *tf.AttrValue { return &tf.AttrValue{Value: &tf.AttrValue_Type{Type: t}} }
func funcAttr(name string) *tf.AttrValue {
	return &tf.AttrValue{Value: &tf.AttrValue_Func{Func: &tf.NameAttrList{Name: name}}}
}

// datasetAttrs are the two attributes that nearly every dataset op has.
func datasetAttrs(types []tf.DataType, shapes []*tf.TensorShapeProto) map[string]*tf.AttrValue {
	return map[string]*tf.AttrValue{"output_types": typesAttr(types), "output_shapes": shapesAttr(shapes)}
}

// finish writes the graph whose result is the dataset node root, with nothing in it that the result does not need.
func (e *editor) finish(root string) ([]byte, error) {
	retval := e.edit(e.g.retval.GetName())
	retval.Input = []string{root}
	needed := map[string]bool{}
	queue := []string{retval.GetName()}
	for len(queue) > 0 {
		name := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		if needed[name] {
			continue
		}
		needed[name] = true
		for _, input := range e.node(name).GetInput() {
			from, _, _ := splitInput(input)
			queue = append(queue, from)
		}
	}
	out := &tf.GraphDef{Versions: e.g.def.GetVersions()}
	called := map[string]bool{}
	take := func(name string) {
		if !needed[name] {
			return
		}
		n := e.node(name)
		out.Node = append(out.Node, n)
		for _, f := range calledFunctions(n) {
			e.needFunction(f, called)
		}
	}
	for _, n := range e.g.order {
		take(n.GetName())
	}
	for _, name := range e.added {
		take(name)
	}
	names := make([]string, 0, len(called))
	for name := range called {
		names = append(names, name)
	}
	sort.Strings(names)
	out.Library = &tf.FunctionDefLibrary{}
	for _, name := range names {
		out.Library.Function = append(out.Library.Function, e.function(name))
	}
	return proto.MarshalOptions{Deterministic: true}.Marshal(out)
}

func (e *editor) function(name string) *tf.FunctionDef {
	if f, ok := e.funcs[name]; ok {
		return f
	}
	return e.g.functions[name]
}

func (e *editor) needFunction(name string, called map[string]bool) {
	if called[name] {
		return
	}
	called[name] = true
	for _, n := range e.function(name).GetNodeDef() {
		for _, f := range calledFunctions(n) {
			e.needFunction(f, called)
		}
	}
}

// Names of nodes that a stream graph adds. The original node is in the name, so that metrics find their way back.
const (
	cutPrefix  = "pecan_cut/"
	pullPrefix = "pecan_pull"
)

// PullNode is the step through which a graph gets what comes from PecanPull.
const PullNode = pullPrefix

// OriginalNode gives the node of the registered graph that a node of a stream graph stands for: itself for all that were
// there before, the node below for a cut, and nothing for our own sources and options.
func OriginalNode(name string) string {
	if rest, ok := strings.CutPrefix(name, cutPrefix); ok {
		if i := strings.LastIndex(rest, "/"); i > 0 {
			return rest[:i]
		}
		return rest
	}
	if strings.HasPrefix(name, "pecan_") {
		return ""
	}
	return name
}
