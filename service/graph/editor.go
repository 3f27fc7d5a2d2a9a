package graph

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
)

// Editor builds a changed copy of a checked graph. It copies a node only when the node changes, because
// constants may be large. Nobody changes the original, which many goroutines share.
type Editor struct {
	g     *Graph
	nodes map[string]*tf.NodeDef
	added []string
	funcs map[string]*tf.FunctionDef
}

// NewEditor starts with a graph that is equal to the original.
func NewEditor(g *Graph) *Editor {
	return &Editor{g: g, nodes: map[string]*tf.NodeDef{}, funcs: map[string]*tf.FunctionDef{}}
}

// Node returns the current version of a node, nil if there is none.
func (e *Editor) Node(name string) *tf.NodeDef {
	if n, ok := e.nodes[name]; ok {
		return n
	}
	return e.g.nodes[name]
}

// Edit returns a copy of a node for changes. The copy shares the values of the attributes with the original.
func (e *Editor) Edit(name string) *tf.NodeDef {
	if n, ok := e.nodes[name]; ok {
		return n
	}
	c := nodedef.Copy(e.g.nodes[name])
	e.nodes[name] = c
	return c
}

// Add adds a node and returns its name.
func (e *Editor) Add(n *tf.NodeDef) string {
	if _, ok := e.nodes[n.GetName()]; !ok {
		e.added = append(e.added, n.GetName())
	}
	e.nodes[n.GetName()] = n
	return n.GetName()
}

// AddInt adds a constant with one integer and returns its name.
func (e *Editor) AddInt(name string, value int64) string {
	return e.Add(nodedef.Int64Const(name, value))
}

// SetInput replaces one argument of a node.
func (e *Editor) SetInput(node, arg, value string) {
	i := e.g.InputIndex(e.g.nodes[node], arg)
	if i >= 0 {
		e.Edit(node).Input[i] = value
	}
}

// Fork returns an independent editor with the current graph.
func (e *Editor) Fork() *Editor {
	c := *e
	c.nodes = make(map[string]*tf.NodeDef, len(e.nodes))
	for k, v := range e.nodes {
		c.nodes[k] = nodedef.Copy(v)
	}
	c.added = append([]string(nil), e.added...)
	return &c
}

// Finish encodes the graph whose result is the dataset node root. It leaves out everything that the result
// does not need.
func (e *Editor) Finish(root string) ([]byte, error) {
	retval := e.Edit(e.g.retval.GetName())
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
		for _, input := range e.Node(name).GetInput() {
			from, _, _ := nodedef.SplitInput(input)
			queue = append(queue, from)
		}
	}
	var out, library []byte
	var err error
	called := map[string]bool{}
	take := func(name string) {
		if !needed[name] || err != nil {
			return
		}
		n := e.Node(name)
		out, err = e.g.appendPart(out, nodeField, n, !e.Has(name))
		for _, f := range nodedef.CalledFunctions(n) {
			e.needFunction(f, called)
		}
	}
	for _, n := range e.g.order {
		take(n.GetName())
	}
	for _, name := range e.added {
		take(name)
	}
	for _, name := range slices.Sorted(maps.Keys(called)) {
		if err == nil {
			_, changed := e.funcs[name]
			library, err = e.g.appendPart(library, functionField, e.Function(name), !changed)
		}
	}
	if err != nil {
		return nil, err
	}
	out = protowire.AppendBytes(protowire.AppendTag(out, libraryField, protowire.BytesType), library)
	if versions := e.g.def.GetVersions(); versions != nil {
		return e.g.appendPart(out, versionsField, versions, false)
	}
	return out, nil
}

// AddFunction adds a function, or replaces the function with that name.
func (e *Editor) AddFunction(name string, f *tf.FunctionDef) { e.funcs[name] = f }

// Has reports whether a node with that name was added or changed.
func (e *Editor) Has(name string) bool {
	_, ok := e.nodes[name]
	return ok
}

// Function returns the current version of a function, nil if there is none.
func (e *Editor) Function(name string) *tf.FunctionDef {
	if f, ok := e.funcs[name]; ok {
		return f
	}
	return e.g.functions[name]
}

func (e *Editor) needFunction(name string, called map[string]bool) {
	if called[name] {
		return
	}
	called[name] = true
	for _, n := range e.Function(name).GetNodeDef() {
		for _, f := range nodedef.CalledFunctions(n) {
			e.needFunction(f, called)
		}
	}
}
