package worker

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// The dispatcher knows the reader's position from the last heartbeat only. The next worker finds a checkpoint
// there, however many were taken since.
func TestACheckpointAtTheDispatchersReaderPositionIsUsed(t *testing.T) {
	const reported, received = 100, 1000
	dir, want := t.TempDir(), undisturbed(t)
	w := saving(t, dir)
	o := planned(t, w, "slow_shuffle")
	w.streams.Start(o)
	r := dialTCP(t, w)
	r.open(1, opening(o))
	r.credit(1, 0, 1<<40)
	to := func(index uint64) {
		for got := uint64(0); got < index; {
			h := mustNext(t, r).header
			got = h.Index + uint64(h.Count)
			r.credit(1, min(got, index), 1<<40)
		}
		r.handled()
	}
	to(reported)
	waitFor(t, "the run is saved", func() bool { return len(checkpointsBetween(t, dir, 0, reported)) > 0 })
	if load := w.streams.Loads()[0]; load.Acked != reported {
		t.Fatal(load)
	}
	to(received)
	waitFor(t, "older ones are removed", func() bool {
		n := len(checkpointsBetween(t, dir, reported, received))
		return 0 < n && n <= 2
	})
	takeBack(t, w, o)

	next := proto.Clone(o).(*pecanv1.StartStream)
	next.Lease, next.AckedBelow = o.Lease+1, reported
	w = saving(t, dir)
	planned(t, w, "slow_shuffle")
	w.streams.Start(next)
	if got := first(t, w, next, reached, 100); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("got %v\nwant %v", got, want)
	}
	if recovery := recoveryOf(w); recovery.Restored != 1 {
		t.Fatal(recovery)
	}
}
