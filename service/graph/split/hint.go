package split

import (
	"fmt"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/proto/reason"
	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/analysis"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
)

func (p *Planner) checkHint(opts *pecanv1.JobOptions) error {
	top, nested := p.g.Hints()
	used := len(top) > 0 || nested != ""
	wanted := opts.GetSharding() == pecanv1.Sharding_SHARDING_HINT && !shardingOff(opts)
	switch {
	case used && !wanted:
		name := nested
		if len(top) > 0 {
			name = top[0]
		}
		return reason.New(reason.ShardingHint, "the dataset uses shard(SHARD_HINT, SHARD_HINT) (node %s), and only sharding HINT can set it: use ShardingPolicy.HINT, or remove the shard", nodedef.Quote(name))
	case nested != "":
		return reason.New(reason.ShardingHint, "the dataset uses shard(SHARD_HINT, SHARD_HINT) inside a function (node %s): move it out of the function", nodedef.Quote(nested))
	case wanted && !used:
		return reason.New(reason.ShardingHint, "sharding HINT needs shard(SHARD_HINT, SHARD_HINT) in the dataset to mark where to divide it: add it, or use another policy")
	}
	return nil
}

// planHint divides the dataset where the author put the hint. Steps downstream of the hint see only their
// stream's share, as in tf.data.
func (p *Planner) planHint(plan *pecanv1.Plan, root *graph.Step, env Env) {
	plan.Cut.Kind = pecanv1.Cut_HINT
	plan.Cut.Block = 1
	plan.Cut.Edges, _ = p.g.Hints()
	splits := int64(0)
	root.Walk(func(s *graph.Step) {
		if p.g.IsHint(s.Node, p.g.NodeOf) {
			splits = max(splits, p.splitCount(s.In[0], 1))
		}
	})
	plan.Cardinality = analysis.Unknown
	plan.NumStreams = int32(max(1, min(defaultGroup, splits)))
	plan.StreamsWhy = fmt.Sprintf("There are %d shares at the hint.", plan.NumStreams)
	switch {
	case env.StaticWorkers > 0:
		plan.NumStreams = int32(env.StaticWorkers)
		plan.StreamsWhy = fmt.Sprintf("There is a stream for each of the %d workers of the dispatcher's list.", plan.NumStreams)
	case splits > defaultGroup:
		plan.StreamsWhy = fmt.Sprintf("With sharding HINT, a dataset has at most %d streams.", defaultGroup)
	}
	plan.Reasons = append(plan.Reasons, fmt.Sprintf("The dataset is divided at the hint %s into %d streams. "+
		"Steps after the hint (a batch, a take) count separately in each stream.", plan.Cut.Edges[0], plan.NumStreams))
}
