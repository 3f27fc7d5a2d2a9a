package client

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// A job may be lost many times within one epoch, also before its replacement has returned anything. The iteration returns
// each element once.
func TestAJobThatIsLostAgainContinuesWhereTheIterationIs(t *testing.T) {
	for _, mode := range []pecanv1.Mode{pecanv1.Mode_MODE_EXACTLY_ONCE, pecanv1.Mode_MODE_DETERMINISTIC} {
		for _, streams := range []uint32{7, 300} {
			for seed := range uint64(3) {
				t.Run(fmt.Sprintf("%v/%d/%d", mode, streams, seed), func(t *testing.T) { testLostAgain(t, mode, streams, seed) })
			}
		}
	}
}

func testLostAgain(t *testing.T, mode pecanv1.Mode, streams uint32, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, uint64(streams)))
	counts, total := make([]uint64, streams), 0
	for s := range counts {
		counts[s] = uint64(rng.IntN(1 + 1000/int(streams)*2))
		total += int(counts[s])
	}
	d := startDispatcher(t, func(d *testDispatcher) {
		d.plan.NumStreams, d.options = int32(streams), &pecanv1.JobOptions{Mode: mode}
		if streams > 16 {
			d.plan.Group = 16
		}
	})
	d.updateOf = spread(streams, startWorker(t, func(_ uint64, stream uint32) (testStream, bool) {
		return testStream{count: counts[stream], perFrame: 3}, true
	}))
	r := rejoiningJob(t, d, &Dataset{Graph: []byte("graph"), Spec: &pecanv1.DatasetSpec{}})
	it := r.Open(IterOptions{NoPrefetch: true, MaxOutstandingBytes: 4096})
	next, got, lost, ended := make([]uint64, streams), 0, 0, false
	take := func(most int, wait time.Duration) {
		t.Helper()
		elements, status, err := it.NextBlock(most, wait)
		switch ended = status == End; status {
		case Ready:
			for data := elements.Tensors[0].Data; len(data) > 0; data = data[8:] {
				v := binary.LittleEndian.Uint64(data)
				stream, index := uint32(v>>32)&0xffff, v&0xffffffff
				if index != next[stream] {
					t.Fatalf("after %d elements and %d losses: element %d of stream %d, want element %d", got, lost, index, stream, next[stream])
				}
				next[stream]++
				got++
			}
			elements.Release()
		case Failed, Broken:
			t.Fatalf("after %d elements and %d losses: %v", got, lost, err)
		}
	}
	for deadline := time.Now().Add(testDeadline); !ended && time.Now().Before(deadline); {
		for until := got + rng.IntN(total/6+1); got < until && !ended; {
			take(1+rng.IntN(9), 50*time.Millisecond)
		}
		for range rng.IntN(3) {
			d.restart()
			lost++
			if !ended {
				take(1, time.Duration(rng.IntN(3))*time.Millisecond)
			}
		}
	}
	if got != total {
		t.Errorf("%d elements of %d after %d losses", got, total, lost)
	}
}
