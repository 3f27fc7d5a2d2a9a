package graph

import (
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/pecan-ml/pecan/proto/reason"
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph/ops"
)

// Parse reads a dataset graph as tf.data serialises it. It refuses what a worker could not run or should not
// run. Every refusal is a *reason.Error.
func Parse(data []byte, lim Limits) (*Graph, error) {
	if err := lim.Validate(); err != nil {
		return nil, reason.New(reason.BadArgument, "checking the limits for graphs: %w", err)
	}
	lim = lim.withDefaults()
	ops, err := ops.Registry()
	if err != nil {
		return nil, reason.New(reason.Internal, "%w", err)
	}
	if err := checkSize(data, lim); err != nil {
		return nil, err
	}
	var def tf.GraphDef
	if err := (proto.UnmarshalOptions{RecursionLimit: lim.MaxDepth + 32}).Unmarshal(data, &def); err != nil {
		return nil, reason.New(reason.GraphParse,
			"the bytes are not a serialised dataset (%v): send the result of dataset._as_serialized_graph() unchanged", err)
	}
	if len(def.ProtoReflect().GetUnknown()) > 0 {
		return nil, reason.New(reason.GraphParse,
			"the bytes of the dataset contain %d bytes that belong to no field of a GraphDef: send the result of dataset._as_serialized_graph() unchanged",
			len(def.ProtoReflect().GetUnknown()))
	}
	if len(def.Node) == 0 {
		return nil, reason.New(reason.GraphParse, "the dataset's graph has no nodes: send the result of dataset._as_serialized_graph()")
	}
	g := &Graph{def: &def, ops: ops, limits: lim}
	for _, check := range []func() error{
		g.checkVersion, g.indexNodes, g.indexFunctions, g.checkOps, g.checkFunctions, g.checkNodes, g.findRoot,
		g.orderNodes, g.checkPaths, g.checkArity, g.checkState, g.checkNumbers, g.checkOutputs,
	} {
		if err := check(); err != nil {
			return nil, err
		}
	}
	g.fingerprint = fingerprint(g)
	return g, nil
}

// checkSize bounds the work before Parse allocates anything: a node has at least two bytes on the wire and
// needs hundreds in memory.
func checkSize(data []byte, lim Limits) error {
	if len(data) == 0 {
		return reason.New(reason.GraphParse, "the dataset is empty (0 bytes): send the result of dataset._as_serialized_graph()")
	}
	if int64(len(data)) > lim.MaxBytes {
		return reason.New(reason.MessageTooLarge,
			"the dataset's graph has %d bytes, and the limit is %d: keep large constants in files instead of from_tensor_slices, or raise --max-graph-bytes of pecan-dispatcher",
			len(data), lim.MaxBytes)
	}
	var nodes, functions int
	ok := eachField(data, func(num protowire.Number, value []byte) bool {
		switch num {
		case 1:
			nodes++
			return true
		case 2:
			return eachField(value, func(num protowire.Number, value []byte) bool {
				if num != 1 {
					return true
				}
				functions++
				return eachField(value, func(num protowire.Number, _ []byte) bool {
					if num == 3 {
						nodes++
					}
					return true
				})
			})
		}
		return true
	})
	switch {
	case !ok:
		return reason.New(reason.GraphParse,
			"the bytes are not a serialised dataset, or only a part of one (%d bytes): send the result of dataset._as_serialized_graph() unchanged", len(data))
	case nodes > lim.MaxNodes:
		return reason.New(reason.GraphLimit, "the dataset's graph has %d nodes, and the limit is %d: simplify the pipeline", nodes, lim.MaxNodes)
	case functions > lim.MaxFunctions:
		return reason.New(reason.GraphLimit, "the dataset's graph has %d functions, and the limit is %d: simplify the pipeline", functions, lim.MaxFunctions)
	}
	return nil
}

// eachField visits the fields of one message. value is nil for fields that are not length-delimited.
func eachField(data []byte, visit func(protowire.Number, []byte) bool) bool {
	for len(data) > 0 {
		num, kind, n := protowire.ConsumeTag(data)
		if n < 0 {
			return false
		}
		data = data[n:]
		var value []byte
		if kind == protowire.BytesType {
			v, m := protowire.ConsumeBytes(data)
			if m < 0 {
				return false
			}
			value, n = v, m
		} else if n = protowire.ConsumeFieldValue(num, kind, data); n < 0 {
			return false
		}
		if !visit(num, value) {
			return false
		}
		data = data[n:]
	}
	return true
}

func (g *Graph) checkVersion() error {
	v := g.def.GetVersions()
	have := g.limits.GraphVersion
	if have == 0 {
		have = g.ops.GraphVersion()
	}
	if v.GetMinConsumer() > have {
		return reason.New(reason.GraphVersion,
			"the dataset needs a TensorFlow that reads graph version %d, but the workers read up to %d (TensorFlow %s): install the trainer's TensorFlow on the workers",
			v.GetMinConsumer(), have, g.ops.Release())
	}
	for _, bad := range v.GetBadConsumers() {
		if bad == have {
			return reason.New(reason.GraphVersion,
				"the dataset excludes readers of graph version %d, which the workers have (TensorFlow %s): install another TensorFlow on the workers",
				bad, g.ops.Release())
		}
	}
	return nil
}

func (g *Graph) checkName(what, name string) error {
	switch {
	case name == "":
		return reason.New(reason.GraphStructure, "a %s of the dataset's graph has no name", what)
	case len(name) > g.limits.MaxNameBytes:
		return reason.New(reason.GraphLimit, "the name of %s %q… has %d bytes, and the limit is %d", what, name[:32], len(name), g.limits.MaxNameBytes)
	}
	for _, r := range name {
		if r <= ' ' || r == 0x7f || r == '^' || r == ':' || !isPlain(r) {
			return reason.New(reason.GraphStructure, "the name of %s %q contains %q, which TensorFlow does not allow in names", what, name, r)
		}
	}
	return nil
}

// isPlain reports whether a character is ASCII, as in TensorFlow's own names. Others include control and
// direction marks.
func isPlain(r rune) bool { return r < 0x7f }

func (g *Graph) indexNodes() error {
	g.nodes = make(map[string]*tf.NodeDef, len(g.def.Node))
	for _, n := range g.def.Node {
		if err := g.checkName("node", n.GetName()); err != nil {
			return err
		}
		if _, dup := g.nodes[n.GetName()]; dup {
			return reason.New(reason.GraphStructure, "two nodes of the dataset's graph are named %q", n.GetName())
		}
		g.nodes[n.GetName()] = n
	}
	return nil
}

func (g *Graph) indexFunctions() error {
	lib := g.def.GetLibrary()
	if len(lib.GetGradient()) > 0 || len(lib.GetRegisteredGradients()) > 0 {
		g.warnings = append(g.warnings, "gradient functions of the dataset's graph are not used and were removed")
	}
	g.functions = make(map[string]*tf.FunctionDef, len(lib.GetFunction()))
	for _, f := range lib.GetFunction() {
		name := f.GetSignature().GetName()
		if err := g.checkName("function", name); err != nil {
			return err
		}
		if _, dup := g.functions[name]; dup {
			return reason.New(reason.GraphFunction, "two functions of the dataset's graph are named %q", name)
		}
		g.functions[name] = f
	}
	return nil
}
