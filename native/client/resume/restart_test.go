package resume

import (
	"fmt"
	"testing"

	"github.com/pecan-ml/pecan/native/client/epoch"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// Streams 0 to 9 have the closing streams 10 to 12, and these have 13.
func TestStreamsOfGroupsRestartOrAreAbandoned(t *testing.T) {
	for name, c := range map[string]struct {
		closing, restarts bool
		over              []uint32
		next              map[uint32]uint64
		wantOver          []uint32
		changed           int
	}{
		"restart":                        {false, true, []uint32{0, 1, 2, 3}, map[uint32]uint64{4: 7, 6: 2}, []uint32{0, 1, 2, 3}, 2},
		"restart, rows are kept back":    {true, true, []uint32{0, 1, 2, 3, 10}, map[uint32]uint64{4: 7}, nil, 1},
		"restart, nothing is kept back":  {true, true, []uint32{0, 1, 13}, map[uint32]uint64{4: 7}, []uint32{0, 1, 13}, 1},
		"abandoned":                      {false, false, []uint32{0, 1}, map[uint32]uint64{4: 7, 6: 2}, []uint32{0, 1, 4, 6}, 2},
		"abandoned, rows are kept back":  {true, false, []uint32{0}, map[uint32]uint64{5: 2}, []uint32{0, 5, 10, 11, 13}, 4},
		"abandoned, and nothing has run": {true, false, nil, nil, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			plan := &pecanv1.Plan{NumStreams: 10, Group: 4}
			if c.closing {
				plan.BatchStrategy = pecanv1.BatchStrategy_BATCH_STRATEGY_CLOSING
			}
			at := epoch.Progress{Next: c.next}
			for _, stream := range c.over {
				at.Over.Set(stream)
			}
			place := &pecanv1.Position{Epoch: 3}
			at.Record(place)
			position, changed := startOfGroups(plan, place, c.restarts)
			got, err := epoch.NewProgress(position, 14)
			if err != nil || len(got.Next) > 0 || changed != c.changed || position.Epoch != 3 {
				t.Errorf("%v, %d changed (%v)", position, changed, err)
			}
			var over []uint32
			for stream := range uint32(14) {
				if got.Over.Has(stream) {
					over = append(over, stream)
				}
			}
			if fmt.Sprint(over) != fmt.Sprint(c.wantOver) || Ended(position) != len(over) || Partial(position) != (len(over) > 0) {
				t.Errorf("%v have ended, want %v", over, c.wantOver)
			}
		})
	}
}
