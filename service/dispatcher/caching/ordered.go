package caching

import (
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/measure"
)

// inOrder returns what is known of a job whose steps run in the decided order. The steps from the first one that moves to the last
// one cost another share of their time there. All others cost the same.
func inOrder(facts measure.Caching) measure.Caching {
	decided := facts.Ordered.Decided
	ratio := costRatio(decided, facts.Nodes)
	nodes := make([]*pecanv1.NodeMetrics, len(facts.Nodes))
	for i, node := range facts.Nodes {
		n := &pecanv1.NodeMetrics{Node: node.Node, Elements: node.Elements, SelfCpuS: node.SelfCpuS, BytesIn: node.BytesIn, BytesOut: node.BytesOut}
		if slices.Contains(decided.Covers, node.Node) {
			n.SelfCpuS *= ratio
		}
		nodes[i] = n
	}
	facts.Nodes, facts.Steps = nodes, facts.Ordered.Steps
	return facts
}

// costRatio returns what the covered steps of an order cost, relative to the registered order: as production measured it, else as
// it was predicted for all steps together.
func costRatio(decided *pecanv1.StoredOrder, nodes []*pecanv1.NodeMetrics) float64 {
	if p := decided.GetProduction(); p.GetRegisteredS() > 0 && p.GetOrderedS() > 0 {
		return p.OrderedS / p.RegisteredS
	}
	all, covered := 0.0, 0.0
	for _, node := range nodes {
		all += node.SelfCpuS
		if slices.Contains(decided.GetCovers(), node.Node) {
			covered += node.SelfCpuS
		}
	}
	if !(decided.GetPredictedBeforeS() > 0) || covered == 0 {
		return 1
	}
	return max(1-(1-decided.PredictedAfterS/decided.PredictedBeforeS)*all/covered, 0)
}
