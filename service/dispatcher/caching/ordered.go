package caching

import (
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/dispatcher/core/measure"
)

// inOrder returns what is known of a job whose steps run in the decided order. In that order, the steps between the
// first and the last one that move take another share of their time. All others take the same time.
func inOrder(facts measure.Caching) measure.Caching {
	decided := facts.Ordered.Decided
	ratio := costRatio(decided, facts.Nodes)
	nodes := make([]*pecanv1.NodeMetrics, len(facts.Nodes))
	for i, node := range facts.Nodes {
		n := &pecanv1.NodeMetrics{
			Node: node.Node, Op: node.Op, Elements: node.Elements, SelfCpuS: node.SelfCpuS, BytesIn: node.BytesIn, BytesOut: node.BytesOut, Inside: node.Inside,
		}
		if covers(decided, node) {
			n.SelfCpuS *= ratio
		}
		nodes[i] = n
	}
	facts.Nodes, facts.Steps = nodes, facts.Ordered.Steps
	return facts
}

// covers reports whether an order changes the cost of a step: its own, or that of a step in its function, which it contains.
func covers(decided *pecanv1.StoredOrder, node *pecanv1.NodeMetrics) bool {
	return slices.Contains(decided.GetCovers(), node.GetNode()) ||
		slices.ContainsFunc(node.GetInside(), func(inner *pecanv1.NodeMetrics) bool { return covers(decided, inner) })
}

// costRatio returns what the covered steps of an order cost, relative to the registered order. It returns the ratio that
// production measured. Without one, it returns the ratio that was predicted for all steps together.
func costRatio(decided *pecanv1.StoredOrder, nodes []*pecanv1.NodeMetrics) float64 {
	if p := decided.GetProduction(); p.GetRegisteredS() > 0 && p.GetOrderedS() > 0 {
		return p.OrderedS / p.RegisteredS
	}
	all, covered := 0.0, 0.0
	for _, node := range nodes {
		all += node.SelfCpuS
		if covers(decided, node) {
			covered += node.SelfCpuS
		}
	}
	if !(decided.GetPredictedBeforeS() > 0) || covered == 0 {
		return 1
	}
	return max(1-(1-decided.PredictedAfterS/decided.PredictedBeforeS)*all/covered, 0)
}
