package split_test

import (
	"testing"

	"github.com/pecan-ml/pecan/service/graph"
	"github.com/pecan-ml/pecan/service/graph/graphtest"
	"github.com/pecan-ml/pecan/service/graph/ops"
	"github.com/pecan-ml/pecan/service/graph/split"
)

func TestAnEndlessRepeatUpstreamOfABatchIsRemovedOnlyWithACarry(t *testing.T) {
	for _, c := range []struct {
		name        string
		carry       bool
		repetitions int64
	}{
		{"endless_batch", false, 1},
		{"endless_batch", true, -1},
		{"endless", false, -1},
		{"endless", true, -1},
		{"filter_batch", true, 1},
	} {
		p := split.NewPlanner(graphtest.Parse(t, c.name))
		p.Carry = c.carry
		root, _ := graphtest.Parse(t, c.name).Steps()
		root, repetitions := p.RemoveOuterRepeat(root)
		if repetitions != c.repetitions {
			t.Errorf("%s with carry %v: %d repetitions, want %d", c.name, c.carry, repetitions, c.repetitions)
		}
		repeated := false
		root.Walk(func(s *graph.Step) { repeated = repeated || s.Rule.Kind == ops.Repeated })
		if want := c.name == "endless_batch" && !c.carry; repeated != want {
			t.Errorf("%s with carry %v: a repeat is left: %v, want %v", c.name, c.carry, repeated, want)
		}
	}
}
