package jobmetrics

import (
	"math"
	"slices"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// Valid returns the metrics without those that nobody can have measured, also in functions. A node without a name belongs to
// nobody. An invalid time would make all others worthless.
func Valid(nodes []*pecanv1.NodeMetrics) []*pecanv1.NodeMetrics {
	valid := slices.DeleteFunc(slices.Clone(nodes), func(n *pecanv1.NodeMetrics) bool {
		return n.Node == "" || !(n.SelfCpuS >= 0) || math.IsInf(n.SelfCpuS, 0)
	})
	for i, n := range valid {
		if inside := Valid(n.Inside); !slices.Equal(inside, n.Inside) {
			valid[i] = proto.CloneOf(n)
			valid[i].Inside = inside
		}
	}
	return valid
}

// Busiest returns the elements of the most expensive step, and the CPU seconds of all steps.
func Busiest(nodes []*pecanv1.NodeMetrics) (elements uint64, cpu float64) {
	most := 0.0
	for _, node := range nodes {
		cpu += node.SelfCpuS
		if node.SelfCpuS > most {
			most, elements = node.SelfCpuS, node.Elements
		}
	}
	return elements, cpu
}
