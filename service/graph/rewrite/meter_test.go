package rewrite_test

import (
	"strings"
	"testing"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	tf "github.com/pecan-ml/pecan/proto/tensorflow"
	"github.com/pecan-ml/pecan/service/graph/graphtest"
	"github.com/pecan-ml/pecan/service/graph/nodedef"
	"github.com/pecan-ml/pecan/service/graph/rewrite"
)

// A parallel step upstream of the meters' resource has a thread that wakes up for each element.
func TestTheMetersResourceIsUpstreamOfParallelSteps(t *testing.T) {
	for name, low := range map[string]bool{"map_batch": true, "records": true, "filter_batch": true, "filter_batch_map": true, "enumerate_records": true, "map_filter_batch": false, "cached": true, "cached_records": true} {
		t.Run(name, func(t *testing.T) {
			at := rewrite.At{Stream: 0, Meters: "here"}
			if g := graphtest.Parse(t, name); strings.HasPrefix(name, "cached") {
				// The graph downstream of the cached step reads from PecanPull.
				at.Cached, at.Source, at.CacheSource = graphtest.Plan(t, g, &pecanv1.JobOptions{}, 1).GetCache(), -1, 1
			}
			def := graphtest.Stream(t, name, at)
			resources, meters, woken := 0, 0, 0
			var walk func(n *tf.NodeDef, sees bool)
			walk = func(n *tf.NodeDef, sees bool) {
				if n.GetOp() == "SetStatsAggregatorDataset" {
					sees = true
					resources++
				}
				if n.GetOp() == "BytesProducedStatsDataset" {
					meters++
					if !sees {
						t.Errorf("meter %s has no resource", n.GetName())
					}
				}
				if rewrite.Wakes[n.GetOp()] && sees && n.GetName() != rewrite.PullNode {
					woken++
				}
				for _, input := range n.GetInput() {
					from, _, control := nodedef.SplitInput(input)
					if below := graphtest.Named(t, def, from); !control && strings.Contains(below.GetOp(), "Dataset") {
						walk(below, sees)
					}
				}
			}
			retval := graphtest.OfOp(t, def, "_Retval")
			from, _, _ := nodedef.SplitInput(retval.GetInput()[0])
			walk(graphtest.Named(t, def, from), false)
			if resources == 0 || meters == 0 || (woken == 0) != low {
				t.Errorf("%d resources, %d meters, %d steps downstream of which a resource is expensive", resources, meters, woken)
			}
		})
	}
}
