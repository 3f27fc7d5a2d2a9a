package graph

import (
	"strings"

	"google.golang.org/protobuf/proto"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
)

// shardHint is the value of tf.data.experimental.SHARD_HINT in a graph.
const shardHint = -1

// IsHint reports whether a node is shard(SHARD_HINT, SHARD_HINT). find returns the node of an input.
func (g *Graph) IsHint(n *tf.NodeDef, find func(input string) *tf.NodeDef) bool {
	if n.GetOp() != "ShardDataset" {
		return false
	}
	shards, ok1 := nodedef.Int(find(n.GetInput()[1]))
	index, ok2 := nodedef.Int(find(n.GetInput()[2]))
	return ok1 && ok2 && shards == shardHint && index == shardHint
}

// Hints returns the shard hints outside of functions, and the path of one inside a function, "" if there is
// none.
func (g *Graph) Hints() (top []string, nested string) {
	for _, n := range g.order {
		if g.IsHint(n, g.NodeOf) {
			top = append(top, n.GetName())
		}
	}
	for _, f := range g.def.GetLibrary().GetFunction() {
		inside := map[string]*tf.NodeDef{}
		for _, n := range f.GetNodeDef() {
			inside[n.GetName()] = n
		}
		for _, n := range f.GetNodeDef() {
			if g.IsHint(n, func(input string) *tf.NodeDef { return inside[nodedef.InputNode(input)] }) {
				nested = nodedef.Path(f.GetSignature().GetName(), n)
			}
		}
	}
	return top, nested
}

// Authors fix the position of steps in two ways. pecan.keep_position() wraps a function: a node in its body
// has a name that begins with keepPositionMark. pecan.keep_position_of() puts one marked step before the
// fixed steps and one after them.

// keepPositionMark is the scope of the node in a function, and the prefix of the names of the two steps.
const keepPositionMark = "pecan_keep_position"

const (
	// KeepPositionBegin is the name of the step before the fixed steps, KeepPositionEnd of the step after
	// them.
	KeepPositionBegin, KeepPositionEnd = keepPositionMark + "_begin", keepPositionMark + "_end"
	// keepPositionScope is the prefix of the names of the nodes in functions.
	keepPositionScope = keepPositionMark + "/"
)

// MarkOf returns the mark of a step, "" for other nodes. A mark is a take(-1), which passes everything on,
// with a reserved user name. The user name of a step is in the step's metadata.
func (g *Graph) MarkOf(n *tf.NodeDef) string {
	if n.GetOp() != "TakeDataset" || len(n.GetAttr()["metadata"].GetS()) == 0 {
		return ""
	}
	if count, ok := g.InputInt(n, "count"); !ok || count >= 0 {
		return ""
	}
	var metadata tf.Metadata
	if proto.Unmarshal(n.GetAttr()["metadata"].GetS(), &metadata) != nil {
		return ""
	}
	switch name := string(metadata.GetName()); name {
	case cacheMark, KeepPositionBegin, KeepPositionEnd:
		return name
	}
	return ""
}

// KeepsPosition reports whether a function itself has the mark.
func KeepsPosition(f *tf.FunctionDef) bool {
	for _, n := range f.GetNodeDef() {
		if strings.HasPrefix(n.GetName(), keepPositionScope) {
			return true
		}
	}
	return false
}

// cacheMark is the name of the cached step: pecan.cache() adds take(-1, name=cacheMark), which passes
// everything on. docs/design/0008-cache.md gives the reasons.
const cacheMark = "pecan_cache"

// IsCacheMark reports whether a node is a cached step.
func (g *Graph) IsCacheMark(n *tf.NodeDef) bool { return g.MarkOf(n) == cacheMark }

// ReadOptions returns the options that an OptionsDataset sets.
func ReadOptions(n *tf.NodeDef) (*tf.Options, bool) {
	if n.GetOp() != "OptionsDataset" {
		return nil, false
	}
	var o tf.Options
	if err := proto.Unmarshal(n.GetAttr()["serialized_options"].GetS(), &o); err != nil {
		return nil, false
	}
	return &o, true
}
