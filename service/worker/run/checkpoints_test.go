package run

import (
	"runtime"
	"testing"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
	"github.com/pecan-ml/pecan/service/worker/checkpoint"
)

// All streams of a worker together use no more of its cores for checkpoints than one stream alone may.
func TestCheckpointsOfManyStreamsKeepTheShareOfOne(t *testing.T) {
	w := &Streams{Options: Options{CheckpointShare: 0.01}}
	for runs, want := range map[int64]time.Duration{
		0: 20 * time.Second, int64(runtime.NumCPU()): 20 * time.Second, 4 * int64(runtime.NumCPU()): 80 * time.Second,
	} {
		w.runs.Store(runs)
		if pause := w.checkpointPause(200 * time.Millisecond); pause.Round(time.Millisecond) != want {
			t.Errorf("with %d streams: %v, want %v", runs, pause, want)
		}
	}
}

// The delays after failures grow up to a bound of minutes.
func TestCheckpointsThatFailAreTriedAgainWithinMinutes(t *testing.T) {
	var s saver
	last := time.Duration(0)
	for range 40 {
		wait := s.postpone(10 * time.Second)
		if wait < last || wait > 10*time.Minute {
			t.Fatalf("%v after %v", wait, last)
		}
		last = wait
	}
	if last != 10*time.Minute {
		t.Errorf("the pauses end at %v", last)
	}
	if wait := s.postpone(time.Hour); wait != time.Hour {
		t.Errorf("%v where checkpoints come every hour", wait)
	}
}

// The checkpoints after the reader's index are counted, because enough of them make a new one unnecessary.
func TestCheckpointsAheadOfTheReaderAreCounted(t *testing.T) {
	var s saver
	s.setFiles([]checkpoint.File{{Index: 70}, {Index: 50}, {Index: 30}, {Index: 10}})
	for index, want := range map[uint64]int{0: 4, 10: 3, 50: 1, 70: 0, 100: 0} {
		if n := s.above(index); n != want {
			t.Errorf("%d lie ahead of %d, want %d", n, index, want)
		}
	}
}

// A state belongs to one graph's iterator. Another order of the same steps is another graph.
func TestACheckpointOfAnotherOrderIsNotRestored(t *testing.T) {
	of := func(order ...string) *pecanv1.Checkpoint {
		return &pecanv1.Checkpoint{Fingerprint: "f", PlanHash: planAndOrder(&pecanv1.Plan{Hash: "h", Order: order})}
	}
	dir := t.TempDir()
	checkpoints, err := checkpoint.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer checkpoints.Close()
	headers := []*pecanv1.Checkpoint{of(), of("a", "b"), of("b", "a"), of("a b"), of("a\" \"b")}
	for i, written := range headers {
		if err := checkpoints.Write("place", written, []byte("state")); err != nil {
			t.Fatal(err)
		}
		for j, wanted := range headers {
			if _, _, err := checkpoints.Read("place/0-0.checkpoint", wanted); (err == nil) != (i == j) {
				t.Errorf("that of order %d is read for order %d: %v", i, j, err)
			}
		}
	}
	if of().GetPlanHash() != "h" {
		t.Error("checkpoints of the registered order are not found any more")
	}
}
