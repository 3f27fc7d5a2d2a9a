package graph

import (
	"sync"

	"google.golang.org/protobuf/proto"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// NodeOf returns the node outside of functions that an input refers to.
func (g *Graph) NodeOf(input string) *tf.NodeDef {
	name, _, _ := nodedef.SplitInput(input)
	return g.nodes[name]
}

// Graph is a checked dataset graph. It never changes after Parse.
type Graph struct {
	def       *tf.GraphDef
	ops       *ops.Set
	limits    Limits
	nodes     map[string]*tf.NodeDef
	functions map[string]*tf.FunctionDef
	// retval is the one node that marks the result. root is the dataset that it takes.
	retval *tf.NodeDef
	root   *tf.NodeDef
	// order lists the nodes that the result needs, inputs before users.
	order       []*tf.NodeDef
	fingerprint string
	warnings    []string
	// encodings has the encodings of nodes and functions, by their pointers. See appendPart.
	encodings sync.Map
}

// ParseVariant parses another graph of the same dataset. The variant keeps the limits and the fingerprint.
func (g *Graph) ParseVariant(data []byte) (*Graph, error) {
	variant, err := Parse(data, g.limits)
	if err != nil {
		return nil, err
	}
	variant.fingerprint = g.fingerprint
	return variant, nil
}

// Def is the parsed graph. The caller must not change it.
func (g *Graph) Def() *tf.GraphDef { return g.def }

// Ops describes the ops of the TensorFlow release that the graph was checked against.
func (g *Graph) Ops() *ops.Set { return g.ops }

// Limits returns the limits that the graph was checked against, with defaults filled in.
func (g *Graph) Limits() Limits { return g.limits }

// Node returns the node outside of functions with that name, nil if there is none.
func (g *Graph) Node(name string) *tf.NodeDef { return g.nodes[name] }

// Function returns the function with that name, nil if there is none.
func (g *Graph) Function(name string) *tf.FunctionDef { return g.functions[name] }

// Functions returns all functions by name. The caller must not change the map.
func (g *Graph) Functions() map[string]*tf.FunctionDef { return g.functions }

// Root is the dataset node of the result.
func (g *Graph) Root() *tf.NodeDef { return g.root }

// Retval is the node that marks the result.
func (g *Graph) Retval() *tf.NodeDef { return g.retval }

// Order lists the nodes that the result needs, inputs before users.
func (g *Graph) Order() []*tf.NodeDef { return g.order }

// Warnings returns warnings for the user about what registration changes, for example that variables are
// copied.
func (g *Graph) Warnings() []string { return append([]string(nil), g.warnings...) }

// Fingerprint identifies the dataset. It is equal for equal pipelines, whenever and wherever they were
// serialised.
func (g *Graph) Fingerprint() string { return g.fingerprint }

// EachNode visits every node in the order of the file: first those of the graph, then those of functions.
func (g *Graph) EachNode(visit func(n *tf.NodeDef, function string) error) error {
	for _, n := range g.def.Node {
		if err := visit(n, ""); err != nil {
			return err
		}
	}
	for _, f := range g.def.GetLibrary().GetFunction() {
		for _, n := range f.GetNodeDef() {
			if err := visit(n, f.GetSignature().GetName()); err != nil {
				return err
			}
		}
	}
	return nil
}

// Serialized returns the graph as a GraphDef. The bytes of equal graphs are equal.
func (g *Graph) Serialized() ([]byte, error) {
	return proto.MarshalOptions{Deterministic: true}.Marshal(g.def)
}

// Input returns the node that provides an argument of a step, nil if the argument does not exist.
func (g *Graph) Input(n *tf.NodeDef, arg string) *tf.NodeDef {
	i := g.InputIndex(n, arg)
	if i < 0 || i >= len(n.GetInput()) {
		return nil
	}
	name, _, _ := nodedef.SplitInput(n.GetInput()[i])
	return g.nodes[name]
}

// InputIndex is the index of an argument's first input, -1 if the op has no such argument.
func (g *Graph) InputIndex(n *tf.NodeDef, arg string) int {
	at := 0
	for _, a := range g.ops.Def(n.GetOp()).GetInputArg() {
		if a.GetName() == arg {
			return at
		}
		size, _ := g.ArgSize(a, n)
		at += size
	}
	return -1
}

// InputInt returns the value of an argument that is a constant integer.
func (g *Graph) InputInt(n *tf.NodeDef, arg string) (int64, bool) {
	return nodedef.Int(g.Input(n, arg))
}

// Attr returns an attribute of a node, or the op's default.
func (g *Graph) Attr(n *tf.NodeDef, name string) *tf.AttrValue {
	if v, ok := n.GetAttr()[name]; ok {
		return v
	}
	return ops.AttrDef(g.ops.Def(n.GetOp()), name).GetDefaultValue()
}
