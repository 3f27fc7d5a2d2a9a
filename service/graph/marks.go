package graph

import (
	"strings"

	"google.golang.org/protobuf/proto"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
)

// shardHint is the number that tf.data.experimental.SHARD_HINT stands for in a graph.
const shardHint = -1

// IsHint tells whether a node is shard(SHARD_HINT, SHARD_HINT); find gives the node behind an input.
func (g *Graph) IsHint(n *tf.NodeDef, find func(input string) *tf.NodeDef) bool {
	if n.GetOp() != "ShardDataset" {
		return false
	}
	shards, ok1 := nodedef.Int(find(n.GetInput()[1]))
	index, ok2 := nodedef.Int(find(n.GetInput()[2]))
	return ok1 && ok2 && shards == shardHint && index == shardHint
}

// Hints lists the hinted shards outside of functions, and tells whether functions hold any.
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

// This file finds what the author of a pipeline keeps where it is: steps whose function went through pecan.keep_position(), which has a
// node in its body that begins with HoldMark, and steps between the two that pecan.keep_position_of() puts around them.

// KeepPositionMark is the scope of that node's name, and how the names of the two steps begin.
const KeepPositionMark = "pecan_keep_position"

const (
	// KeepPositionBegin is the name of the step below those that stay, KeepPositionEnd of the one above.
	KeepPositionBegin, KeepPositionEnd = KeepPositionMark + "_begin", KeepPositionMark + "_end"
	// keepPositionScope begins the names of the nodes in functions.
	keepPositionScope = KeepPositionMark + "/"
)

// MarkOf is the name of a step that a user's name makes a mark: take(-1) passes everything on and is there for its name alone; a name of
// the user's on a step lies in its metadata. Empty for other nodes.
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
	case CacheMark, KeepPositionBegin, KeepPositionEnd:
		return name
	}
	return ""
}

// KeepsPosition tells whether a function itself has the mark.
func KeepsPosition(f *tf.FunctionDef) bool {
	for _, n := range f.GetNodeDef() {
		if strings.HasPrefix(n.GetName(), keepPositionScope) {
			return true
		}
	}
	return false
}

// This file finds the step that pecan.cache() puts into a pipeline, decides whether what passes it can be kept, and divides a
// stream's graph there: what lies below, which the worker leaves out when it has the elements, and what lies above, which takes
// them from the worker. docs/design/0008-cache.md says why it is so.

// CacheMark is the name of the step: take(-1, name=CacheMark), which TensorFlow passes through.
const CacheMark = "pecan_cache"

// IsCacheMark tells whether a node is a cached step.
func (g *Graph) IsCacheMark(n *tf.NodeDef) bool { return g.MarkOf(n) == CacheMark }

// ReadOptions gives what an OptionsDataset sets.
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
