package epoch

import (
	"testing"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// An iteration without end reads one epoch after the other. If each epoch kept its predecessor, no epoch would ever be freed.
func TestAnEpochThatIsReadDoesNotKeepTheOneBefore(t *testing.T) {
	rows := []*pecanv1.KeptRows{{Epoch: 7, Stream: 1, Rows: 2}}
	before := &Epoch{id: 7, carryState: carryState{carry: rows, carried: true}}
	next := &Epoch{carryState: newCarryState(before, nil), Answered: make(chan struct{})}
	if !next.GoesOnAfter(before) || *next.afterNumber != 7 {
		t.Fatal("the epoch does not go on after the one before")
	}
	next.GoOn()
	if next.after != nil {
		t.Error("the epoch keeps the one before")
	}
	if len(next.joins) != 1 || next.joins[0] != rows[0] || before.next != next.Answered {
		t.Errorf("the epoch joins %v, want %v", next.joins, rows)
	}
}
