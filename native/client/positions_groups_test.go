package client

import (
	"math/rand/v2"
	"testing"

	"github.com/pecan-ml/pecan/native/client/epoch"
)

// The log keeps positions of many more streams than are open. At each step that it can return, a position covers exactly
// the steps before it.
func TestThePositionInGroupsCoversTheStepsBeforeIt(t *testing.T) {
	const streams = 1500
	count := func(stream uint32) uint64 { return uint64(stream % 5) }
	rng := rand.New(rand.NewPCG(3, 4))
	d := startDispatcher(t, func(d *testDispatcher) { d.plan.NumStreams, d.plan.Group = streams, 16 })
	d.updateOf = spread(streams, startWorker(t, func(_ uint64, stream uint32) (testStream, bool) {
		return testStream{count: count(stream)}, true
	}))
	r := rejoiningJob(t, d, nil)
	it := r.Open(IterOptions{NoPrefetch: true})
	var steps []seen
	next := map[uint32]uint64{}
	check := func(n int) {
		t.Helper()
		position := savedAt(t, r, n, false).GetPosition()
		if len(position.GetNext())+len(position.GetEnded()) > 0 {
			t.Fatalf("a position in groups lists all streams: %v", position)
		}
		at, err := epoch.NewProgress(position, streams)
		if err != nil {
			t.Fatal(err)
		}
		for stream := range uint32(streams) {
			got := at.Next[stream]
			if at.Over.Has(stream) {
				got = count(stream)
			}
			if got != next[stream] {
				t.Fatalf("after %d steps: stream %d is at %d, want %d", n, stream, got, next[stream])
			}
		}
	}
	for ended := false; !ended; {
		var more []seen
		more, ended = readSteps(t, it, rng, 100+rng.IntN(100))
		at := len(steps)
		for i, step := range more {
			if steps, next[step.stream] = append(steps, step), step.index+1; i%29 == 0 && !ended {
				check(at + i + 1)
			}
		}
	}
	if len(steps) != streams/5*10 {
		t.Errorf("%d steps", len(steps))
	}
}
