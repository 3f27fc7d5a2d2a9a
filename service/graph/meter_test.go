package graph

import (
	"strings"
	"testing"

	tf "github.com/pecan-ml/pecan/proto/tensorflow"
)

// Every parallel step that sees what meters count in has a thread that wakes up with each element.
func TestMetersStayBelowParallelSteps(t *testing.T) {
	for name, low := range map[string]bool{"map_batch": true, "records": true, "filter_batch": true, "filter_batch_map": true, "enumerate_records": true, "map_filter_batch": false} {
		t.Run(name, func(t *testing.T) {
			def := stream(t, name, At{Stream: 0, Meters: "here"})
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
						t.Errorf("meter %s counts nowhere", n.GetName())
					}
				}
				if wakes[n.GetOp()] && sees {
					woken++
				}
				for _, input := range n.GetInput() {
					from, _, control := splitInput(input)
					if below := named(t, def, from); !control && strings.Contains(below.GetOp(), "Dataset") {
						walk(below, sees)
					}
				}
			}
			retval := ofOp(t, def, "_Retval")
			from, _, _ := splitInput(retval.GetInput()[0])
			walk(named(t, def, from), false)
			if resources == 0 || meters == 0 || (woken == 0) != low {
				t.Errorf("%d resources, %d meters, %d steps that pay for them", resources, meters, woken)
			}
		})
	}
}
