package graph

import (
	"fmt"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
)

// shardHint is the number that tf.data.experimental.SHARD_HINT stands for in a graph.
const shardHint = -1

// isHint tells whether a node is shard(SHARD_HINT, SHARD_HINT); find gives the node behind an input.
func (g *Graph) isHint(n *tf.NodeDef, find func(input string) *tf.NodeDef) bool {
	if n.GetOp() != "ShardDataset" {
		return false
	}
	shards, ok1 := constInt(find(n.GetInput()[1]))
	index, ok2 := constInt(find(n.GetInput()[2]))
	return ok1 && ok2 && shards == shardHint && index == shardHint
}

func (g *Graph) top(input string) *tf.NodeDef {
	name, _, _ := splitInput(input)
	return g.nodes[name]
}

// hints lists the hinted shards outside of functions, and tells whether functions hold any.
func (g *Graph) hints() (top []string, nested string) {
	for _, n := range g.order {
		if g.isHint(n, g.top) {
			top = append(top, n.GetName())
		}
	}
	for _, f := range g.def.GetLibrary().GetFunction() {
		inside := map[string]*tf.NodeDef{}
		for _, n := range f.GetNodeDef() {
			inside[n.GetName()] = n
		}
		for _, n := range f.GetNodeDef() {
			if g.isHint(n, func(input string) *tf.NodeDef { return inside[functionInputNode(input)] }) {
				nested = nodePath(f.GetSignature().GetName(), n)
			}
		}
	}
	return top, nested
}

func (p *planner) checkHint(opts *pecanv1.JobOptions) error {
	top, nested := p.g.hints()
	used := len(top) > 0 || nested != ""
	wanted := opts.GetSharding() == pecanv1.Sharding_SHARDING_HINT && !isOff(opts)
	switch {
	case used && !wanted:
		name := nested
		if len(top) > 0 {
			name = top[0]
		}
		return reason.New(reason.ShardingHint, "the dataset uses shard(SHARD_HINT, SHARD_HINT) (node %s), which only sharding HINT can fill in: use ShardingPolicy.HINT, or take the shard out", quoteName(name))
	case nested != "":
		return reason.New(reason.ShardingHint, "the dataset uses shard(SHARD_HINT, SHARD_HINT) inside a function (node %s): move it out of the function", quoteName(nested))
	case wanted && !used:
		return reason.New(reason.ShardingHint, "sharding HINT needs shard(SHARD_HINT, SHARD_HINT) in the dataset to say where it is divided: add it, or use another policy")
	}
	return nil
}

// planHint divides where the user said. What stands above the hint sees only its stream's share, as with tf.data.
func (p *planner) planHint(plan *pecanv1.Plan, root *step, env Env) {
	plan.Cut.Kind = pecanv1.Cut_HINT
	plan.Cut.Block = 1
	plan.Cut.Edges, _ = p.g.hints()
	splits := int64(0)
	root.walk(func(s *step) {
		if p.g.isHint(s.node, p.g.top) {
			splits = max(splits, p.splits(s.in[0], 1))
		}
	})
	plan.Cardinality = unknown
	plan.NumStreams = int32(max(1, min(MaxStreams, splits)))
	if env.StaticWorkers > 0 {
		plan.NumStreams = int32(env.StaticWorkers)
	}
	plan.Reasons = append(plan.Reasons, fmt.Sprintf("The dataset is cut at %s, as its hint says, into %d streams; "+
		"what stands above the hint (a batch, a take) counts in each stream for itself.", plan.Cut.Edges[0], plan.NumStreams))
}
