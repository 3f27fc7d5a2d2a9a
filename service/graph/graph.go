package graph

import (
	"google.golang.org/protobuf/proto"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// NodeOf gives the node outside of functions that an input names.
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
	// retval is the one node that marks the result, root the dataset it takes.
	retval *tf.NodeDef
	root   *tf.NodeDef
	// order lists the nodes that the result needs, inputs before users.
	order       []*tf.NodeDef
	fingerprint string
	notices     []string
}

// ParseVariant reads a graph of the same dataset that was written another way. The variant keeps limits and fingerprint.
func (g *Graph) ParseVariant(data []byte) (*Graph, error) {
	variant, err := Parse(data, g.limits)
	if err != nil {
		return nil, err
	}
	variant.fingerprint = g.fingerprint
	return variant, nil
}

// Def is the graph as it was parsed. Nobody may change it.
func (g *Graph) Def() *tf.GraphDef { return g.def }

// Ops are the ops of the TensorFlow release that the graph was checked against.
func (g *Graph) Ops() *ops.Set { return g.ops }

// Limits are the limits that the graph was checked against, defaults filled in.
func (g *Graph) Limits() Limits { return g.limits }

// Node gives a node outside of functions by its name, nil if there is none.
func (g *Graph) Node(name string) *tf.NodeDef { return g.nodes[name] }

// Function gives a function by its name, nil if there is none.
func (g *Graph) Function(name string) *tf.FunctionDef { return g.functions[name] }

// Functions are all functions by their names. Nobody may change the map.
func (g *Graph) Functions() map[string]*tf.FunctionDef { return g.functions }

// Root is the dataset node that gives the result.
func (g *Graph) Root() *tf.NodeDef { return g.root }

// Retval is the node that marks the result.
func (g *Graph) Retval() *tf.NodeDef { return g.retval }

// Order lists the nodes that the result needs, inputs before users.
func (g *Graph) Order() []*tf.NodeDef { return g.order }

// Notices are sentences for the user about what registration changes, such as variables that travel by value.
func (g *Graph) Notices() []string { return append([]string(nil), g.notices...) }

// Fingerprint names the dataset: equal for equal pipelines, whenever and wherever they were serialised.
func (g *Graph) Fingerprint() string { return g.fingerprint }

// EachNode visits every node, those of functions after those of the graph, in the order of the file.
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

// Serialized gives the graph as a GraphDef, equal bytes for equal graphs.
func (g *Graph) Serialized() ([]byte, error) {
	return proto.MarshalOptions{Deterministic: true}.Marshal(g.def)
}

// Input gives the node that feeds an argument of a step, nil when the argument is not there.
func (g *Graph) Input(n *tf.NodeDef, arg string) *tf.NodeDef {
	i := g.InputIndex(n, arg)
	if i < 0 || i >= len(n.GetInput()) {
		return nil
	}
	name, _, _ := nodedef.SplitInput(n.GetInput()[i])
	return g.nodes[name]
}

// InputIndex is the index of the first input that an argument has, -1 if the op has no such argument.
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

// InputInt gives the number of an argument that is a constant.
func (g *Graph) InputInt(n *tf.NodeDef, arg string) (int64, bool) {
	return nodedef.Int(g.Input(n, arg))
}

// Attr gives the attribute of a node, or the op's default.
func (g *Graph) Attr(n *tf.NodeDef, name string) *tf.AttrValue {
	if v, ok := n.GetAttr()[name]; ok {
		return v
	}
	return ops.AttrDef(g.ops.Def(n.GetOp()), name).GetDefaultValue()
}
