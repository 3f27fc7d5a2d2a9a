package client

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/pecan-ml/pecan/native/client/element"
	"github.com/pecan-ml/pecan/native/client/wait"
	"github.com/pecan-ml/pecan/proto/frame"
	pecanv1 "github.com/pecan-ml/pecan/proto/pecan/v1"
)

// TestAnyMixOfFaultsKeepsEveryElement draws streams, workers, sizes and faults at random.
func TestAnyMixOfFaultsKeepsEveryElement(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	for round := range 12 {
		t.Run("", func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, uint64(round)))
			t.Logf("seed %d, round %d", seed, round)
			faults := rand.New(rand.NewPCG(seed, uint64(round)+1<<32))
			streams := 1 + random.Uint32N(5)
			counts := make([]uint64, streams)
			perFrame := make([]uint64, streams)
			for s := range counts {
				counts[s], perFrame[s] = random.Uint64N(200), random.Uint64N(6)
			}
			pad, text := random.IntN(3000), random.IntN(2) == 0
			rate := 0.05 * random.Float64()
			var mu sync.Mutex
			var workers []*testWorker
			for range 1 + random.IntN(3) {
				near := random.IntN(2) == 0
				packed, crc := random.IntN(2) == 0, random.IntN(2) == 0
				workers = append(workers, startWorker(t, func(_ uint64, s uint32) (testStream, bool) {
					return testStream{count: counts[s], perFrame: perFrame[s], pad: pad, text: text}, true
				}, func(w *testWorker) {
					if near {
						withUnix(w)
					}
					w.snappy, w.crc = packed, crc
					w.hook = func(h *frame.Header, meta, payload *[]byte) bool {
						if h.Type != frame.Data && h.Type != frame.End {
							return true
						}
						mu.Lock()
						defer mu.Unlock()
						if faults.Float64() > rate {
							return true
						}
						switch faults.IntN(5) {
						case 0:
							return false
						case 1:
							h.Index++
						case 2:
							h.Lease++
						case 3:
							h.Lease--
						case 4:
							if len(*payload) > 0 {
								*payload = (*payload)[:faults.IntN(len(*payload))]
								h.Lease = 1 << 40
							}
							return false
						}
						return true
					}
				}))
			}
			d := startDispatcher(t, func(d *testDispatcher) { d.plan.NumStreams = int32(streams) })
			lease, where := uint64(5), random.IntN(100)
			d.updateOf = func(uint64) *pecanv1.EpochUpdate {
				u := &pecanv1.EpochUpdate{TotalStreams: streams, StreamsFinal: true}
				for s := range streams {
					u.Streams = append(u.Streams, &pecanv1.ConsumerStream{Stream: s, Lease: lease, Assignment: 1, WorkerNumber: numberOf(workers[(int(s)+where)%len(workers)].address())})
				}
				return u
			}
			options := IterOptions{MaxOutstandingBytes: 1 + random.Int64N(50000), Deterministic: random.IntN(2) == 0}
			it := open(t, d).Open(options)
			ctx, cancel := context.WithCancel(context.Background())
			moved := make(chan struct{})
			go func() {
				defer close(moved)
				for wait.Sleep(ctx, 3*time.Millisecond) {
					d.update(func() {
						if where%3 == 0 {
							lease++
						}
						where++
					})
				}
			}()
			all, err := readMixed(t, it, random)
			cancel()
			<-moved
			if err != nil {
				t.Fatal(err)
			}
			wantAll(t, all, counts...)
			if options.Deterministic {
				wantTurns(t, all, counts)
			}
		})
	}
}

// readMixed dequeues elements and blocks in random order.
func readMixed(t *testing.T, it *Iteration, random *rand.Rand) ([]got, error) {
	t.Helper()
	var all []got
	for deadline := time.Now().Add(testDeadline); ; {
		if time.Now().After(deadline) {
			t.Fatalf("nothing more after %d elements; waiting: %s", len(all), waiting(it))
		}
		var elements *element.Elements
		var status Status
		var err error
		if random.IntN(2) == 0 {
			elements, status, err = it.NextElement(50 * time.Millisecond)
		} else {
			elements, status, err = it.NextBlock(1+random.IntN(20), 50*time.Millisecond)
		}
		switch status {
		case Ready:
			for i := range elements.Count {
				v := uint64(binary.LittleEndian.Uint64(elements.Tensors[0].Data[8*i:]))
				all = append(all, got{stream: uint32(v>>32) & 0xffff, index: v & 0xffffffff})
			}
			elements.Release()
		case End:
			return all, nil
		case Failed, Broken:
			return all, err
		}
	}
}
