package client

import (
	"testing"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

func TestTheCardinalityFollowsFromPassesAndMode(t *testing.T) {
	cases := map[string]struct {
		pass, repeat int64
		mode         pecanv1.Mode
		shared       bool
		want         int64
	}{
		"one pass":                       {10, 1, pecanv1.Mode_MODE_EXACTLY_ONCE, false, 10},
		"three passes":                   {10, 3, pecanv1.Mode_MODE_DETERMINISTIC, false, 30},
		"passes forever":                 {10, -1, pecanv1.Mode_MODE_EXACTLY_ONCE, false, infiniteCardinality},
		"a pass that never ends":         {infiniteCardinality, 1, pecanv1.Mode_MODE_EXACTLY_ONCE, false, infiniteCardinality},
		"a pass of unknown length":       {unknownCardinality, 1, pecanv1.Mode_MODE_EXACTLY_ONCE, false, unknownCardinality},
		"unknown forever may be nothing": {unknownCardinality, -1, pecanv1.Mode_MODE_EXACTLY_ONCE, false, unknownCardinality},
		"nothing forever":                {0, -1, pecanv1.Mode_MODE_EXACTLY_ONCE, false, 0},
		"no pass":                        {10, 0, pecanv1.Mode_MODE_EXACTLY_ONCE, false, 0},
		"shared":                         {10, 1, pecanv1.Mode_MODE_EXACTLY_ONCE, true, unknownCardinality},
		"shared forever":                 {10, -1, pecanv1.Mode_MODE_EXACTLY_ONCE, true, infiniteCardinality},
		"every worker everything":        {10, 1, pecanv1.Mode_MODE_OFF, false, unknownCardinality},
		"a product that overflows":       {1 << 40, 1 << 40, pecanv1.Mode_MODE_EXACTLY_ONCE, false, unknownCardinality},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			plan := &pecanv1.Plan{Cardinality: c.pass, Repeat: c.repeat}
			if got := Cardinality(plan, &pecanv1.JobOptions{Mode: c.mode}, c.shared); got != c.want {
				t.Errorf("%d, want %d", got, c.want)
			}
		})
	}
}
