package jobmetrics

import (
	"maps"
	"slices"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// MaxNodes bounds the nodes of one profile. A graph has far fewer nodes that yield elements.
const MaxNodes = 4096

// Profile holds the summed metrics of graph nodes by node name.
type Profile map[string]*pecanv1.NodeMetrics

// Add adds metrics to the profile. It ignores new nodes above MaxNodes.
func (p Profile) Add(nodes []*pecanv1.NodeMetrics) {
	for _, node := range nodes {
		s := p[node.GetNode()]
		if s == nil {
			if len(p) >= MaxNodes {
				continue
			}
			s = &pecanv1.NodeMetrics{Node: node.GetNode()}
			p[node.GetNode()] = s
		}
		s.Add(node)
	}
}

// List returns the metrics in the order of node names.
func (p Profile) List() []*pecanv1.NodeMetrics {
	var nodes []*pecanv1.NodeMetrics
	for _, name := range slices.Sorted(maps.Keys(p)) {
		nodes = append(nodes, p[name])
	}
	return nodes
}

// Subtract takes metrics away from the sums, for example those of other streams or of an earlier time.
func (p Profile) Subtract(nodes []*pecanv1.NodeMetrics) {
	for _, node := range nodes {
		if s := p[node.GetNode()]; s != nil {
			s.Subtract(node)
		}
	}
}
